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
        found = {one: there for one in self.operators() if (there := place(one)) is not None}
        if found.keys() != self.operators():
            return None
        return DrawnValue(found[self.operator], tuple(None if mask is None else found[mask] for mask in self.masks))

    def operators(self) -> set[int]:
        return {self.operator, *(mask for mask in self.masks if mask is not None)}


@dataclass(frozen=True, slots=True)
class Way:
    """One path through a step, or two of which a condition chooses."""

    drawn: tuple[DrawnValue | None, ...] = ()
    """Random draws, in order; None where the program has no use for it."""
    gradients: frozenset[str] = frozenset()
    """Names of the parameters that have a gradient."""
    choice: tuple[int, Way, Way] | None = None
    """The operator, bool[], that chooses, the path where it holds, and the other one; None if this is one path."""

    @classmethod
    def of(cls, condition: int, held: Way, otherwise: Way) -> Way:
        """One of two, by a condition; nothing of a path that is like the other remains."""
        return held if held == otherwise else cls(choice=(condition, held, otherwise))

    def placed(self, place: Placed) -> Way:
        """The way in other values. Its conditions have to be there."""
        if self.choice is None:
            drawn = (None if one is None else one.placed(place) for one in self.drawn)
            return Way(drawn=tuple(drawn), gradients=self.gradients)
        condition, held, otherwise = self.choice
        there = place(condition)
        assert there is not None
        return Way.of(there, held.placed(place), otherwise.placed(place))

    def conditions(self) -> list[int]:
        """The operators that choose."""
        if self.choice is None:
            return []
        condition, held, otherwise = self.choice
        return [condition, *held.conditions(), *otherwise.conditions()]

    def paths(self) -> frozenset[tuple[int, frozenset[str]]]:
        """Number of draws and names of gradients of every path."""
        if self.choice is None:
            return frozenset({(len(self.drawn), self.gradients)})
        _, held, otherwise = self.choice
        return held.paths() | otherwise.paths()

    def operators(self) -> set[int]:
        """All operators that are named."""
        if self.choice is None:
            return {operator for one in self.drawn if one is not None for operator in one.operators()}
        condition, held, otherwise = self.choice
        return {condition} | held.operators() | otherwise.operators()

    def taken(self, holds: Callable[[int], bool]) -> Way:
        """The path that a step takes. holds: what an operator gives."""
        if self.choice is None:
            return self
        condition, held, otherwise = self.choice
        return (held if holds(condition) else otherwise).taken(holds)
