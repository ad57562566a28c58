"""Numbers of Python's that are computed from the values of steps, as a running mean of losses is: they may be added up
and shown, and nothing else, so that no step depends on them.

While a step is traced, a `LoggedNumber` stands in the place of such a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

import torch
from torch.utils._pytree import tree_leaves

from roundlog.capture.errors import CaptureError, UnknownValueError
from roundlog.capture.lines import place_of_call
from roundlog.capture.python_state.counters import Counter
from roundlog.capture.tracing.decisions import noted


class UnseenText(str):
    """The text of a number that there is not yet. It can be shown, but not looked at."""

    def _asked(self, *arguments: Any) -> Any:
        with noted():
            raise CaptureError(
                f"the step looks into the text of a number that it computes{place_of_call()}: decide by torch.where"
            )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __len__ = __getitem__ = __iter__ = _asked
    __hash__ = _asked
    startswith = endswith = find = index = count = split = strip = _asked  # type: ignore[assignment]


def is_logged(thing: object) -> bool:
    """Whether it stands for a number that comes from values of a step."""
    return type(thing) in (LoggedNumber, torch.SymFloat, torch.SymInt)


class LoggedNumber:
    """A number from values of steps, by a name for messages."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def of(cls, terms: tuple[Any, ...]) -> LoggedNumber:
        """A result of such a number, or of one that `.item()` gives and a counted one."""
        names = (term._name for term in terms if type(term) is LoggedNumber)
        counted = (name for term in terms if type(term) is Counter for name in term.names)
        mixed = (f"a number out of a tensor (.item()) or of random together with {name}" for name in counted)
        return cls(next(names, next(mixed, "a number")))

    def _refused(self, *arguments: Any, **options: Any) -> Never:
        with noted():
            # As far as is known: the values of buffers that no step writes may be known.
            raise UnknownValueError(
                f"the step uses {self._name}, a number of Python that steps compute from their values"
                f"{place_of_call()}: it may be added up and printed in an f-string, and no more; compute with the "
                "tensor itself, and keep what the step needs in a buffer that holds a tensor from the start"
            )

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Never:
        given = (thing for thing in tree_leaves((args, kwargs)) if type(thing) is cls)
        next(given, cls("a number"))._refused()

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance: it may be an int or a float
        self._refused()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refused()

    def __str__(self) -> str:
        return UnseenText("?")

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return UnseenText("?")

    def __copy__(self) -> LoggedNumber:
        return self

    def __deepcopy__(self, memory: object) -> LoggedNumber:
        return self

    def __round__(self, digits: int | None = None) -> LoggedNumber:
        # Without digits it is an error for NaN and infinities, which somebody may catch.
        return self._refused() if digits is None else -self

    def __neg__(self) -> LoggedNumber:
        return LoggedNumber(self._name)

    __pos__ = __abs__ = __neg__

    def __add__(self, other: Any) -> LoggedNumber:
        return LoggedNumber.of((self, other)) if _is_number(other) else self._refused()

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __add__

    def __truediv__(self, other: Any) -> LoggedNumber:
        # A division by zero is an error, which somebody may catch.
        if type(other) not in (bool, int, float, Counter):
            self._refused()
        if other == 0:
            raise ZeroDivisionError("division by zero")
        return LoggedNumber.of((self, other))

    __bool__ = __int__ = __float__ = __index__ = __complex__ = __hash__ = __array__ = __reduce_ex__ = _refused
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __getitem__ = __iter__ = __contains__ = _refused
    __floordiv__ = __mod__ = __pow__ = __divmod__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _refused
    __rdivmod__ = __floor__ = __ceil__ = __trunc__ = __invert__ = _refused
    __lshift__ = __rshift__ = __and__ = __or__ = __xor__ = __rlshift__ = __rrshift__ = __rand__ = __ror__ = __rxor__ = (
        _refused
    )


def _is_number(thing: object) -> bool:
    return type(thing) in (bool, int, float, Counter) or is_logged(thing)


def with_logged(method: Callable[[Any, Any], Any], named: str) -> Callable[[Any, Any], Any]:
    """An operation of what `.item()` gives, as `SymFloat.__add__`, that a counted or a logged number may be given to.

    named: the operation's name."""
    own = getattr(LoggedNumber, named)

    def computed(value: Any, other: Any) -> Any:
        if type(other) in (Counter, LoggedNumber):
            return own(LoggedNumber.of((value, other)), other)
        return method(value, other)

    return computed
