"""Rounding FP64 values to FP32, and marking those near a rounding boundary, in one read.

The loops compute, for every element, what `roundlog.arithmetic.round_interval` computes: reach = d * factor + |y| * 2u,
the FP32 values of y - reach and y + reach. An element is marked if the two differ, if it is NaN, or if it is too large
for FP32. Only blocks in which something was marked are read a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

TWO_UNITS = 2.0 * 2.0**-53
"""2u, where u = 2^-53 is the unit roundoff of FP64."""
ZERO = np.float32(0.0)
"""Added to what is rounded: a zero has no sign."""
LARGEST = np.float32(np.finfo(np.float32).max)
NONE = cast("int", np.int64(0))
"""A counter's 0. A literal 0 has a type of its own, for which numba compiles a loop a second time."""
_BLOCK = 1024
"""Elements that are looked at twice while they are in the first level of the cache."""


@dataclass(frozen=True, slots=True)
class AmbiguousPart:
    """The marked elements."""

    indices: I64
    """int64[n], flat indices in the output."""
    y: F64
    """float64[n]: the approximations there."""
    d: F64
    """float64[n]: their bounds."""


@njit(cache=True, nogil=True, error_model="numpy")
def _ascend(indices: Any) -> bool:
    ascend = True
    for i in range(1, len(indices)):
        ascend &= indices[i] > indices[i - 1]
    return ascend


@njit(cache=True, nogil=True, error_model="numpy")
def _all_below(values: Any, limit: float) -> bool:
    below = True
    for i in range(len(values)):
        below &= abs(values[i]) < limit
    return below


def all_below(values: F64, limit: float) -> bool:
    """Whether all magnitudes are below a limit; NaN is not. In one loop, because numpy's calls cost more than so few
    numbers."""
    return bool(_all_below(values, limit))


def ascending(indices: I64, y: F64, d: F64) -> AmbiguousPart:
    """Elements in the order of their indices, each once."""
    if _ascend(indices):
        return AmbiguousPart(indices, y, d)
    order = np.argsort(indices)
    return AmbiguousPart(indices[order], y[order], d[order])


@njit(cache=True, nogil=True, error_model="numpy")
def _longer(array: Any, least: int) -> Any:
    """The array itself, or a copy, with room for so many elements at least."""
    if least <= len(array):
        return array
    copied = np.empty(max(least, len(array) + len(array) // 2), array.dtype)
    copied[: len(array)] = array
    return copied


@njit(cache=True, nogil=True, error_model="numpy")
def mark_block(y: Any, d: Any, size: int, factor: float, out: Any, first: int, near: Any, n: int) -> Any:
    """Round y[:size], with the bounds d, to out[first:], and write down what is marked behind the n elements in near.
    Returns near, longer if there was no room, and n. y is read a second time only if something is marked."""
    target = out[first : first + size]
    marked = 0
    for i in range(size):
        v = y[i]
        reach = d[i] * factor + abs(v) * TWO_UNITS
        low = np.float32(v - reach)
        marked += (low != np.float32(v + reach)) | (abs(low) > LARGEST)
        target[i] = low + ZERO
    if marked == 0:
        return near, n
    indices, values, bounds = near
    indices, values, bounds = _longer(indices, n + marked), _longer(values, n + marked), _longer(bounds, n + marked)
    for i in range(size):
        v = y[i]
        reach = d[i] * factor + abs(v) * TWO_UNITS
        low = np.float32(v - reach)
        if low != np.float32(v + reach) or abs(low) > LARGEST:
            indices[n], values[n], bounds[n] = first + i, v, d[i]
            n += 1
    return (indices, values, bounds), n


@njit(cache=True, nogil=True, error_model="numpy")
def nothing_marked() -> Any:
    """What `mark_block` begins with."""
    return np.empty(0, np.int64), np.empty(0), np.empty(0)


@njit(cache=True, nogil=True, error_model="numpy")
def _flat_blocks(
    y: Any, d: Any, relative: float, absolute: float, factor: float, out: Any, start: int, stop: int
) -> Any:
    near, n, own = nothing_marked(), NONE, np.empty(_BLOCK)
    for first in range(start * _BLOCK, min(stop * _BLOCK, len(y)), _BLOCK):
        values = y[first : first + _BLOCK]
        bound = own
        if len(d):
            bound = d[first : first + _BLOCK]
        else:
            for i in range(len(values)):
                bound[i] = abs(values[i]) * relative + absolute
        near, n = mark_block(values, bound, len(values), factor, out, first, near, n)
    return near[0][:n], near[1][:n], near[2][:n]


_NO_BOUNDS = np.zeros(0, dtype=np.float64)


def mark_flat(
    y: F64, d: F64 | None, factor: float, out: F32, *, first: int = 0, relative: float = 0.0, absolute: float = 0.0
) -> list[AmbiguousPart]:
    """y: float64[n]; d: float64[n], or None for d = |y| * relative + absolute. Writes the rounded elements to out
    (float32[n]); the marked ones' indices count from `first`. Part by part of y, in any order."""
    bounds, found = _NO_BOUNDS if d is None else d, list[AmbiguousPart]()

    def part(start: int, stop: int) -> None:
        indices, *more = _flat_blocks(y, bounds, relative, absolute, factor, out, start, stop)
        found.append(AmbiguousPart(indices + first, *more))

    in_parts(part, -(-len(y) // _BLOCK), y.size)
    return found
