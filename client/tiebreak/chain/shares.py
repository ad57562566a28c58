"""Division of a lost bond, as `contracts/src/Bonds.sol` does it; docs/economics.md says why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of a lost bond, in wei. They come to the bond."""

    gas: int
    """To the winner, for the gas of its moves."""
    half: int
    """To the winning side: the trainer, or the earliest challenger with the root that won."""
    quarter: int
    """To the customer."""
    burnt: int

    @staticmethod
    def of(bond: int, spent: int) -> Shares:
        """spent: wei on the winner's meter (`GameView.spent`)."""
        gas = min(spent, bond // 4)
        rest = bond - gas
        half, quarter = rest // 2, rest // 4
        return Shares(gas=gas, half=half, quarter=quarter, burnt=rest - half - quarter)

    @property
    def winners(self) -> int:
        """Wei for a winner that is the trainer, or the earliest challenger as well."""
        return self.gas + self.half
