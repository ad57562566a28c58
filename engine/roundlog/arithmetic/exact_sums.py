"""Correctly rounded sums and functions.

Sums of FP64 numbers that are exact products of FP32 numbers (or FP32 numbers themselves), in two stages: a
double-double sum by TwoSum, with a proven bound; a superaccumulator for the sums that even that leaves undecided.

Elementary functions of one FP32 number, by raising mpmath's precision until both ends of an interval around its value
round alike (Ziv's strategy).
"""

from __future__ import annotations

import threading
from functools import lru_cache

import mpmath
import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic.formats import UNIT_F64, neighbour, round_to
from roundlog.kernels import rounding_loops, superaccumulator
from roundlog.kernels.summing import sum_terms
from roundlog.number_format import FLOAT32, Format

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

_BLOCK_ELEMENTS = 1 << 20


def round_sums(terms: F64, format: Format = FLOAT32) -> F32:
    """terms: float64[n, k], each term a multiple of 2^-298 below 2^257 in magnitude (any product of two finite FP32
    numbers is), or not finite. Returns float32[n]: each row's mathematical sum, rounded once to the format, to
    nearest, ties to even; overflow gives +-inf, a zero result +0; terms that are not finite as IEEE 754 adds them."""
    n, k = terms.shape
    result = np.zeros(n, dtype=np.float32)
    if k == 0:
        return result
    rows = max(1, _BLOCK_ELEMENTS // k)
    for start in range(0, n, rows):
        result[start : start + rows] = _round_block(terms[start : start + rows], format)
    return result


def _round_block(terms: F64, format: Format) -> F32:
    rounded, undecided = round_sums_of(*sum_terms(terms), terms.shape[1], format)
    if undecided.any():
        sums = superaccumulator.new_sums(int(np.count_nonzero(undecided)))
        superaccumulator.add_terms(sums, terms[undecided])
        rounded[undecided] = superaccumulator.rounded(sums, format)
    return rounded


def round_sums_of(
    total: F64, errors: F64, magnitude: F64, terms: int, format: Format = FLOAT32
) -> tuple[F32, npt.NDArray[np.bool_]]:
    """Round sums that `roundlog.kernels.summing` has taken, and say which are undecided. A sum with a term that is not
    finite is that of FP64, and decided: sums of finite terms do not come near the end of FP64's range."""
    with np.errstate(invalid="ignore"):
        if format == FLOAT32:
            rounded, undecided = rounding_loops.round_sums(total, errors, magnitude, terms, UNIT_F64)
        else:
            rounded, undecided = round_double_double(*double_double(total, errors, magnitude, terms), format)
    lost = ~np.isfinite(total)
    rounded[lost] = total[lost]
    undecided[lost] = False
    return rounded, undecided


def double_double(total: F64, errors: F64, magnitude: F64, terms: int) -> tuple[F64, F64, F64]:
    """(high, low, error): every sum lies within `error` of high + low, and |low| <= u*|high|.

    A TwoSum (Knuth) is exact, so a sum is its FP64 sum plus all the rounding errors on the way. Adding those, at most
    `terms` of them, errs by at most gamma of that number times the sum of their magnitudes; where they are all zero,
    the sum is exact."""
    high = total + errors
    t = high - total
    low = (total - (high - t)) + (errors - t)
    return high, low, (2.0 * terms) * UNIT_F64 * magnitude


class RunningSums:
    """Sums whose terms come in parts."""

    def __init__(self, count: int) -> None:
        self.total, self.errors, self.magnitude = (np.zeros(count) for _ in range(3))
        """The sums that `roundlog.kernels.summing` would give for all parts together."""
        self._parts = 0

    def add(self, total: F64, errors: F64, magnitude: F64) -> None:
        """One part of every sum, as `roundlog.kernels.summing` has taken it."""
        # A term may be infinite or NaN: then the sum is.
        with np.errstate(invalid="ignore"):
            t = self.total + total
            v = t - self.total
            # TwoSum (Knuth): t + error = the two sums exactly.
            error = (self.total - (t - v)) + (total - v)
        self.total = t
        self.errors += error + errors
        self.magnitude += np.abs(error) + magnitude
        self._parts += 1

    def rounded(self, terms: int, format: Format = FLOAT32) -> tuple[F32, npt.NDArray[np.bool_]]:
        """The rounded sums of all parts, as `round_sums_of` gives them; terms: of all parts together. An error is added
        up with at most so many others, and with two more a part."""
        return round_sums_of(self.total, self.errors, self.magnitude, terms + 2 * self._parts, format)


def round_double_double(high: F64, low: F64, error: F64, format: Format = FLOAT32) -> tuple[F32, npt.NDArray[np.bool_]]:
    """Round high + low to a format, and say which rows are undecided: where a rounding boundary lies within
    `error`. What is not finite is undecided."""
    finite = torch.from_numpy(np.where(np.isfinite(high), high, 0.0))
    middle = round_to(finite, format)
    lower, upper = neighbour(middle, -1, format).numpy(), neighbour(middle, 1, format).numpy()
    nearest = middle.numpy()
    # Infinity is a legitimate neighbour of the largest finite number, and a legitimate result.
    below, above = _midpoint(lower, nearest, format.limit), _midpoint(nearest, upper, format.limit)
    with np.errstate(invalid="ignore"):
        # high lies between the two midpoints, so both differences are exact in FP64 unless they are large, and then
        # their rounding error is far below |low|'s own distance to anything that matters; the slack covers it.
        to_below = (high - below) + low
        to_above = (above - high) - low
        slack = error + 4 * UNIT_F64 * (np.abs(low) + np.minimum(np.abs(high - below), np.abs(above - high)) * UNIT_F64)
    undecided = ~((np.abs(to_below) > slack) & (np.abs(to_above) > slack))
    # Nothing is left to add to an exact FP64 number: its conversion is the answer, on a tie too.
    exact = (error == 0.0) & (low == 0.0)
    rounded = np.where(to_below < 0, lower, np.where(to_above < 0, upper, nearest))
    undecided |= ~np.isfinite(nearest)
    undecided &= ~exact
    undecided |= ~np.isfinite(high)
    return (rounded + np.float32(0.0)).astype(np.float32), undecided


def _midpoint(a: F32, b: F32, limit: float) -> F64:
    """Half-way between adjacent numbers of a format, exact in FP64. Past the largest finite one the next would be
    `limit` (IEEE 754-2019, 4.3.1: where rounding to infinity begins)."""
    wide_a = np.clip(a.astype(np.float64), -limit, limit)
    wide_b = np.clip(b.astype(np.float64), -limit, limit)
    return (wide_a + wide_b) / 2


def round_scaled_integer(value: int, exponent: int, format: Format = FLOAT32) -> np.float32:
    """value * 2^exponent rounded to a format, to nearest, ties to even, by integer arithmetic alone; zero is +0."""
    if value == 0:
        return np.float32(0.0)
    negative, magnitude = value < 0, abs(value)
    # The result's last place: the fraction's, but never below that of subnormal numbers.
    place = max(exponent + magnitude.bit_length() - (format.fraction_bits + 1), format.least_place)
    shift = place - exponent
    if shift <= 0:
        quotient = magnitude << -shift
    else:
        quotient, rest = magnitude >> shift, magnitude & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        if rest > half or (rest == half and quotient & 1):
            quotient += 1
    if quotient == 0:
        return np.float32(0.0)
    if place + quotient.bit_length() > format.largest_exponent + 1:
        return np.float32(-np.inf if negative else np.inf)
    result = float(quotient) * 2.0**place
    return np.float32(-result if negative else result)


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
        scaled, scale = int(mantissa) << shift, exponent - shift
        margin = 1 << (scaled.bit_length() - precision + _GUARD_BITS)
        low = round_scaled_integer(scaled - margin, scale, format)
        high = round_scaled_integer(scaled + margin, scale, format)
        if low == high:
            return float(-low if sign and low else low)
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
