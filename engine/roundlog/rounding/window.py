"""A part of an operator's output, for whoever computes it part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from roundlog.log import Decision, Entries

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """Positions start <= p < stop of one axis of a tensor of this shape. Flat indices are in C order: *whole* in the
    tensor, *local* in the part."""

    shape: tuple[int, ...]
    axis: int
    start: int
    stop: int

    @property
    def _inner(self) -> int:
        return prod(self.shape[self.axis + 1 :])

    def entries(self, log: Entries) -> Entries:
        """The entries of the whole output that are for the part, under their local indices."""
        line, within = np.divmod(log.indices, self._inner)
        outer, position = np.divmod(line, self.shape[self.axis])
        inside = (position >= self.start) & (position < self.stop)
        local = (outer * (self.stop - self.start) + position - self.start) * self._inner + within
        of_values = inside[log.decisions == int(Decision.VALUE)]
        return Entries(local[inside], log.decisions[inside], log.values[of_values])

    def entries_of_whole(self, local: Entries) -> Entries:
        """The entries of the part under their whole indices, ascending."""
        return in_order([Entries(self.whole(local.indices), local.decisions, local.values)])

    def whole(self, local: Index) -> Index:
        """Whole indices of local ones."""
        line, within = np.divmod(local, self._inner)
        outer, position = np.divmod(line, self.stop - self.start)
        found: Index = (outer * self.shape[self.axis] + position + self.start) * self._inner + within
        return found

    def whole_one(self, local: int) -> int:
        """Whole index of one local index."""
        return int(self.whole(np.array([local], dtype=np.int64))[0])


def in_order(parts: Sequence[Entries]) -> Entries:
    """Entries of parts of one output, none of which is in two parts, as those of the whole: ascending."""
    indices = np.concatenate([one.indices for one in parts])
    decisions = np.concatenate([one.decisions for one in parts])
    values = np.concatenate([one.values for one in parts])
    if (indices[1:] > indices[:-1]).all():
        return Entries(indices, decisions, values)
    order = np.argsort(indices, kind="stable")
    by_value = decisions == int(Decision.VALUE)
    # The place of every value among the values, for those that have one.
    place = np.cumsum(by_value) - 1
    return Entries(indices[order], decisions[order], values[place[order][by_value[order]]])
