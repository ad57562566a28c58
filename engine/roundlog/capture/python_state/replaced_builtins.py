"""Numbers, functions and types of Python's as the user's code sees them while a step is traced.

Numbers that are computed from the values of steps, as a running mean of losses is, may be added up and shown, and
nothing else, so that no step depends on them. A `LoggedNumber` stands in the place of such a number.

`min`, `max` and those of `math` follow numbers which steps change. By themselves they would ask for the number, and
be another question at every step.

The tensors of a trace are fake ones. What code keeps by type (`cache[type(x)]`, a table of functions) would be
looked for, and made anew, under a type that no training has. So the user's code sees the type that the tensor stands
for. A cache that a former step has filled is found as in training; one that counts, holds tensors or is emptied is
followed like everything else that stands in a dictionary: there is no other rule for caches."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Never

import torch
from numba.core.registry import cpu_target
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from roundlog.capture.errors import CaptureError, UnknownValueError, place_of_call
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


Variable = tuple[dict[str, Any], str]
"""A global variable: those of its module, and its name."""


def followed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers that follows those which steps change."""

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        first = next((one for one in arguments if type(one) is Counter), None)
        if first is None or options or not all(type(one) in (Counter, bool, int, float) for one in arguments):
            return function(*arguments, **options)
        return first.called(function, arguments)

    return called


@functools.cache
def load_compiler() -> None:
    """Have Numba look up the functions of `math` and Python, which it does once, while they are Python's own."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


_IN_MATH = {name: function for name, function in vars(math).items() if callable(function) and not name.startswith("_")}

REPLACED: list[tuple[object, str, Callable[..., Any]]] = [
    *((math, name, followed(function)) for name, function in _IN_MATH.items()),
    *((builtins, name, followed(getattr(builtins, name))) for name in ("min", "max")),
]
"""(module, name, function) to be put there while a step is traced."""

_BY_ID = {id(function): followed(function) for function in _IN_MATH.values()}


def is_followed(thing: object) -> bool:
    """Whether a global variable holds a function of `math`."""
    return id(thing) in _BY_ID


@contextmanager
def followed_by_name(variables: Iterable[Variable]) -> Iterator[None]:
    """While this is active, global variables that hold functions of `math` (`from math import cos`) hold those that
    follow numbers."""
    before = [(module, name, module[name]) for module, name in variables if is_followed(module.get(name))]
    for module, name, function in before:
        module[name] = _BY_ID[id(function)]
    try:
        yield
    finally:
        for module, name, function in before:
            module[name] = function


Variables = dict[str, Any]


class _TypeOfTypes(type):
    """Makes `SeenType` behave as `type` does itself."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not SeenType:  # a metaclass of the user's
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        kind = type(args[0])
        if kind is FakeTensor:
            return torch.Tensor
        if kind in (Counter, LoggedNumber):
            return args[0].__class__  # which notes that it was asked
        return SeenType if kind in (type, _TypeOfTypes) else kind

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, type) if cls is SeenType else super().__instancecheck__(thing)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, type) if cls is SeenType else super().__subclasscheck__(kind)

    def __eq__(cls, other: object) -> bool:
        return cls is other or (cls is SeenType and other is type)

    def __hash__(cls) -> int:
        return hash(type) if cls is SeenType else super().__hash__()


class SeenType(type, metaclass=_TypeOfTypes):
    """`type`, but that a traced tensor is a `torch.Tensor`, and a counted number a number."""


SeenType.__name__ = SeenType.__qualname__ = "type"
SeenType.__module__ = "builtins"


def seen_length(thing: Any) -> Any:
    """`len`, but of rows that a mask chooses their number, which is no number of Python's yet."""
    if type(thing) is FakeTensor and thing.ndim and type(thing.shape[0]) is not int:
        return thing.shape[0]
    return len(thing)


def _of_two(name: str, symbolic: Any) -> Any:
    def function(*given: Any, **options: Any) -> Any:
        if len(given) == 2 and not options and any(type(number) is torch.SymInt for number in given):
            return symbolic(*given)
        return getattr(builtins, name)(*given, **options)  # which is another while a step is traced

    return function


SEEN = {
    "type": SeenType,
    "len": seen_length,
    "max": _of_two("max", torch.sym_max),
    "min": _of_two("min", torch.sym_min),
}
"""Names of Python's, and what the user's code finds under them."""


@contextmanager
def types_as_in_training(modules: Iterable[Variables]) -> Iterator[None]:
    """While this is active, `type(x)` is what it is in training, and so are `len`, `max` and `min` of chosen rows.

    modules: global variables of the modules whose functions ask for them."""
    named = [(variables, name) for variables in modules for name in SEEN if name not in variables]
    for variables, name in named:
        variables[name] = SEEN[name]
    try:
        yield
    finally:
        for variables, name in named:
            if variables.get(name) is SEEN[name]:
                del variables[name]
