"""Correctly rounded sums and functions.

Sums of FP64 numbers that are exact products of FP32 numbers (or FP32 numbers themselves), by superaccumulators.

Elementary functions of one FP32 number, by raising mpmath's precision until both ends of an interval around its value
round alike (Ziv's strategy).
"""

from __future__ import annotations

import threading
from fractions import Fraction
from functools import lru_cache

import mpmath
import numpy as np
import numpy.typing as npt

from roundlog.kernels import superaccumulator
from roundlog.number_format import FLOAT32, Format

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

_AT_ONCE = 1 << 14
"""Sums that are taken at once: a superaccumulator has as many bytes as 21 terms."""


def round_sums(terms: F64, format: Format = FLOAT32) -> F32:
    """terms: float64[n, k], each term a multiple of 2^-298 below 2^257 in magnitude (any product of two finite FP32
    numbers is), or not finite. Returns float32[n]: each row's mathematical sum, rounded once to the format, to
    nearest, ties to even; overflow gives +-inf, a zero result +0; terms that are not finite as IEEE 754 adds them."""
    result = np.zeros(len(terms), dtype=np.float32)
    for start in range(0, len(terms), _AT_ONCE):
        some = terms[start : start + _AT_ONCE]
        sums = superaccumulator.new_sums(len(some))
        superaccumulator.add_terms(sums, some)
        result[start : start + _AT_ONCE] = superaccumulator.rounded(sums, format)
    return result


Bool = npt.NDArray[np.bool_]

_START_BITS = 80
_LIMIT_BITS = 4096
_GUARD_BITS = 12
"""Last bits that are given up of a value: mpmath documents its functions as accurate to within a few."""

_context = mpmath.mp.clone()
_lock = threading.Lock()
"""mpmath's precision is a global variable, and its caches of constants are not safe for threads: another thread could
change our bits. So we have a context of our own here, and one thread in it at a time."""


def round_function(name: str, x: F32, format: Format = FLOAT32) -> F32:
    """x: float32[n] -> float32[n]: the mathematical value at each x of a function, by its name, which is mpmath's too,
    rounded once to the format, to nearest; zero is +0.

    Infinite arguments take the limits (exp(-inf) = 0, tanh(inf) = 1, ...); outside the domain, and at poles, the
    result is NaN or infinite as IEEE 754-2019, 9.2 says.
    """
    result = _special(name, x)
    rest = np.flatnonzero(np.isnan(result) & _has_value(name, x))
    result[rest] = [_round_one(name, float(value), format) for value in x[rest]]
    return result


@lru_cache(maxsize=1 << 16)
def _round_one(name: str, x: float, format: Format) -> float:
    precision = _START_BITS
    while precision <= _LIMIT_BITS:
        with _lock:
            _context.prec = precision
            value = getattr(_context, name)(_context.mpf(x))
        sign, mantissa, exponent, _ = value._mpf_
        # Keep `precision` bits, and widen by the guard: the exact value lies strictly between the two ends.
        shift = max(0, precision + 8 - int(mantissa).bit_length())
        scaled, unit = int(mantissa) << shift, Fraction(2) ** (exponent - shift)
        margin = 1 << (scaled.bit_length() - precision + _GUARD_BITS)
        low, high = (format.nearest((scaled + end) * unit) for end in (-margin, margin))
        if low == high:
            found = np.array(format.in_float32(low), np.uint32).view(np.float32)
            return float(-found if sign and low else found)
        precision *= 2
    raise ArithmeticError(f"{name}({x!r}) is not decided at {_LIMIT_BITS} bits: is its value exact?")


def _has_value(name: str, x: F32) -> Bool:
    """Mask of the arguments that the function is defined for."""
    if name in ("sin", "cos"):
        return np.isfinite(x)
    return ~np.isnan(x) & (x >= {"log": 0, "log1p": -1}.get(name, -np.inf))


def _special(name: str, x: F32) -> F32:
    """The values that are exact or infinite, or have overflowed or saturated for good, so that mpmath need not build
    huge numbers; NaN elsewhere. By the theorem of Lindemann and Weierstrass (erf: by Taylor's expansion for the only
    zero) no other FP32 argument has an FP32 value or midpoint as its value."""
    result = np.full(x.shape, np.nan, np.float32)
    result[x == 0] = {"exp": 1.0, "cos": 1.0, "log": -np.inf}.get(name, 0.0)
    if name in ("exp", "expm1"):
        result[x > 100] = np.inf
        result[x < (-110 if name == "exp" else -30)] = 0.0 if name == "exp" else -1.0
    elif name in ("tanh", "erf"):
        result[np.abs(x) > 20] = np.sign(x[np.abs(x) > 20])
    elif name in ("log", "log1p"):
        result[x == np.inf] = np.inf
        if name == "log":
            result[x == 1] = 0.0
        else:
            result[x == -1] = -np.inf
    return result
