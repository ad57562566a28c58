"""Deciding the elements in doubt: the ends of their error intervals and what a log says of them, all in FP32 and in one
loop, because they are few and a library call costs more than they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.marking import TWO_UNITS, ZERO

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

_BLOCK = 512
"""Elements that are looked at twice while they are in the first level of the cache."""

DOWN, UP, VALUE = 0, 1, 2
"""`roundlog.log.Decision`."""


@njit(cache=True, nogil=True, error_model="numpy")
def _ends(y: Any, d: Any, factor: float, low: Any, high: Any) -> None:
    for i in range(len(y)):
        v = y[i]
        reach = d[i] * factor + abs(v) * TWO_UNITS
        low[i] = np.float32(v - reach) + ZERO
        high[i] = np.float32(v + reach) + ZERO


def ends(y: F64, d: F64, factor: float) -> tuple[F32, F32]:
    """y, d: float64[n] -> float32[n] each: `roundlog.arithmetic.round_interval` of these, bit for bit."""
    low, high = np.empty(len(y), dtype=np.float32), np.empty(len(y), dtype=np.float32)
    _ends(y, d, factor, low, high)
    return low, high


_MAGNITUDE = 0x7FFFFFFF


@njit(inline="always")
def ordinal(words: Any) -> Any:
    """`roundlog.arithmetic.formats.ordinal`, and its own inverse."""
    return words if words >= 0 else -(words & _MAGNITUDE)


@njit(cache=True, nogil=True, error_model="numpy")
def _judge(
    y: Any, d: Any, near: float, guard: float, far: float, low: Any, upper: Any, two: Any, doubtful: Any, spare: Any
) -> int:
    """spare: float32[3, _BLOCK]. Two loops for every block of elements, of which the first one is vector code."""
    highs, lowest, highest = spare[0], spare[1], spare[2]
    below, above = lowest.view(np.int32), highest.view(np.int32)
    count = 0
    for begin in range(0, len(y), _BLOCK):
        size = min(_BLOCK, len(y) - begin)
        values, bounds = y[begin : begin + size], d[begin : begin + size]
        lows, uppers = low[begin : begin + size], upper[begin : begin + size]
        unbounded = 0
        for i in range(size):
            v = values[i]
            unbounded += not abs(v) < np.inf
            extra = abs(v) * TWO_UNITS
            reach = bounds[i] * near + extra
            lows[i], highs[i] = np.float32(v - reach) + ZERO, np.float32(v + reach) + ZERO
            uppers[i] = np.float32(v + (bounds[i] * guard + extra)) + ZERO
            reach = bounds[i] * far + extra
            lowest[i], highest[i] = np.float32(v - reach) + ZERO, np.float32(v + reach) + ZERO
        if unbounded:
            return -1
        for i in range(size):
            doubtful[count] = begin + i
            count += lows[i] != highs[i]
            two[begin + i] = ordinal(np.int64(above[i])) - ordinal(np.int64(below[i])) == 1
    return count


def judge(y: F64, d: F64, near: float, guard: float, far: float) -> tuple[F32, I64, F32, Bool] | None:
    """y, d: float64[n]; the factors by which d reaches. Returns y - near d, rounded; the positions, ascending, where
    y - near d and y + near d round to different numbers; y + guard d, rounded; whether y - far d and y + far d round to
    adjacent numbers. None if a y is NaN or infinite."""
    low, upper, two = np.empty(len(y), np.float32), np.empty(len(y), np.float32), np.empty(len(y), np.bool_)
    doubtful = np.empty(len(y), np.int64)
    count = _judge(y, d, near, guard, far, low, upper, two, doubtful, np.empty((3, _BLOCK), np.float32))
    return None if count < 0 else (low, doubtful[:count], upper, two)


@njit(cache=True, nogil=True, error_model="numpy")
def _write_down(right: Any, upper: Any, two: Any, decisions: Any, values: Any) -> Any:
    words = right.view(np.uint32)
    count = 0
    for i in range(len(right)):
        if two[i]:
            decisions[i] = UP if right[i] == upper[i] else DOWN
        else:
            decisions[i] = VALUE
            values[count] = words[i]
            count += 1
    return count


def write_down(right: F32, upper: F32, two: Bool) -> tuple[U8, U32]:
    """right: float32[n], the correct roundings; upper and two: as `judge` gives them. Returns uint8[n], the decisions;
    uint32[m], the bits of those that are logged themselves."""
    decisions, values = np.empty(len(right), np.uint8), np.empty(len(right), np.uint32)
    count = _write_down(right, upper, two, decisions, values)
    return decisions, values[:count]


CERTAIN, FOLLOWED, CONTRADICTED, SAMPLED, IMPOSSIBLE, MISSING = range(6)
"""`roundlog.rounding.follow.ElementVerdict`."""


@njit(cache=True, nogil=True, error_model="numpy")
def _weigh(
    y: Any,
    d: Any,
    elements: Any,
    near: float,
    far: float,
    logged: Any,
    decisions: Any,
    values: Any,
    sampled: Any,
    out: Any,
    verdicts: Any,
    spare: Any,
) -> None:
    words = spare.view(np.int32)
    entry = value = 0
    for i in range(len(y)):
        v = y[i]
        extra = abs(v) * TWO_UNITS
        reach = d[i] * near + extra
        low, high = np.float32(v - reach) + ZERO, np.float32(v + reach) + ZERO
        while entry < len(logged) and logged[entry] < elements[i]:
            value += decisions[entry] == VALUE
            entry += 1
        out[i] = low
        if entry == len(logged) or logged[entry] != elements[i]:
            verdicts[i] = CERTAIN if low == high else MISSING
            continue
        reach = d[i] * far + extra
        far_low, far_high = np.float32(v - reach) + ZERO, np.float32(v + reach) + ZERO
        spare[0], spare[1] = far_low, far_high
        one_boundary = ordinal(np.int64(words[1])) - ordinal(np.int64(words[0])) == 1
        up, by_value = decisions[entry] == UP, decisions[entry] == VALUE
        # A logged -0 is the +0 that an inexact operator gives.
        said = values[value] + ZERO if by_value else ZERO
        if low == high:
            agrees = said == low if by_value else one_boundary and (far_high if up else far_low) == low
            verdicts[i] = CERTAIN if agrees else CONTRADICTED
            continue
        possible = low <= said <= high if by_value else one_boundary
        out[i] = said if by_value else high if up else low
        verdicts[i] = (SAMPLED if sampled[i] else FOLLOWED) if possible else IMPOSSIBLE


def weigh(
    y: F64, d: F64, elements: I64, near: float, far: float, entries: tuple[I64, U8, F32], sampled: Bool
) -> tuple[F32, U8]:
    """y, d: float64[n]; elements: int64[n], ascending; the factors by which d reaches; entries: what is logged, with a
    value for each decision that is one; sampled: bool[n]. Returns float32[n] and uint8[n]: what
    `roundlog.rounding.follow` says of 32 bits."""
    out, verdicts = np.empty(len(y), np.float32), np.empty(len(y), np.uint8)
    _weigh(y, d, elements, near, far, *entries, sampled, out, verdicts, np.empty(2, np.float32))
    return out, verdicts
