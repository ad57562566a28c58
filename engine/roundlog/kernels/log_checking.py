"""Weighing what a log says of the elements near a boundary, in one loop over both."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.marking import TWO_UNITS, ZERO
from roundlog.kernels.rounding_loops import UP, VALUE, ordinal

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

CERTAIN, FOLLOWED, CONTRADICTED, SAMPLED, IMPOSSIBLE, MISSING = range(6)
"""`roundlog.rounding.verdicts.Verdict`."""


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
    `roundlog.rounding.verdicts` says of 32 bits."""
    out, verdicts = np.empty(len(y), np.float32), np.empty(len(y), np.uint8)
    _weigh(y, d, elements, near, far, *entries, sampled, out, verdicts, np.empty(2, np.float32))
    return out, verdicts
