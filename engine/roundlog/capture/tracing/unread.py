"""Things that a step may not read, and those that stand in for them while it is traced: they notice every read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roundlog.capture.errors import CaptureError

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
