"""Correctly rounded elementary functions of one FP32 number, by raising mpmath's precision until both ends of an
interval around its value round alike (Ziv's strategy)."""

from __future__ import annotations

import threading
from functools import lru_cache

import mpmath
import numpy as np
import numpy.typing as npt

from roundlog.arithmetic.bits import FULL_BITS
from roundlog.arithmetic.sums import round_scaled_integer

_START_BITS = 80
_LIMIT_BITS = 4096
_GUARD_BITS = 12

FUNCTIONS = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos")
"""The functions by mpmath's names, which are evaluated at a working precision; mpmath documents these as accurate to
within the last few bits, of which `_GUARD_BITS` are given up."""


_context = mpmath.mp.clone()
_lock = threading.Lock()
"""mpmath's precision is a global variable, and its caches of constants are not safe for threads: another thread could
change our bits. So we have a context of our own here, and one thread in it at a time."""


def round_function(name: str, x: npt.NDArray[np.float32], bits: int = FULL_BITS) -> npt.NDArray[np.float32]:
    """x: float32[n] -> float32[n]: the function's mathematical value at each x, rounded once to `bits` bits, to
    nearest; zero is +0.

    Infinite arguments take the limits (exp(-inf) = 0, tanh(inf) = 1, ...); outside the domain, and at poles, the
    result is NaN or infinite as IEEE 754-2019, 9.2 says, for the caller to stop at.
    """
    return np.array([_round_one(name, float(value), bits) for value in x], dtype=np.float32)


@lru_cache(maxsize=1 << 16)
def _round_one(name: str, x: float, bits: int) -> float:
    special = _special(name, x)
    if special is not None:
        return special
    precision = _START_BITS
    while precision <= _LIMIT_BITS:
        with _lock:
            _context.prec = precision
            value = getattr(_context, name)(_context.mpf(x))
        sign, mantissa, exponent, _ = value._mpf_
        # Keep `precision` bits, and widen by the guard: the exact value lies strictly between the two ends.
        shift = max(0, precision + 8 - int(mantissa).bit_length())
        scaled, scale = int(mantissa) << shift, exponent - shift
        margin = 1 << (scaled.bit_length() - precision + _GUARD_BITS)
        low = round_scaled_integer(scaled - margin, scale, bits)
        high = round_scaled_integer(scaled + margin, scale, bits)
        if low == high:
            return float(-low if sign and low else low)
        precision *= 2
    raise ArithmeticError(f"{name}({x!r}) is not decided at {_LIMIT_BITS} bits: is its value exact?")


def _special(name: str, x: float) -> float | None:
    """Arguments whose value is exact, infinite or undefined. By the theorem of Lindemann and Weierstrass (erf: by
    Taylor's expansion for the only zero) no other FP32 argument has an FP32 value or midpoint as its value."""
    if np.isnan(x):
        return float("nan")
    if x == 0:
        return {"exp": 1.0, "cos": 1.0, "log": float("-inf")}.get(name, 0.0)
    if name == "log":
        if x < 0:
            return float("nan")
        if x == 1:
            return 0.0
    if name == "log1p" and x <= -1:
        return float("-inf") if x == -1 else float("nan")
    if np.isinf(x):
        if name in ("sin", "cos"):
            return float("nan")
        if x < 0:
            return {"exp": 0.0, "expm1": -1.0, "tanh": -1.0, "erf": -1.0}[name]
        return {"tanh": 1.0, "erf": 1.0}.get(name, float("inf"))
    # Beyond these the result has overflowed or saturated for good, and mpmath need not build huge numbers.
    if name in ("exp", "expm1") and x > 100:
        return float("inf")
    if name == "exp" and x < -110:
        return 0.0
    if name == "expm1" and x < -30:
        return -1.0
    if name in ("tanh", "erf") and abs(x) > 20:
        return 1.0 if x > 0 else -1.0
    return None
