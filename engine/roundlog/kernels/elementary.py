"""Elementary functions of FP32 numbers: evaluated in FP64, rounded to FP32 and marked in one read.

Each FP64 value lies within 8 u (u = 2^-53) of the mathematical one, relatively, on every FP32 argument:
docs/numerics.md has the proof, for these operations in this order, with FMA where the machine has it or without. Where
a value lies beyond FP64's range it is infinite, or 0 below 2^-1000. The argument is reduced as in Cody and Waite,
*Software Manual for the Elementary Functions* (1980); the polynomial is Taylor's.
"""

from __future__ import annotations

from math import factorial, inf
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.marking import NONE, AmbiguousPart, mark_block, nothing_marked
from roundlog.kernels.number_words import of_word as of_word
from roundlog.kernels.number_words import word_of as word_of
from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

_EXP, _EXPM1, _TANH = range(3)
_CODES = {"exp": _EXP, "expm1": _EXPM1, "tanh": _TANH}
FUNCTIONS = tuple(_CODES)

LOG2_E = float.fromhex("0x1.71547652b82fep0")
LN2_HIGH = float.fromhex("0x1.62e42fefa38p-1")
"""log(2) to 42 bits: its product with an integer of 11 is exact."""
LN2_LOW = float.fromhex("0x1.ef35793c7673p-45")
"""The rest of log(2)."""
SHIFT = 1.5 * 2.0**52
"""Added to a small number, leaves the nearest integer in the last bits of the sum."""

TOP = 709.0
"""exp of more is taken for infinite: it lies beyond 2^1022."""
BOTTOM = -694.0
"""exp of less is taken for 0: it lies below 2^-1001."""
LEAST = -50.0
"""expm1 of less is that of this, which lies within 2^-72 of -1, as they all do."""
MOST = 44.0
"""2 |x| above which tanh(x) is that of this half: within 2^-62 of 1, as they all are."""

_2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13 = (1 / factorial(i) for i in range(2, 14))

_BLOCK = 1024
"""Elements that are evaluated at once, and rounded while they are in the cache."""

_FMA = {"contract"}
"""A product and a sum may be one operation, rounded once. Only values are computed so, and each only once: what decides
about a value is not."""


@njit(inline="always", fastmath=_FMA)
def series(r: Any) -> Any:
    """(e^r - 1 - r) / r^2 for |r| <= log(2) / 2: Taylor's series, by Estrin's scheme, because operations that wait for
    each other take longer."""
    r2 = r * r
    low = (_2 + r * _3) + r2 * (_4 + r * _5)
    middle = (_6 + r * _7) + r2 * (_8 + r * _9)
    high = (_10 + r * _11) + r2 * (_12 + r * _13)
    r4 = r2 * r2
    return low + r4 * (middle + r4 * high)


@njit(inline="always", fastmath=_FMA)
def _reduced(c: Any) -> Any:
    """(2^k, e^r - 1) with c = k log(2) + r, k an integer and |r| hardly above log(2) / 2; |c| <= 709."""
    t = c * LOG2_E + SHIFT
    k = t - SHIFT
    r = (c - k * LN2_HIGH) - k * LN2_LOW
    # The last bits of t are those of k; they are moved into the exponent.
    return of_word((word_of(t) + 1023) << 52), r + (r * r) * series(r)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FMA)
def _evaluate(code: int, x: Any, y: Any, n: int) -> None:
    """y[i] = the function at x[i]. Comparisons are such that NaN goes through."""
    if code == _EXP:
        for i in range(n):
            v = np.float64(x[i])
            s, q = _reduced(v)
            w = s * (1.0 + q)
            w = 0.0 if v < BOTTOM else w
            y[i] = inf if v > TOP else w
    elif code == _EXPM1:
        for i in range(n):
            v = np.float64(x[i])
            s, q = _reduced(LEAST if v < LEAST else v)
            w = s * q + (s - 1.0)
            y[i] = inf if v > TOP else w
    else:
        for i in range(n):
            v = np.float64(x[i])
            c = 2.0 * abs(v)
            s, q = _reduced(MOST if c > MOST else c)
            # e^2|x| - 1, without cancellation.
            e = s * q + (s - 1.0)
            w = e / (e + 2.0)
            y[i] = -w if v < 0.0 else w


@njit(cache=True, nogil=True, error_model="numpy")
def _blocks(code: int, x: Any, relative: float, absolute: float, factor: float, out: Any, start: int, stop: int) -> Any:
    """Indices, values and bounds of the marked elements."""
    y, d, near, n = np.empty(_BLOCK), np.empty(_BLOCK), nothing_marked(), NONE
    for first in range(start * _BLOCK, min(stop * _BLOCK, len(x)), _BLOCK):
        source = x[first : first + _BLOCK]
        _evaluate(code, source, y, len(source))
        for i in range(len(source)):
            d[i] = abs(y[i]) * relative + absolute
        near, n = mark_block(y, d, len(source), factor, out, first, near, n)
    return near[0][:n], near[1][:n], near[2][:n]


def evaluate(name: str, x: F32) -> F64:
    """x: float32[n] -> float64[n]: one of FUNCTIONS, within 8 u."""
    y = np.empty(len(x), dtype=np.float64)
    _evaluate(_CODES[name], x, y, len(x))
    return y


def mark_function(
    name: str, x: F32, factor: float, out: F32, *, relative: float, absolute: float
) -> list[AmbiguousPart]:
    """x: float32[n], contiguous; name: one of FUNCTIONS, whose values err by no more than d = |y| * relative +
    absolute. Writes the rounded values to out (float32[n]); marks as `roundlog.kernels.marking` does, part by part of
    x, in any order."""
    code = _CODES[name]
    found: list[AmbiguousPart] = []
    # An element costs about four times what reading it does.
    in_parts(
        lambda start, stop: found.append(
            AmbiguousPart(*_blocks(code, x, relative, absolute, factor, out, start, stop))
        ),
        -(-len(x) // _BLOCK),
        4 * len(x),
    )
    return found
