"""Random numbers of Python's `random` and of `numpy.random`, drawn by torch instead.

A program has no state of theirs. While this is active, their functions draw from a generator of torch's own: what they
give is a number that a traced step draws like any other. Arrays, and what these functions draw in other ways, stay
with them, and are refused for the state that they move."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import is_of_torch, place_of_call

GENERATOR = torch.Generator().manual_seed(0x2ED3_98E3_0725_C97C)
"""Generator of their numbers: another than torch's, which activation checkpointing puts back."""

_Function = Callable[..., Any]


@contextmanager
def drawn_by_torch() -> Iterator[None]:
    """While this is active, the functions of `random` and `numpy.random` that give one number draw by torch."""
    tables: tuple[tuple[Any, dict[str, _Function]], ...] = ((random, _OF_PYTHON), (np.random, _OF_NUMPY))
    before = [(module, name, getattr(module, name), function) for module, of in tables for name, function in of.items()]
    for module, name, own, function in before:
        setattr(module, name, _instead(own, function))
    try:
        yield
    finally:
        for module, name, own, _ in before:
            setattr(module, name, own)


def _instead(own: _Function, function: _Function) -> _Function:
    def draw(*args: Any, **kwargs: Any) -> Any:
        if is_of_torch(sys._getframe(1).f_code.co_filename):
            return own(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except TypeError:  # arguments that give arrays, or none that the function takes
            result = NotImplemented
        return own(*args, **kwargs) if result is NotImplemented else result

    return draw


def _uniform(low: float = 0.0, high: float = 1.0) -> Any:
    if not _are_numbers(low, high) or low > high:
        return NotImplemented
    return _number(torch.empty(()).uniform_(float(low), float(high), generator=GENERATOR))


def _normal(mean: float = 0.0, deviation: float = 1.0) -> Any:
    if not _are_numbers(mean, deviation):
        return NotImplemented
    return mean + deviation * _number(torch.randn((), generator=GENERATOR))


def _beta(a: float, b: float) -> Any:
    if not _are_numbers(a, b) or a <= 0 or b <= 0:
        return NotImplemented
    return _number(torch._sample_dirichlet(torch.tensor([float(a), float(b)]), generator=GENERATOR)[0])


def _gamma(shape: float, scale: float = 1.0) -> Any:
    if not _are_numbers(shape, scale) or shape <= 0:
        return NotImplemented
    return scale * _number(torch._standard_gamma(torch.tensor(float(shape)), generator=GENERATOR))


def _are_numbers(*given: Any) -> bool:
    return all(isinstance(one, int | float | np.number) for one in given)


def _below(start: int, stop: int) -> Any:
    """A whole number from start to stop - 1."""
    if not all(isinstance(limit, int | np.integer) for limit in (start, stop)) or start >= stop:
        return NotImplemented
    return _number(torch.randint(int(start), int(stop), (), generator=GENERATOR))


def _number(drawn: torch.Tensor) -> Any:
    return drawn.item()


def _randint_of_numpy(low: int, high: int | None = None) -> Any:
    return _below(0, low) if high is None else _below(low, high)


def _randrange(start: int, stop: int | None = None) -> Any:
    return _below(0, start) if stop is None else _below(start, stop)


def _permutation(count: int) -> Any:
    if not isinstance(count, int | np.integer):
        return NotImplemented
    places = torch.randperm(int(count), generator=GENERATOR)
    return places.numpy() if type(places) is torch.Tensor else places


def _seeded(*_: Any, **__: Any) -> Any:
    raise CaptureError(
        f"the step sets a seed of Python's or numpy's random numbers{place_of_call()}: set it before the first step"
    )


_OF_PYTHON: dict[str, _Function] = {
    **dict.fromkeys(("seed", "setstate"), _seeded),
    "random": lambda: _uniform(),
    "uniform": lambda a, b: _uniform(a, b),
    "randint": lambda a, b: _below(a, b + 1),
    "randrange": _randrange,
    "gauss": _normal,
    "normalvariate": _normal,
    "betavariate": _beta,
    "gammavariate": _gamma,
}
_OF_NUMPY: dict[str, _Function] = {
    **dict.fromkeys(("seed", "set_state"), _seeded),
    **dict.fromkeys(("rand", "random", "random_sample"), lambda: _uniform()),
    **dict.fromkeys(("randn", "standard_normal"), lambda: _normal()),
    "uniform": _uniform,
    "beta": lambda a, b: _beta(a, b),
    "gamma": lambda shape, scale=1.0: _gamma(shape, scale),
    "normal": lambda loc=0.0, scale=1.0: _normal(loc, scale),
    "randint": _randint_of_numpy,
    "permutation": _permutation,
}
