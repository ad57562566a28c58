"""The ways through a step that decides by its values: what each draws, and which gradients it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Way:
    """One path through a step, or two of which a condition chooses."""

    drawn: tuple[int | None, ...] = ()
    """The operators that give what was drawn at random, in order; None where the program has no use for it."""
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

    def placed(self, places: Mapping[Any, int]) -> Way:
        """The same in a finished program. places: value -> operator."""
        if self.held is None or self.otherwise is None or self.condition is None:
            return replace(self, drawn=tuple(None if one is None else places.get(one) for one in self.drawn))
        return Way.of(places[self.condition], self.held.placed(places), self.otherwise.placed(places))

    def conditions(self) -> list[int]:
        """The operators that choose."""
        if self.held is None or self.otherwise is None or self.condition is None:
            return []
        return [self.condition, *self.held.conditions(), *self.otherwise.conditions()]

    def operators(self) -> set[int]:
        """All operators that are named."""
        if self.held is None or self.otherwise is None or self.condition is None:
            return {one for one in self.drawn if one is not None}
        return {self.condition} | self.held.operators() | self.otherwise.operators()

    def taken(self, holds: Callable[[int], bool]) -> Way:
        """The path that a step takes. holds: what an operator gives."""
        if self.held is None or self.otherwise is None or self.condition is None:
            return self
        return (self.held if holds(self.condition) else self.otherwise).taken(holds)
