"""Types of traced tensors as the user's code sees them.

While a step is traced, its tensors are fake ones. What code keeps by type (`cache[type(x)]`, a table of functions)
would then be looked for, and made anew, under a type that no training has. So the user's code sees the type that the
tensor stands for. A cache that a former step has filled is found as in training; one that counts, holds tensors or is
emptied is followed like everything else that stands in a dictionary: there is no other rule for caches."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from roundlog.capture.tracing.counters import Counter
from roundlog.capture.tracing.logged import LoggedNumber

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
