"""Places in Python's objects that are followed from step to step, what stands in for their contents while a step is
traced, and what a traced step leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roundlog.capture.errors import CaptureError
from roundlog.capture.python_state.containers import Change, ContainerItem
from roundlog.capture.python_state.counters import Number
from roundlog.capture.python_state.snapshot import Snapshot

REMEDY = (
    "keep what steps change in buffers that hold tensors from the start, draw random numbers by torch, and print and "
    "log outside of the step"
)
_COUNT = "; a count that the step prints may stand in a tensor (count.add_(1), print(count.item()))"
"""Advice, for refusals."""


class _Unread:
    """Stands in for something that a step may not read, while it is traced, and notices when it is read."""

    is_read = False

    def _noticed(self, *arguments: Any, **options: Any) -> Any:
        self.is_read = True
        raise CaptureError("the step reads what it may not")  # replaced by the sentence of `_trace`


class Grown(_Unread, list[Any]):
    """A list that steps make longer."""

    _noticed = _Unread._noticed
    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __reversed__ = _noticed
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = __rmul__ = __str__ = __repr__ = _noticed
    pop = remove = clear = index = count = copy = sort = reverse = insert = _noticed


class Hidden(_Unread, dict[Any, Any]):
    """The state of an optimizer."""

    _noticed = _Unread._noticed
    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __reversed__ = _noticed
    get = keys = values = items = pop = popitem = setdefault = copy = update = clear = _noticed


def refuse_reads(hidden: Mapping[str, Hidden], grown: Mapping[str, Grown]) -> None:
    """Raises CaptureError if one of these has been read."""
    if states := [name for name in hidden if hidden[name].is_read]:
        raise CaptureError(f"the step reads {states[0]}, which every step changes: keep what the step needs in buffers")
    if read := [name for name in grown if grown[name].is_read]:
        raise CaptureError(f"the step reads {read[0]}, which every step makes longer: {REMEDY}{_COUNT}")


@dataclass(frozen=True, slots=True)
class Place(ContainerItem):
    """Place of a number."""

    @property
    def first(self) -> Number:
        """The number before the second step."""
        number: Number = self.container.saved[self.key]
        return number

    def get(self) -> Any:
        return self.container.read().get(self.key)

    def put(self, number: object) -> None:
        self.container.put(self.key, number)


@dataclass(slots=True)
class StepEnd:
    """Things that a traced step has left, on any of its paths."""

    changes: list[Change] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """Generators of random numbers."""
    toggled: list[str] = field(default_factory=list)
    """Tensors that require a gradient, or do not any more."""
    arrays: list[str] = field(default_factory=list)
    """Arrays that hold other values."""
    logged: list[str] = field(default_factory=list)
    """Numbers that come from values."""
    wrong: list[str] = field(default_factory=list)
    """Refusals."""

    def add(self, snapshot: Snapshot) -> None:
        """The end of one path."""
        self.changes += snapshot.changes()
        self.moved += snapshot.moved_generators()
        self.toggled += snapshot.toggled()
        self.arrays += snapshot.changed_arrays()
