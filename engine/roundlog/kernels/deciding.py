"""Deciding the elements in doubt: the ends of their error intervals, what a log says of them, and their sums, all in
FP32 and in one loop, because they are few and a library call costs more than they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_TWO_UNITS = 2.0 * 2.0**-53
_ZERO = np.float32(0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def _ends(y: Any, d: Any, factor: float, low: Any, high: Any) -> None:
    for i in range(len(y)):
        v = y[i]
        reach = d[i] * factor + abs(v) * _TWO_UNITS
        low[i] = np.float32(v - reach) + _ZERO
        high[i] = np.float32(v + reach) + _ZERO


def ends(y: F64, d: F64, factor: float) -> tuple[F32, F32]:
    """y, d: float64[n] -> float32[n] each: `roundlog.arithmetic.round_interval` of these, bit for bit."""
    low, high = np.empty(len(y), dtype=np.float32), np.empty(len(y), dtype=np.float32)
    _ends(y, d, factor, low, high)
    return low, high


_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000


@njit(inline="always")
def ordinal(words: Any) -> Any:
    """`roundlog.arithmetic.bits.ordinal`, and its own inverse."""
    return words if words >= 0 else -(words & _MAGNITUDE)


@njit(cache=True, nogil=True, error_model="numpy")
def _judge(y: Any, d: Any, near: float, guard: float, far: float, low: Any, upper: Any, flags: Any, spare: Any) -> None:
    words = spare.view(np.int32)
    for i in range(len(y)):
        v = y[i]
        extra = abs(v) * _TWO_UNITS
        reach = d[i] * near + extra
        low[i] = np.float32(v - reach) + _ZERO
        flags[0, i] = low[i] != np.float32(v + reach) + _ZERO
        upper[i] = np.float32(v + (d[i] * guard + extra)) + _ZERO
        reach = d[i] * far + extra
        spare[0], spare[1] = np.float32(v - reach) + _ZERO, np.float32(v + reach) + _ZERO
        flags[1, i] = ordinal(np.int64(words[1])) - ordinal(np.int64(words[0])) == 1


def judge(y: F64, d: F64, near: float, guard: float, far: float) -> tuple[F32, F32, Bool, Bool]:
    """y, d: float64[n]; the factors by which d reaches. Returns, of every element: y - near d, rounded; y + guard d,
    rounded; whether y - near d and y + near d round to different numbers; whether y - far d and y + far d round to
    adjacent ones."""
    low, upper, flags = np.empty(len(y), np.float32), np.empty(len(y), np.float32), np.empty((2, len(y)), np.bool_)
    _judge(y, d, near, guard, far, low, upper, flags, np.empty(2, np.float32))
    return low, upper, flags[0], flags[1]


@njit(cache=True, nogil=True, error_model="numpy")
def _round_pairs(high: Any, low: Any, error: Any, unit: float, out: Any, undecided: Any, spare: Any) -> None:
    words = spare.view(np.int32)
    limit = 2.0**128
    for i in range(len(high)):
        h, rest = high[i], low[i]
        finite = abs(h) < np.inf
        nearest = np.float32(h if finite else 0.0) + _ZERO
        spare[0] = nearest
        o = ordinal(np.int64(words[0]))
        for side in range(2):
            moved = min(max(o + 2 * side - 1, -_INFINITY), _INFINITY)
            words[side] = np.int32(moved if moved >= 0 else -moved - 2**31)
        lower, upper = spare[0], spare[1]
        middle = min(max(np.float64(nearest), -limit), limit)
        below = (min(max(np.float64(lower), -limit), limit) + middle) / 2
        above = (middle + min(max(np.float64(upper), -limit), limit)) / 2
        to_below, to_above = (h - below) + rest, (above - h) - rest
        slack = error[i] + 4 * unit * (abs(rest) + min(abs(h - below), abs(above - h)) * unit)
        told = abs(to_below) > slack and abs(to_above) > slack and abs(nearest) < np.inf
        exact = error[i] == 0.0 and rest == 0.0
        undecided[i] = not (finite and (told or exact))
        out[i] = (lower if to_below < 0 else upper if to_above < 0 else nearest) + _ZERO


def round_pairs(high: F64, low: F64, error: F64, unit: float) -> tuple[F32, Bool]:
    """`roundlog.arithmetic.sums.round_double_double` to 32 bits, bit for bit where it decides; unit: 2^-53."""
    out, undecided = np.empty(len(high), np.float32), np.empty(len(high), np.bool_)
    _round_pairs(high, low, error, unit, out, undecided, np.empty(2, np.float32))
    return out, undecided
