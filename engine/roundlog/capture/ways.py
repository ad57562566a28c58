"""The ways through a step that decides by its values, or is another one at some steps: what each draws, and which
gradients it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Placed = Callable[[int], int | None]
"""Value -> the one that it is elsewhere, None if it is not there."""


@dataclass(frozen=True, slots=True)
class DrawnValue:
    """Random numbers of a call."""

    operator: int
    """The operator that gives it."""
    masks: tuple[int | None, ...] = ()
    """The operators that give the masks of its axes, where a mask chooses what is drawn."""

    def placed(self, place: Placed) -> DrawnValue | None:
        """The draw elsewhere; None if it is not there."""
        operator = place(self.operator)
        masks = tuple(None if mask is None else place(mask) for mask in self.masks)
        if operator is None or any(
            (mask is None) != (old is None) for mask, old in zip(masks, self.masks, strict=True)
        ):
            return None
        return DrawnValue(operator, masks)

    def operators(self) -> set[int]:
        return {self.operator, *(mask for mask in self.masks if mask is not None)}


@dataclass(frozen=True, slots=True)
class Way:
    """One path through a step, or two of which a condition chooses."""

    drawn: tuple[DrawnValue | None, ...] = ()
    """Random draws, in order; None where the program has no use for it."""
    gradients: frozenset[str] = frozenset()
    """Names of the parameters that have a gradient."""
    condition: int | None = None
    """The operator, bool[], that chooses between `held` and `otherwise`; None if this is one path."""
    held: Way | None = None
    otherwise: Way | None = None

    @classmethod
    def of(cls, condition: int, held: Way, otherwise: Way) -> Way:
        """One of two, by a condition; nothing of a path that is like the other remains."""
        return held if held == otherwise else cls(condition=condition, held=held, otherwise=otherwise)

    def placed(self, place: Placed) -> Way:
        """The way in other values. Its conditions have to be there."""
        if self.held is None or self.otherwise is None or self.condition is None:
            drawn = (None if one is None else one.placed(place) for one in self.drawn)
            return Way(drawn=tuple(drawn), gradients=self.gradients)
        condition = place(self.condition)
        assert condition is not None
        return Way.of(condition, self.held.placed(place), self.otherwise.placed(place))

    def conditions(self) -> list[int]:
        """The operators that choose."""
        if self.held is None or self.otherwise is None or self.condition is None:
            return []
        return [self.condition, *self.held.conditions(), *self.otherwise.conditions()]

    def paths(self) -> frozenset[tuple[int, frozenset[str]]]:
        """Number of draws and names of gradients of every path."""
        if self.held is None or self.otherwise is None:
            return frozenset({(len(self.drawn), self.gradients)})
        return self.held.paths() | self.otherwise.paths()

    def operators(self) -> set[int]:
        """All operators that are named."""
        if self.held is None or self.otherwise is None or self.condition is None:
            return {operator for one in self.drawn if one is not None for operator in one.operators()}
        return {self.condition} | self.held.operators() | self.otherwise.operators()

    def taken(self, holds: Callable[[int], bool]) -> Way:
        """The path that a step takes. holds: what an operator gives."""
        if self.held is None or self.otherwise is None or self.condition is None:
            return self
        return (self.held if holds(self.condition) else self.otherwise).taken(holds)
