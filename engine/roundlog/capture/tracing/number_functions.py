"""Functions of Python's that are given numbers which steps change: `min`, `max` and those of `math`, whose results are
followed as the numbers are. By themselves they would ask for the number, and be another question at every step."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.registry import cpu_target

from roundlog.capture.tracing.counters import Counter

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
