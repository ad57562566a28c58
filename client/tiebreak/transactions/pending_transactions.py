"""Transactions on their way: one record for each intention, and the search for the transaction that used a nonce."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import rlp
from eth_hash.auto import keccak
from eth_typing import ChecksumAddress
from eth_utils.address import to_canonical_address, to_checksum_address

from tiebreak.rpc.chain_errors import ChainError, InvalidAnswer, RpcRefused

if TYPE_CHECKING:
    from tiebreak.rpc.answers import TransactionReceipt
    from tiebreak.rpc.node import ChainNode
    from tiebreak.transactions.journal import Entry

MOST_SCANNED = 20_000
"""Blocks that are looked through for a hash, where a node does not know older states."""

_REFUSALS = 8
"""Refusals in a row after which a node is taken for one without old states."""


@dataclass(eq=False, slots=True)
class Sent:
    """A transaction, or several that replace each other, for one intention.

    `receipt`: of the one that a block has taken, as it was shown last; None before that, and again when a
    reorganisation has dropped the block. `error`: why the intention ended without one.
    """

    entry: Entry
    receipt: TransactionReceipt | None = None
    error: ChainError | None = None
    offered_at: int | None = None
    """The newest block when the node took the transaction last; None: it is not known to have it."""
    former: bool = False
    """True if it comes from a former life of the process, in which nobody may have heard of its end."""
    awaited: int = 0
    """Callers that wait for its end."""
    suspected: tuple[int, float] | None = None
    """The newest block and the time when a foreign transaction was seen first at this nonce."""
    between: tuple[int, int] | None = None
    """Blocks between which the nonce was used, as far as a search has come."""
    taken: bytes | None = None
    """Hash of the transaction that a block has, where a search has shown it before a receipt did."""
    refusals: int = 0
    """Requests of that search that the node has refused."""

    @property
    def purpose(self) -> str:
        return self.entry.purpose

    @property
    def named(self) -> bool:
        """True if the purpose has a name, and is more than just a call."""
        return not self.entry.purpose.startswith(_UNNAMED)

    @property
    def nonce(self) -> int:
        return self.entry.nonce

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """Hashes of all transactions that were signed for this intention, the newest first."""
        return tuple(one.hash for one in reversed(self.entry.signed))

    @property
    def done(self) -> bool:
        """True if a block has it, or it has ended without one."""
        return self.receipt is not None or self.error is not None


_UNNAMED = "call 0x"


def purpose_of(to: ChecksumAddress | None, data: bytes, value: int) -> str:
    """The name of an intention that is just this call."""
    return _UNNAMED + keccak(f"{to} {value} ".encode("ascii") + data).hex()


def receipt_of(
    node: ChainNode, account: ChecksumAddress, entry: Entry, transaction: bytes
) -> TransactionReceipt | None:
    """The receipt of a transaction that was signed for an intention, None as long as no block has it.

    Raises InvalidAnswer for one that this transaction cannot have: what it offers at most, and the address of what it
    creates, are ours to know, and a fee that is made up would use a limit on spending up."""
    receipt = node.receipt(transaction)
    if receipt is None:
        return None
    most = max(one.max_fee for one in entry.signed if one.hash == transaction)
    created = None
    if entry.to is None:
        created = to_checksum_address(keccak(rlp.encode([to_canonical_address(account), entry.nonce]))[12:])
    if receipt.gas_used > entry.gas:
        wrong = f"{receipt.gas_used} gas of {entry.gas}"
    elif receipt.fee > receipt.gas_used * most:
        wrong = "a fee above the one that was offered"
    elif receipt.succeeded and receipt.contract != created:
        wrong = "another new contract than its own"
    else:
        return receipt
    raise InvalidAnswer(f"{node.name} shows a receipt of 0x{transaction.hex()} with {wrong}: use another node.")


class Use(Enum):
    """Owner of the transaction that has used a nonce."""

    OURS = 0
    FOREIGN = 1
    UNKNOWN = 2


def who_used(node: ChainNode, account: ChecksumAddress, sent: Sent, newest: int, depth: int) -> Use:
    """The owner of the transaction that used an intention's nonce, by the block that has it.

    UNKNOWN while the node does not show that block `depth` deep.

    That a node has no receipt proves nothing: it may lag behind the one that counted the transactions. Raises the
    errors of ChainNode, and goes on where it was at the next call.
    """
    entry = sent.entry
    ours = {one.hash for one in entry.signed}
    try:
        if sent.between is None:
            if node.nonce(account, block=newest) <= entry.nonce:
                return Use.UNKNOWN
            sent.between = max(0, entry.since - 1), newest
        low, high = sent.between
        # It may have been used before ours was signed, without this process having heard of it.
        while low > 0 and node.nonce(account, block=low) > entry.nonce:
            low, high = max(0, low - 4 * (high - low + 1)), low
            sent.between = low, high
        while low < high:
            middle = (low + high) // 2
            if node.nonce(account, block=middle) > entry.nonce:
                high = middle
            else:
                low = middle + 1
            # One lower than what was found: the loop above looks at it again.
            sent.between = max(0, low - 1), high
    except RpcRefused:
        # Mostly a node that has too much to do; one that has no old states refuses every time.
        sent.refusals += 1
        if sent.refusals < _REFUSALS:
            raise
        return _scanned(node, ours, sent, newest, depth)
    sent.between, sent.refusals = (max(0, high - 1), high), 0
    taken = node.transactions_of(high)
    if taken is not None and not ours.isdisjoint(taken):
        (sent.taken,) = ours & taken
        return Use.OURS
    # The account's own transaction has to stand in the block that raised its count; a block without it is another one.
    if not taken:
        sent.between = None
        return Use.UNKNOWN
    return Use.FOREIGN if newest - high >= depth else Use.UNKNOWN


def _scanned(node: ChainNode, ours: set[bytes], sent: Sent, newest: int, depth: int) -> Use:
    """`who_used` for a node without old states: it looks through the blocks."""
    entry = sent.entry
    for number in range(max(0, entry.since - 1, newest - MOST_SCANNED), newest + 1):
        taken = node.transactions_of(number)
        if taken is None:
            return Use.UNKNOWN
        if not ours.isdisjoint(taken):
            (sent.taken,) = ours & taken
            return Use.OURS
    # Which block it was is unknown, so the whole range has to be as deep.
    return Use.FOREIGN if newest - entry.since >= depth + 1 else Use.UNKNOWN
