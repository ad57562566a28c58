"""Rounding FP64 values to FP32, and marking those near a rounding boundary, in one read.

The loops compute, for every element, what `roundlog.arithmetic.round_interval` computes: reach = d * factor + |y| * 2u,
the FP32 values of y - reach and y + reach. Rows are scanned a second time only where something was marked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

_TWO_UNITS = 2.0 * 2.0**-53
ZERO = np.float32(0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def _product_rows(
    y: Any, rows: Any, columns: Any, per: int, factor: float, out: Any, counts: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        scale = rows[r]
        column = columns[r // per]
        marked = 0
        for c in range(y.shape[1]):
            v = y[r, c]
            reach = scale * column[c] * factor + abs(v) * _TWO_UNITS
            low = np.float32(v - reach)
            marked += low != np.float32(v + reach)
            out[r, c] = low + ZERO
        counts[r] = marked


@njit(cache=True, nogil=True, error_model="numpy")
def _product_indices(y: Any, rows: Any, columns: Any, per: int, factor: float, counts: Any, indices: Any) -> None:
    at = 0
    for r in range(y.shape[0]):
        if counts[r] == 0:
            continue
        scale = rows[r]
        column = columns[r // per]
        for c in range(y.shape[1]):
            v = y[r, c]
            reach = scale * column[c] * factor + abs(v) * _TWO_UNITS
            if np.float32(v - reach) != np.float32(v + reach):
                indices[at] = r * y.shape[1] + c
                at += 1


def mark_product(y: F64, rows: F64, columns: F64, factor: float) -> tuple[F32, I64]:
    """y: float64[R, C]; rows: float64[R]; columns: float64[Q, C], Q divides R.

    d[r, c] = rows[r] * columns[r // (R / Q), c]. Returns (float32[R, C], int64[n] ascending flat indices of the
    marked elements)."""
    total_rows = y.shape[0]
    per = max(1, total_rows // max(1, columns.shape[0]))
    out = np.empty(y.shape, dtype=np.float32)
    counts = np.zeros(total_rows, dtype=np.int64)
    in_parts(
        lambda start, stop: _product_rows(y, rows, columns, per, factor, out, counts, start, stop), total_rows, y.size
    )
    indices = np.empty(int(counts.sum()), dtype=np.int64)
    if len(indices):
        _product_indices(y, rows, columns, per, factor, counts, indices)
    return out, indices


BLOCK = 4096


@njit(cache=True, nogil=True, error_model="numpy")
def _flat_blocks(
    y: Any, d: Any, relative: float, absolute: float, factor: float, out: Any, counts: Any, start: int, stop: int
) -> None:
    for block in range(start, stop):
        first, last = block * BLOCK, min((block + 1) * BLOCK, len(y))
        marked = 0
        if len(d):
            for i in range(first, last):
                v = y[i]
                reach = d[i] * factor + abs(v) * _TWO_UNITS
                low = np.float32(v - reach)
                marked += low != np.float32(v + reach)
                out[i] = low + ZERO
        else:
            for i in range(first, last):
                v = y[i]
                reach = (abs(v) * relative + absolute) * factor + abs(v) * _TWO_UNITS
                low = np.float32(v - reach)
                marked += low != np.float32(v + reach)
                out[i] = low + ZERO
        counts[block] = marked


@njit(cache=True, nogil=True, error_model="numpy")
def _flat_indices(y: Any, d: Any, relative: float, absolute: float, factor: float, counts: Any, indices: Any) -> None:
    at = 0
    for block in range(len(counts)):
        if counts[block] == 0:
            continue
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(y))):
            v = y[i]
            bound = d[i] if len(d) else abs(v) * relative + absolute
            reach = bound * factor + abs(v) * _TWO_UNITS
            if np.float32(v - reach) != np.float32(v + reach):
                indices[at] = i
                at += 1


_NO_BOUNDS = np.zeros(0, dtype=np.float64)


def mark_flat(y: F64, d: F64 | None, factor: float, *, relative: float = 0.0, absolute: float = 0.0) -> tuple[F32, I64]:
    """y: float64[n]; d: float64[n], or None for d = |y| * relative + absolute. Returns as `mark_product`, flat."""
    bounds = _NO_BOUNDS if d is None else d
    out = np.empty(y.shape, dtype=np.float32)
    counts = np.zeros(-(-len(y) // BLOCK), dtype=np.int64)
    in_parts(
        lambda start, stop: _flat_blocks(y, bounds, relative, absolute, factor, out, counts, start, stop),
        len(counts),
        y.size,
    )
    indices = np.empty(int(counts.sum()), dtype=np.int64)
    if len(indices):
        _flat_indices(y, bounds, relative, absolute, factor, counts, indices)
    return out, indices
