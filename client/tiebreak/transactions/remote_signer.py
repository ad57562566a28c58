"""A signer in another process that holds the key: clef's external API, or the `eth_signTransaction` of web3signer (the
successor of EthSigner), geth and anvil.

What comes back is a stranger's bytes. They are sent on only if they are, byte for byte, the encoding (EIP-1559,
EIP-2718) of the transaction that was asked for, under a signature of its account. So a signer can refuse, and nothing
else.

clef: https://geth.ethereum.org/docs/tools/clef/apis; web3signer: https://docs.web3signer.consensys.io/reference/api/json-rpc
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rlp
from eth_account import Account
from eth_account.datastructures import SignedTransaction
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_hash.auto import keccak
from eth_keys.exceptions import BadSignature
from eth_typing import ChecksumAddress
from eth_utils.exceptions import ValidationError
from rlp.exceptions import RLPException

from tiebreak.http_client import Pauses
from tiebreak.rpc import answers
from tiebreak.rpc.chain_errors import (
    AccountError,
    ChainUnavailable,
    InvalidAnswer,
    RpcRefused,
    SignerRefused,
    SignerUnavailable,
    WrongSignature,
)
from tiebreak.rpc.node import transport_to
from tiebreak.rpc.transport import Transport

SIGNING_SECONDS = 30.0
"""Seconds for which a signature is waited for. A signer that asks a person for each one is too slow for games."""

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
"""Seconds after a failure in which the signer is not asked: a person is not to be asked at every look."""

_MOST_ACCOUNTS = 10_000
_MOST_MORE = 4096
"""Bytes beyond the transaction's data that are looked at: its other fields, and what a changed one is told from."""
_HIGHEST_S = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
"""Half of secp256k1's order. With s above it a signature has a second form, under which every node refuses the
transaction (EIP-2)."""
_FIELDS = (
    *("chain id", "nonce", "priority fee", "fee", "gas limit", "receiver", "value", "data"),
    "access list",
)


class RemoteSigner:
    """One account of a signer behind `transport`. `method`: the one that signs. `clock`: as `time.monotonic`."""

    def __init__(
        self,
        transport: Transport,
        address: ChecksumAddress,
        method: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._transport, self._method, self._clock = transport, method, clock
        self._pauses = Pauses(first=_FIRST_PAUSE, most=_LONGEST_PAUSE)
        self._failed: tuple[float, SignerRefused | SignerUnavailable] | None = None
        """Instant until which it is not asked, and the reason."""

    def sign_transaction(self, transaction: Mapping[str, Any], /) -> SignedTransaction:
        """Return the signed transaction. `transaction`: as eth-account takes it, of type 2.

        Raises SignerUnavailable, SignerRefused (both at once for a while after a failure), and WrongSignature for
        anything but a signature under this transaction."""
        if self._failed is not None and self._clock() < self._failed[0]:
            raise self._failed[1]
        try:
            answer = self._transport.request(self._method, [_asked(self.address, transaction)])
        except RpcRefused as error:
            raise self._remembered(
                SignerRefused(
                    f"the signer {self._transport.name} does not sign ({error.reason}): see its rules and log."
                )
            ) from error
        except (ChainUnavailable, InvalidAnswer) as error:
            raise self._remembered(
                SignerUnavailable(
                    f"the signer {self._transport.name} did not sign within {SIGNING_SECONDS:g} seconds: start it, or "
                    "have it sign by rules without asking a person."
                )
            ) from error
        self._failed = None
        self._pauses.reset()
        raw = self._raw(answer)
        v, r, s = self._check(raw, transaction)
        return SignedTransaction(raw, keccak(raw), r, s, v)  # type: ignore[arg-type]  # bytes do

    def _remembered(self, error: SignerRefused | SignerUnavailable) -> SignerRefused | SignerUnavailable:
        self._failed = self._clock() + self._pauses.next(), error
        return error

    def _raw(self, answer: object) -> bytes:
        # clef and geth answer with the bytes and what they mean, web3signer and anvil with the bytes.
        shown = answer.get("raw") if isinstance(answer, dict) else answer
        try:
            return answers.data(shown, "a signed transaction")
        except InvalidAnswer as error:
            raise self._wrong("what it gave is no transaction") from error

    def _check(self, raw: bytes, transaction: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return v, r and s of the signature."""
        # Before it is decoded, which takes seconds for every megabyte of fields, and a call for every list in a list.
        if len(raw) > len(transaction["data"]) + _MOST_MORE:
            raise self._wrong("what it gave is much longer than the transaction")
        try:
            found = rlp.decode(raw[1:])
            v, r, s = (int.from_bytes(one) for one in found[-3:])
            wanted = TypedTransaction.from_dict({**transaction, "v": v, "r": r, "s": s}).encode()
            signer = Account.recover_transaction(wanted)
        except (RLPException, RecursionError, BadSignature, ValidationError, ValueError, TypeError) as error:
            raise self._wrong("what it gave is no transaction with a valid signature") from error
        for name, ours, theirs in zip(_FIELDS, rlp.decode(wanted[1:]), found, strict=False):
            if ours != theirs:
                raise self._wrong(f"it has changed the {name}")
        if wanted != raw:
            raise self._wrong("its encoding is another one")
        if s > _HIGHEST_S:
            raise self._wrong("its signature is one that no node takes")
        if signer != self.address:
            raise self._wrong(f"it has signed as {signer}")
        return v, r, s

    def _wrong(self, why: str) -> WrongSignature:
        return WrongSignature(
            f"the signer {self._transport.name} did not sign what it was asked to ({why}), and nothing was sent: find "
            "out why before you use it again."
        )


def connect_signer(
    location: str, account: ChecksumAddress | None = None, *, stop: threading.Event | None = None
) -> RemoteSigner:
    """Return the signer at a location (as of `tiebreak.rpc.node.connect`), with that account, or its only one.

    Raises SignerUnavailable if nobody answers there, and AccountError if it has no such account."""
    try:
        # One attempt: a repetition would ask a person twice.
        transport = transport_to(location, stop, timeout=SIGNING_SECONDS, deadline=SIGNING_SECONDS + 1, attempts=1)
        try:
            listed, method = transport.request("eth_accounts", []), "eth_signTransaction"
        except RpcRefused:
            listed, method = transport.request("account_list", []), "account_signTransaction"
        shown = [answers.address(one, "an account") for one in answers.sequence(listed, "accounts", _MOST_ACCOUNTS)]
    except RpcRefused as error:
        raise SignerRefused(
            f"{transport.name} lists no accounts ({error.reason}): check that it is clef, web3signer or a node."
        ) from error
    except ChainUnavailable as error:
        raise SignerUnavailable(f"no signer answers ({error})") from error
    return RemoteSigner(transport, _chosen(transport.name, shown, account), method)


def _chosen(name: str, shown: Sequence[ChecksumAddress], account: ChecksumAddress | None) -> ChecksumAddress:
    if account is not None:
        if account not in shown:
            raise AccountError(f"the signer {name} has no account {account}: unlock it there, or name another.")
        return account
    if len(shown) != 1:
        raise AccountError(f"the signer {name} has {len(shown)} accounts: name one with --signer-account.")
    return shown[0]


def _asked(account: ChecksumAddress, transaction: Mapping[str, Any]) -> dict[str, object]:
    """Return the transaction as signers take it."""
    asked: dict[str, object] = {"from": account, "type": "0x2", "data": "0x" + bytes(transaction["data"]).hex()}
    if "to" in transaction:
        asked["to"] = transaction["to"]
    for name in ("chainId", "nonce", "gas", "value", "maxFeePerGas", "maxPriorityFeePerGas"):
        asked[name] = hex(transaction[name])
    return asked
