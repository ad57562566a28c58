"""Exact sums, nearly: sums of FP64 numbers together with everything that rounding took away from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

_LINE = 16
"""FP32 numbers in one line of the cache."""
_TERMS = 256
"""Terms that are added to one sum before the next one's turn: so many lines stay in the first level of the cache."""


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_terms(terms: Any, total: Any, errors: Any, magnitude: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        s, e, m = 0.0, 0.0, 0.0
        for c in range(terms.shape[1]):
            p = terms[r, c]
            # TwoSum (Knuth): t + error = s + p exactly.
            t = s + p
            v = t - s
            error = (s - (t - v)) + (p - v)
            s = t
            e += error
            m += abs(error)
        total[r], errors[r], magnitude[r] = s, e, m


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_products(
    a: Any,
    b: Any,
    first_a: Any,
    step_a: int,
    first_b: Any,
    step_b: int,
    terms: int,
    order: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    for begin in range(0, terms, _TERMS):
        some = min(_TERMS, terms - begin)
        for position in range(start, stop):
            r = order[position]
            at_a, at_b = first_a[r] + begin * step_a, first_b[r] + begin * step_b
            s, e, m = out[0, r], out[1, r], out[2, r]
            for _ in range(some):
                # A product of two FP32 numbers is exact in FP64.
                p = np.float64(a[at_a]) * np.float64(b[at_b])
                t = s + p
                v = t - s
                error = (s - (t - v)) + (p - v)
                s = t
                e += error
                m += abs(error)
                at_a += step_a
                at_b += step_b
            out[0, r], out[1, r], out[2, r] = s, e, m


def sum_terms(terms: F64) -> tuple[F64, F64, F64]:
    """terms: float64[n, k] -> (s, e, m), float64[n] each: a row's exact sum is s + sum of k rounding errors, e is the
    FP64 sum of those, m the sum of their magnitudes."""
    total, errors, magnitude = (np.empty(len(terms)) for _ in range(3))
    in_parts(lambda start, stop: _sum_terms(terms, total, errors, magnitude, start, stop), len(terms), terms.size)
    return total, errors, magnitude


def sum_products(
    a: F32, b: F32, first_a: I64, step_a: int, first_b: I64, step_b: int, terms: int
) -> tuple[F64, F64, F64]:
    """Flat float32 a and b; for every r the sum over t < terms of a[first_a[r] + t step_a] * b[first_b[r] + t step_b],
    as `sum_terms` gives it. The caller answers for the indices."""
    out = np.zeros((3, len(first_a)))
    # Columns of the larger of two matrices that lie row by row: neighbours are taken one after the other, some terms at
    # a time, while the lines of the cache that they share are there.
    order = np.argsort((first_b if step_b > step_a else first_a) // _LINE, kind="stable")
    in_parts(
        lambda start, stop: _sum_products(a, b, first_a, step_a, first_b, step_b, terms, order, out, start, stop),
        len(first_a),
        len(first_a) * terms * 8,
    )
    return out[0], out[1], out[2]
