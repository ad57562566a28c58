"""Sums of FP32 numbers in FP64, together with the sum of their magnitudes or squares, in one read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

_LANES = 16
_COLUMNS = 512


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_rows(x: Any, total: Any, magnitude: Any, start: int, stop: int) -> None:
    # Independent lanes, because without fast-math the compiler may not reorder a single running sum.
    s = np.empty(_LANES, dtype=np.float64)
    m = np.empty(_LANES, dtype=np.float64)
    whole = x.shape[1] - x.shape[1] % _LANES
    for r in range(start, stop):
        s[:] = 0.0
        m[:] = 0.0
        for c in range(0, whole, _LANES):
            for lane in range(_LANES):
                v = np.float64(x[r, c + lane])
                s[lane] += v
                m[lane] += abs(v)
        a, b = 0.0, 0.0
        for lane in range(_LANES):
            a += s[lane]
            b += m[lane]
        for c in range(whole, x.shape[1]):
            v = np.float64(x[r, c])
            a += v
            b += abs(v)
        total[r] = a
        magnitude[r] = b


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_columns(x: Any, total: Any, magnitude: Any, start: int, stop: int) -> None:
    for outer in range(start, stop):
        for first in range(0, x.shape[2], _COLUMNS):
            last = min(first + _COLUMNS, x.shape[2])
            for r in range(x.shape[1]):
                for c in range(first, last):
                    v = np.float64(x[outer, r, c])
                    total[outer, c] += v
                    magnitude[outer, c] += abs(v)


def sum_rows(x: F32) -> tuple[F64, F64]:
    """x: float32[R, K] -> (float64[R] sums, float64[R] sums of magnitudes)."""
    total, magnitude = np.empty(len(x)), np.empty(len(x))
    in_parts(lambda start, stop: _sum_rows(x, total, magnitude, start, stop), len(x), x.size)
    return total, magnitude


def sum_columns(x: F32) -> tuple[F64, F64]:
    """x: float32[A, K, B] -> (float64[A, B] sums over K, float64[A, B] sums of magnitudes)."""
    outer, _, columns = x.shape
    parts = -(-columns // _COLUMNS)
    total, magnitude = np.zeros((outer, columns)), np.zeros((outer, columns))
    if outer == 1 and parts > 1:

        def work(start: int, stop: int) -> None:
            cut = slice(start * _COLUMNS, min(stop * _COLUMNS, columns))
            _sum_columns(x[:, :, cut], total[:, cut], magnitude[:, cut], 0, 1)

        in_parts(work, parts, x.size)
    else:
        in_parts(lambda start, stop: _sum_columns(x, total, magnitude, start, stop), outer, x.size)
    return total, magnitude


@njit(cache=True, nogil=True, error_model="numpy")
def _square_rows(x: Any, energy: Any, start: int, stop: int) -> None:
    s = np.empty(_LANES, dtype=np.float64)
    whole = x.shape[1] - x.shape[1] % _LANES
    for r in range(start, stop):
        s[:] = 0.0
        for c in range(0, whole, _LANES):
            for lane in range(_LANES):
                v = np.float64(x[r, c + lane])
                s[lane] += v * v
        a = 0.0
        for lane in range(_LANES):
            a += s[lane]
        for c in range(whole, x.shape[1]):
            v = np.float64(x[r, c])
            a += v * v
        energy[r] = a


@njit(cache=True, nogil=True, error_model="numpy")
def _square_columns(x: Any, energy: Any, start: int, stop: int) -> None:
    for outer in range(start, stop):
        for r in range(x.shape[1]):
            for c in range(x.shape[2]):
                v = np.float64(x[outer, r, c])
                energy[outer, c] += v * v


def square_rows(x: F32) -> F64:
    """x: float32[R, K] -> float64[R], the sums of squares."""
    energy = np.empty(len(x))
    in_parts(lambda start, stop: _square_rows(x, energy, start, stop), len(x), x.size)
    return energy


def square_columns(x: F32) -> F64:
    """x: float32[A, K, B] -> float64[A, B], the sums of squares over K."""
    outer, _, columns = x.shape
    parts = -(-columns // _COLUMNS)
    energy = np.zeros((outer, columns))
    if outer == 1 and parts > 1:

        def work(start: int, stop: int) -> None:
            cut = slice(start * _COLUMNS, min(stop * _COLUMNS, columns))
            _square_columns(x[:, :, cut], energy[:, cut], 0, 1)

        in_parts(work, parts, x.size)
    else:
        in_parts(lambda start, stop: _square_columns(x, energy, start, stop), outer, x.size)
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
