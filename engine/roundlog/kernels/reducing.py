"""Sums of FP32 numbers in FP64, together with the sum of their magnitudes or squares, in one read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

_ANY_ORDER = {"reassoc", "contract"}
"""Along a row, numbers may be added in any order, squares with FMA or without: bounds allow for it, and one running sum
would be no vector instruction. Nothing else is computed in these loops."""

_COLUMNS = 1024
"""Columns whose running sums stay in the cache."""

_PART = 128
"""Columns that threads are given at least."""

_SHARE = 4
"""Four elements take as long as one of what threads are worth handing out for."""


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_ANY_ORDER)
def _sum_rows(x: Any, total: Any, magnitude: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        line = x[r]
        s, m = 0.0, 0.0
        for c in range(len(line)):
            v = np.float64(line[c])
            s += v
            m += abs(v)
        total[r] = s
        magnitude[r] = m


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_columns(x: Any, total: Any, magnitude: Any, left: int, right: int, start: int, stop: int) -> None:
    rows = x.shape[1]
    for outer in range(start, stop):
        for first in range(left, right, _COLUMNS):
            last = min(first + _COLUMNS, right)
            s, m = total[outer, first:last], magnitude[outer, first:last]
            # Four rows at a time: reading and writing the running sums would take longer than all else.
            for r in range(0, rows - rows % 4, 4):
                a, b = x[outer, r, first:last], x[outer, r + 1, first:last]
                c, d = x[outer, r + 2, first:last], x[outer, r + 3, first:last]
                for i in range(last - first):
                    p, q, v, w = np.float64(a[i]), np.float64(b[i]), np.float64(c[i]), np.float64(d[i])
                    s[i] += (p + q) + (v + w)
                    m[i] += (abs(p) + abs(q)) + (abs(v) + abs(w))
            for r in range(rows - rows % 4, rows):
                a = x[outer, r, first:last]
                for i in range(last - first):
                    p = np.float64(a[i])
                    s[i] += p
                    m[i] += abs(p)


def sum_rows(x: F32) -> tuple[F64, F64]:
    """x: float32[R, K] -> (float64[R] sums, float64[R] sums of magnitudes)."""
    total, magnitude = np.empty(len(x)), np.empty(len(x))
    in_parts(lambda start, stop: _sum_rows(x, total, magnitude, start, stop), len(x), x.size // _SHARE)
    return total, magnitude


def sum_columns(x: F32) -> tuple[F64, F64]:
    """x: float32[A, K, B] -> (float64[A, B] sums over K, float64[A, B] sums of magnitudes)."""
    total, magnitude = np.zeros((len(x), x.shape[2])), np.zeros((len(x), x.shape[2]))
    _over_columns(x, lambda *ends: _sum_columns(x, total, magnitude, *ends))
    return total, magnitude


def _over_columns(x: F32, work: Callable[[int, int, int, int], None]) -> None:
    """Call work(left, right, start, stop) for columns left to right of x[start:stop], until that was all of x. Loops
    are given whole arrays: columns cut out of one would be taken for numbers that lie anywhere, not side by side."""
    outer, _, columns = x.shape
    if outer == 1:
        in_parts(
            lambda start, stop: work(start * _PART, min(stop * _PART, columns), 0, 1),
            -(-columns // _PART),
            x.size // _SHARE,
        )
    else:
        in_parts(lambda start, stop: work(0, columns, start, stop), outer, x.size // _SHARE)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_ANY_ORDER)
def _square_rows(x: Any, energy: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        line = x[r]
        s = 0.0
        for c in range(len(line)):
            v = np.float64(line[c])
            s += v * v
        energy[r] = s


@njit(cache=True, nogil=True, error_model="numpy")
def _square_columns(x: Any, energy: Any, left: int, right: int, start: int, stop: int) -> None:
    for outer in range(start, stop):
        for first in range(left, right, _COLUMNS):
            last = min(first + _COLUMNS, right)
            sums = energy[outer, first:last]
            for r in range(x.shape[1]):
                line = x[outer, r, first:last]
                for c in range(last - first):
                    v = np.float64(line[c])
                    sums[c] += v * v


def square_rows(x: F32) -> F64:
    """x: float32[R, K] -> float64[R], the sums of squares."""
    energy = np.empty(len(x))
    in_parts(lambda start, stop: _square_rows(x, energy, start, stop), len(x), x.size // _SHARE)
    return energy


def square_columns(x: F32) -> F64:
    """x: float32[A, K, B] -> float64[A, B], the sums of squares over K."""
    energy = np.zeros((len(x), x.shape[2]))
    _over_columns(x, lambda *ends: _square_columns(x, energy, *ends))
    return energy


_CHECKED = 1 << 14


@njit(cache=True, nogil=True, error_model="numpy")
def _largest(words: Any, largest: Any, start: int, stop: int) -> None:
    for block in range(start, stop):
        found = np.int32(0)
        for i in range(block * _CHECKED, min((block + 1) * _CHECKED, len(words))):
            found = max(found, words[i] & np.int32(0x7FFFFFFF))
        largest[block] = found


def all_finite(x: F32) -> bool:
    """x: float32[n], contiguous. Whether no element is NaN or infinite: as integers, magnitudes compare like the
    numbers, and infinities and NaN come last."""
    words = x.view(np.int32)
    largest = np.zeros(-(-len(x) // _CHECKED), dtype=np.int32)
    in_parts(lambda start, stop: _largest(words, largest, start, stop), len(largest), len(x))
    return not len(largest) or bool(largest.max() < 0x7F800000)
