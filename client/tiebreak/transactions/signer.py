"""Transactions on their way, one record for each intention; the search for the one that used a nonce; fees (EIP-1559)
of a new one and of one that replaces a stuck one; and the funds that a bond and what may follow it need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import rlp
from eth_account.datastructures import SignedTransaction
from eth_hash.auto import keccak
from eth_typing import ChecksumAddress
from eth_utils.address import to_canonical_address, to_checksum_address

from tiebreak.quantities import in_ether
from tiebreak.rpc.answers import Block, Fees
from tiebreak.rpc.chain_errors import ChainError, InvalidAnswer
from tiebreak.rpc.node import MAX_REORGANISATION
from tiebreak.transactions.journal import Entry

if TYPE_CHECKING:
    from tiebreak.rpc.answers import TransactionReceipt
    from tiebreak.rpc.node import ChainNode

_KEPT_TIP = 100  # blocks for which a priority fee is taken as known

DISPUTE_GAS = 5_000_000
"""Gas of a whole dispute, both sides' moves together; the longest measured takes 3.8 million (docs/protocol.md)."""

CLAIM_GAS = 1_000_000
"""Gas of all other calls together: commit, challenge, finalize, withdraw."""


class Offers:
    """Fees that one account offers. `cap`: wei per gas that are offered at most."""

    def __init__(self, node: ChainNode, cap: int) -> None:
        self._node = node
        self._cap = cap
        self._tip: tuple[int, int] | None = None

    def first(self, head: Block) -> Fees:
        """Return fees of a new transaction while `head` is the newest block; they suffice until the base fee has
        doubled."""
        wanted = self._wanted(head)
        return replace(wanted, max_fee=min(wanted.max_fee, self._cap), priority_fee=min(wanted.priority_fee, self._cap))

    def raised(self, fees: Fees, head: Block | None) -> Fees | None:
        """Return fees of a transaction that replaces one with `fees`; None if they would exceed the cap.

        Both are at least an eighth higher (nodes ask for a tenth), and no lower than those of a new transaction."""
        wanted = self._wanted(head) if head is not None else Fees(0, 0)
        most = max(wanted.max_fee, fees.max_fee * 9 // 8 + 1)
        tip = max(wanted.priority_fee, fees.priority_fee * 9 // 8 + 1)
        if most > self._cap:
            most = self._cap
            if most < fees.max_fee * 9 // 8 + 1:
                return None
        return None if tip > most else Fees(most, tip)

    def _wanted(self, head: Block) -> Fees:
        if self._tip is None or not 0 <= head.number - self._tip[0] < _KEPT_TIP:
            self._tip = head.number, self._node.priority_fee()
        tip = self._tip[1]
        return Fees(2 * head.base_fee + tip, tip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Funds:
    """An account's balance and its needs, in wei; `price` in wei per gas."""

    account: ChecksumAddress
    balance: int
    bond: int
    games: int
    price: int

    @property
    def needed(self) -> int:
        return self.bond + (CLAIM_GAS + self.games * DISPUTE_GAS) * self.price

    @property
    def missing(self) -> int:
        """0 if the balance is enough."""
        return max(0, self.needed - self.balance)

    @property
    def sentence(self) -> str:
        """A sentence for the account's owner, to be told before any work is done."""
        games = "a whole dispute" if self.games == 1 else f"{self.games} whole disputes"
        gas = f"the gas of {games} at {self.price / 10**9:.3g} gwei"
        need = f"{in_ether(self.needed)} for a bond of {in_ether(self.bond)} and {gas}"
        has = f"account {self.account} has {in_ether(self.balance)}"
        if self.missing:
            return f"{has} and needs {need}: send it {in_ether(self.missing)} more"
        return f"{has}, and needs at most {need}"


def funds(node: ChainNode, account: ChecksumAddress, bond: int, *, games: int = 1) -> Funds:
    """Look at an account's balance and at today's price of gas. Three requests; raises the errors of ChainNode.

    `bond` in wei; `games`: disputes that it should be able to play to their end."""
    price = node.head().base_fee + node.priority_fee()
    return Funds(account=account, balance=node.balance(account), bond=bond, games=games, price=price)


class Key(Protocol):
    """A key that signs transactions: eth-account's `LocalAccount`, which holds it, or a `RemoteSigner`, which does
    not."""

    @property
    def address(self) -> ChecksumAddress: ...

    def sign_transaction(self, transaction: dict[str, Any], /) -> SignedTransaction:
        """Sign a transaction of type 2, given as eth-account takes it. Raises SignerError where the key is elsewhere
        and cannot be had now."""


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
    """Return the name of an intention that is just this call."""
    return _UNNAMED + keccak(f"{to} {value} ".encode("ascii") + data).hex()


def receipt_of(
    node: ChainNode, account: ChecksumAddress, entry: Entry, transaction: bytes
) -> TransactionReceipt | None:
    """Return the receipt of a transaction that was signed for an intention, None as long as no block has it.

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


def is_foreign(node: ChainNode, account: ChecksumAddress, sent: Sent, newest: int, depth: int) -> bool:
    """Return whether another transaction than an intention's has used its nonce, `depth` blocks deep, where the node
    shows no receipt of any of these.

    That alone proves nothing: the node may lag behind the one that counted the transactions. So the block that has used
    the nonce is looked at, unless it lies deeper than nodes differ; older states are not asked for, which few nodes
    keep. Raises the errors of ChainNode, and goes on where it was at the next call."""
    if sent.between is None:
        low = max(0, newest - MAX_REORGANISATION)
        if node.nonce(account, block=newest) <= sent.nonce:
            return False
        if node.nonce(account, block=low) > sent.nonce:  # so deep that every node has its receipt
            sent.taken = next((name for name in sent.hashes if node.receipt(name) is not None), None)
            return sent.taken is None
        sent.between = low, newest
    low, high = sent.between
    while high - low > 1:
        middle = (low + high) // 2
        is_used = node.nonce(account, block=middle) > sent.nonce
        low, high = sent.between = (low, middle) if is_used else (middle, high)
    taken = node.transactions_of(high) or frozenset()
    sent.between, sent.taken = None, next(iter(taken.intersection(sent.hashes)), None)
    # The account's own transaction has to stand in the block that raised its count; an empty one is another one.
    return bool(taken) and sent.taken is None and newest - high >= depth
