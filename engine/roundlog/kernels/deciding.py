"""The two ends of many error intervals, rounded to FP32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

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
