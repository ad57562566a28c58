"""Fees of a transaction (EIP-1559), of a new one and of one that replaces a stuck one; and the funds that an account
needs for a bond and for everything that may follow from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eth_typing import ChecksumAddress

from tiebreak.quantities import in_ether
from tiebreak.rpc.answers import Block, Fees
from tiebreak.rpc.node import ChainNode

MAX_FEE = 1_000 * 10**9
"""Wei per gas that are offered at most by default: ten times what a busy day costs."""

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
        """Fees of a new transaction while `head` is the newest block; they suffice until the base fee has doubled."""
        wanted = self._wanted(head)
        return replace(wanted, max_fee=min(wanted.max_fee, self._cap), priority_fee=min(wanted.priority_fee, self._cap))

    def raised(self, fees: Fees, head: Block | None) -> Fees | None:
        """Fees of a transaction that replaces one with `fees`; None if they would exceed the cap.

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
    """Looks at an account's balance and at today's price of gas. Three requests; raises the errors of ChainNode.

    `bond` in wei; `games`: disputes that it should be able to play to their end."""
    price = node.head().base_fee + node.priority_fee()
    return Funds(account=account, balance=node.balance(account), bond=bond, games=games, price=price)
