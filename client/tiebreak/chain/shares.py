"""Division of a lost bond, as `contracts/src/Bonds.sol` does it; docs/economics.md says why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of a lost bond, in wei. They come to the bond."""

    gas: int
    """Part of the winner, for the gas of its moves."""
    half: int
    """Part of the winning side: the trainer, or the earliest challenger with the root that won."""
    quarter: int
    """Part of the customer."""
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
