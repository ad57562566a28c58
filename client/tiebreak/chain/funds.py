"""Funds that an account needs for a bond and for everything that may follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.amounts import in_ether
from tiebreak.chain.node import ChainNode

DISPUTE_GAS = 5_000_000
"""Gas of a whole dispute, both sides' moves together; the longest measured takes 3.8 million (docs/protocol.md)."""

CLAIM_GAS = 1_000_000
"""Gas of all other calls together: commit, challenge, finalize, withdraw."""


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
