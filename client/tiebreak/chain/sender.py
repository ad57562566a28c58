"""Sends transactions of one account, in a way that survives being killed at any moment.

Nothing is remembered outside the chain. Before each transaction the sender waits until no earlier one of the account
is pending; then the gas estimate runs the call on the newest state. So when a process died between sending and hearing
of it, the same call sent again after a restart either fails in the estimate, because the contract has moved on (a
ContractError, nothing spent), or is still due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from eth_typing import ChecksumAddress

from tiebreak.chain.errors import InsufficientFunds, InvalidAnswer, RpcRefused, TransactionFailed, TransactionPending
from tiebreak.chain.node import Fees, Node, Receipt

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount  # takes half a second to load

T = TypeVar("T")

GAS_MARGIN = 2.0
"""Gas limit over gas estimate: the state may change before the transaction is included. The second opening of a level
costs nearly twice as much as the first, and both sides send theirs at the same time."""

_TRIES = 8
_PAUSE = 1.0  # seconds between questions, a fraction of a block's time on public chains


class Sender:
    """Signs and sends for `account`.

    `patience`: seconds to wait for a block to take a transaction, before the next attempt pays more. `clock` and
    `sleep` are there for tests.
    """

    def __init__(
        self,
        node: Node,
        account: LocalAccount,
        *,
        patience: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._node = node
        self._account = account
        self._patience = patience
        self._clock = clock
        self._sleep = sleep

    @property
    def node(self) -> Node:
        return self._node

    @property
    def address(self) -> ChecksumAddress:
        address: ChecksumAddress = self._account.address
        return address

    def send(self, to: ChecksumAddress | None, data: bytes, *, value: int = 0) -> Receipt:
        """Sends a call (or with `to` None a contract's creation code) and waits for its receipt.

        `value` in wei. Raises RpcRefused when the call would revert (its `data` says why), InsufficientFunds,
        TransactionFailed, TransactionPending.
        """
        self.settle()
        gas = self._funded(lambda: self._node.estimate_gas(to, data, sender=self.address, value=value))
        transaction: dict[str, Any] = {
            "type": 2,
            "chainId": self._node.chain_id,
            "value": value,
            "data": data,
            "gas": int(gas * GAS_MARGIN),
        }
        if to is not None:
            transaction["to"] = to
        sent = self._broadcast(transaction)
        receipt = self._wait(sent)
        if not receipt.succeeded:
            raise TransactionFailed(receipt.transaction, receipt.block)
        return receipt

    def settle(self) -> None:
        """Waits until blocks have taken everything that this account has sent, for as long as patience lasts.

        What is still pending after that is replaced by the next transaction, which takes its nonce. So whoever
        settles, looks whether something was done, and sends it if not, never does it twice.
        """
        deadline = self._clock() + self._patience
        while self._node.nonce(self.address, pending=True) > self._node.nonce(self.address):
            if self._clock() > deadline:
                return
            self._sleep(_PAUSE)

    def _broadcast(self, transaction: dict[str, Any]) -> bytes:
        fees = self._node.fees()
        nonce = self._node.nonce(self.address)
        for _ in range(_TRIES):
            signed = self._account.sign_transaction(
                transaction | {"nonce": nonce, "maxFeePerGas": fees.max_fee, "maxPriorityFeePerGas": fees.priority_fee}
            )
            expected = bytes(signed.hash)
            try:
                raw = bytes(signed.raw_transaction)
                if self._funded(partial(self._node.send_raw, raw)) != expected:
                    raise InvalidAnswer(f"{self._node.name} gave a foreign transaction hash: use another node.")
                return expected
            except RpcRefused as error:
                reason = error.reason.lower()
                if "already known" in reason or "already imported" in reason:
                    return expected
                if self._node.receipt(expected) is not None:
                    return expected  # the answer to an earlier try was lost, not the transaction
                if "underpriced" in reason or "fee too low" in reason or "less than block base fee" in reason:
                    fees = _raised(fees)  # something pending holds the nonce; nodes ask for at least 10 % more
                elif "nonce" in reason:
                    nonce = self._node.nonce(self.address)  # another process of the same account was faster
                else:
                    raise
        raise TransactionPending(
            f"{self._node.name} took no transaction of {self.address} in {_TRIES} tries: wait for its pending ones."
        )

    def _wait(self, transaction: bytes) -> Receipt:
        """The receipt, once it lies `confirmations` blocks deep in the chain that is the longest then."""
        deadline = self._clock() + self._patience
        pause = 0.01
        while True:
            # Asked for again and again, because a reorganisation may move the transaction to another block.
            receipt = self._node.receipt(transaction)
            if receipt is not None:
                deep = self._node.confirmations == 0 or (
                    self._node.head().number >= receipt.block + self._node.confirmations
                )
                if deep:
                    return receipt
            elif self._clock() > deadline:
                raise TransactionPending(
                    f"no block has taken transaction 0x{transaction.hex()} yet: run the same command again later."
                )
            self._sleep(pause)
            pause = min(2 * pause, _PAUSE)

    def _funded(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except RpcRefused as error:
            if "insufficient funds" in error.reason.lower() or "insufficient balance" in error.reason.lower():
                raise InsufficientFunds(
                    f"account {self.address} cannot pay for this on chain {self._node.chain_id}: send it some ether."
                ) from error
            raise


def _raised(fees: Fees) -> Fees:
    return replace(fees, max_fee=fees.max_fee * 3 // 2 + 1, priority_fee=fees.priority_fee * 3 // 2 + 1)
