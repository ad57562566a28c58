"""Sends the transactions of one account, so that every intention is carried out once, whatever happens on the way.

`signer` signs and hands over one transaction, `outbox` follows all of them, and `Sender` waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from eth_typing import ChecksumAddress

from tiebreak.http_client import Halted, Pauses, pause
from tiebreak.rpc.answers import Block, TransactionReceipt
from tiebreak.rpc.chain_errors import (
    ChainError,
    ChainUnavailable,
    InvalidAnswer,
    SignerError,
    Stopped,
    TransactionFailed,
    TransactionPending,
)
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions.journal import Entry
from tiebreak.transactions.outbox import Outbox
from tiebreak.transactions.pending_transactions import Sent, purpose_of
from tiebreak.transactions.signer import MAX_FEE, Key

_LEAST_PAUSE, _PAUSE = 0.01, 1.0  # seconds between questions, a fraction of a block's time on public chains


class Sender(Outbox):
    """Signs and sends for `account`. Methods may be called from several threads.

    `directory`: where the journal lies (the role's own directory); None: in memory only, for commands that end at once.
    `max_fee`: wei per gas that are offered at most. `replace_after`: blocks after which a transaction that none has
    taken is replaced by one that pays more. `most_pending`: transactions that wait for a block at the same time; a
    node keeps sixteen of an account for certain. `patience`: seconds for which `send` waits. `stop`: ends every wait
    at once (default: the node's). `clock` and `sleep` are there for tests and simulations.
    """

    def __init__(
        self,
        node: ChainNode,
        account: Key,
        *,
        directory: Path | None = None,
        max_fee: int = MAX_FEE,
        replace_after: int = 3,
        most_pending: int = 16,
        patience: float = 120.0,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(node, account, directory=directory, max_fee=max_fee, replace_after=replace_after, clock=clock)
        self._most_pending = most_pending
        self._patience = patience
        self._stop = stop if stop is not None else node.stop
        self._sleep = sleep
        self._instant = True
        """True while blocks take transactions as soon as they are sent, so that asking at once pays."""

    def send(
        self,
        to: ChecksumAddress | None,
        data: bytes,
        *,
        value: int = 0,
        purpose: str | None = None,
        confirmations: int | None = None,
    ) -> TransactionReceipt:
        """Sends a call (or with `to` None a contract's creation code) and waits for its receipt.

        `value` in wei; `purpose` as in `submit`; `confirmations`: blocks that have to lie on it (None: the node's).
        Raises RpcRefused when the call would revert (its `data` says why), InsufficientFunds, JournalError,
        TransactionFailed, TransactionPending.
        """
        return self.wait(self.submit(to, data, value=value, purpose=purpose), confirmations=confirmations)

    def submit(
        self,
        to: ChecksumAddress | None,
        data: bytes,
        *,
        value: int = 0,
        purpose: str | None = None,
        gas: int | None = None,
    ) -> Sent:
        """Sends a call and does not wait for a block.

        `purpose`: the name of the intention, which is carried out once: while the journal remembers a transaction for
        it that has not failed, also one of a former life of this process, that is given back and nothing is sent.
        Without a name the call itself is the purpose, and may be repeated once its end was told. `gas`: the limit,
        where the caller knows better than an estimate. Raises SignerError, and what `send` raises before a transaction
        is out; from then on only the chain can say what becomes of it.
        """
        name = purpose_of(to, data, value) if purpose is None else purpose
        self._wait_for_room(name)
        with self._lock:
            self._open()
            known = self._known(name)
            if known is not None:
                return known
            limit = gas if gas is not None else self._gas(to, data, value)
            head = self._recent_head()
            entry = Entry(purpose=name, nonce=self._next, to=to, data=data, value=value, gas=limit, since=head.number)
            sent = Sent(entry)
            self._sign(sent, self._offers.first(head))
            self._pending[entry.nonce] = sent
            self._next += 1
            try:
                self._offer(sent)
            except (ChainUnavailable, InvalidAnswer, SignerError, Stopped):
                pass  # whether the node has it is unknown: from here on only the chain can say
            except ChainError:
                self._withdraw(sent)
                raise
            return sent

    def wait(self, sent: Sent, *, confirmations: int | None = None) -> TransactionReceipt:
        """The receipt, once it lies `confirmations` blocks deep (None: the node's), or the error that ended it."""
        depth = self._node.confirmations if confirmations is None else confirmations
        deadline = self._clock() + self._patience
        with self._lock:
            sent.awaited += 1
        try:
            self._wait_for_block(sent, deadline)
            while not self._settled(sent, depth):
                self._rest(min(_PAUSE, max(0.05, self._pace.due())))
                self._poll()
                if sent.receipt is None:
                    self._wait_for_block(sent, self._clock() + self._patience)
        finally:
            with self._lock:
                sent.awaited -= 1
        return self._heard(sent)

    def poll(self, head: Block | None = None) -> list[Sent]:
        """One look at all that is on its way; replaces what is stuck. Returns what a block has taken, or what ended in
        another way, since the last call and for nobody who waits.

        `head`: the newest block, if the caller has just asked for it. Two requests, and one for each transaction that
        was taken.
        """
        return self._poll(head)

    def settle(self) -> None:
        """Waits until blocks have taken everything that this account has sent, for as long as patience lasts, so that
        the newest state shows what a former life of this process has done."""
        deadline = self._clock() + self._patience
        with self._lock:
            self._open()
        while self.pending or self._node.nonce(self.address, pending=True) > self._node.nonce(self.address):
            if self._clock() > deadline:
                return
            self._poll()
            self._rest(_PAUSE)

    # Waiting.

    def _wait_for_room(self, purpose: str) -> None:
        deadline = self._clock() + self._patience
        while len(waiting := self.pending) >= self._most_pending:
            if any(sent.purpose == purpose for sent in waiting):
                return
            if self._clock() > deadline:
                raise TransactionPending(
                    f"{len(waiting)} transactions of {self.address} wait for a block: look again when it has come."
                )
            self._poll()
            self._rest(min(_PAUSE, max(0.05, self._pace.due())))

    def _wait_for_block(self, sent: Sent, deadline: float) -> None:
        pauses = Pauses(first=_LEAST_PAUSE, most=_PAUSE)
        if not self._instant and not sent.done:
            self._rest(max(_LEAST_PAUSE, self._pace.due()))
        while not self._is_taken(sent):
            self._instant = False
            if self._clock() > deadline:
                raise TransactionPending(
                    f"no block has taken transaction 0x{sent.hashes[0].hex()} yet: run the same command again later."
                )
            self._rest(max(pauses.next(), self._pace.due()))

    def _is_taken(self, sent: Sent) -> bool:
        """One look at one transaction: mostly it is there, and costs one request."""
        with self._lock:
            if not sent.done and sent.offered_at is not None:
                self._find_receipt(sent)
            if not sent.done:
                self._poll()
            return sent.done

    def _settled(self, sent: Sent, depth: int) -> bool:
        """True if the end of an intention lies deep enough in the chain that the node has now."""
        if sent.error is not None or depth == 0:
            return True
        with self._lock:
            if sent.receipt is None or self._head is None or self._head.number < sent.receipt.block + depth:
                return False
            # The receipt may be an old one, of a block that is no longer part of the chain.
            block = self._node.block(sent.receipt.block)
            if block is not None and block.hash == sent.receipt.block_hash:
                return True
            sent.receipt = None
            self._find_receipt(sent)
            return False

    def _heard(self, sent: Sent) -> TransactionReceipt:
        with self._lock:
            sent.entry.heard = True
            self._remember_end(sent)
            if sent.error is not None:
                self._forget(sent.nonce)
                raise sent.error
            assert sent.receipt is not None
            if not sent.receipt.succeeded:
                raise TransactionFailed(sent.receipt.transaction, sent.receipt.block)
            return sent.receipt

    def _rest(self, seconds: float) -> None:
        if self._sleep is not None:
            self._sleep(seconds)
            return
        try:
            pause(seconds, self._stop)
        except Halted as error:
            raise Stopped(
                "stopped while a transaction waited for its block (the journal has it): run the same command again to "
                "carry on."
            ) from error
