"""Elementary functions in fixed point, as a contract with 256-bit words computes them.

Every intermediate number is an integer below 2^255, so the code can be ported line by line (docs/protocol.md, "What the
contract computes", states the error bounds that are argued here). Each function gives an interval that contains the
mathematical value. If both its ends round to the same FP32 number, that number is the answer; if not, the contract
cannot decide and the referee does. The intervals are narrower than 2^-76 of the value; no two FP32 results are nearer
to their rounding boundary than about 2^-60 except by an accident that nobody has found.

A *unit* is 2^-124 (2^-112 in erf). Divisions and shifts of natural numbers round down and err by less than a unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.descriptor import Function

FRACTION_BITS = 124
ONE = 1 << FRACTION_BITS
GUARD_BITS = 16
LN2 = 0xB17217F7D1CF79ABC9E3B39803F2F6AF40F
"""floor(log(2) * 2^140): 16 more bits, since it is multiplied by an exponent."""

ERF_BITS = 112
TWO_OVER_ROOT_PI = 0x120DD750429B6D11AE3A914FED7FD86
"""floor(2 / sqrt(pi) * 2^120)."""

EXP_ERROR = 128
LOG_ERROR = 256
TANH_BITS = 100
TANH_ERROR = 4
ERF_ERROR = 1 << 32
"""For 1 <= |x| < 4; below 1, ERF_ERROR_SMALL."""
ERF_ERROR_SMALL = 512


@dataclass(frozen=True, slots=True)
class Interval:
    """The value lies in sign * [low, high] * 2^exponent; low >= 1."""

    negative: bool
    low: int
    high: int
    exponent: int


def round_interval(interval: Interval) -> int | None:
    """The FP32 bits that the whole interval rounds to (a zero is +0), or None if there are several."""
    low, high = (
        ieee.rounded(Fraction(-end if interval.negative else end) * Fraction(2) ** interval.exponent)
        for end in (interval.low, interval.high)
    )
    return low if low == high else None


def evaluate(code: Function, x: int) -> int | None:
    """The correctly rounded value of a function at a bit pattern: FP32 bits; None where the fixed-point interval
    does not decide. Infinities and NaN come out where the function has no finite value, and where x is one."""
    if not ieee.is_finite(x):
        return _of_infinity(code, x)
    answer = _FUNCTIONS[code](x)
    return answer if isinstance(answer, int) else round_interval(answer)


def _of_infinity(code: Function, x: int) -> int:
    if ieee.is_nan(x):
        return ieee.NAN
    up, down = {
        Function.EXP: (ieee.INFINITY, 0),
        Function.EXPM1: (ieee.INFINITY, _MINUS_ONE),
        Function.LOG: (ieee.INFINITY, ieee.NAN),
        Function.LOG1P: (ieee.INFINITY, ieee.NAN),
        Function.TANH: (_ONE, _MINUS_ONE),
        Function.ERF: (_ONE, _MINUS_ONE),
    }[code]
    return down if x & ieee.SIGN else up


_ONE, _MINUS_ONE = 0x3F800000, 0xBF800000


def _power_of_two(exponent: int) -> int:
    """Bits of 2^exponent, a normal number. Magnitudes compare as their bits do."""
    return (exponent + 127) << 23


def _split(x: int) -> tuple[bool, int, int]:
    """(negative, mantissa, exponent): |x| = mantissa * 2^exponent, mantissa < 2^24, exponent >= -149."""
    exponent, fraction = (x >> 23) & 0xFF, x & 0x7FFFFF
    mantissa = fraction | 0x800000 if exponent else fraction
    return bool(x & ieee.SIGN), mantissa, max(exponent, 1) - 150


def _fixed(mantissa: int, exponent: int, bits: int) -> int:
    """mantissa * 2^exponent in units of 2^-bits, rounded down."""
    shift = exponent + bits
    return mantissa << shift if shift >= 0 else mantissa >> min(-shift, 255)


def _exponential(negative: bool, mantissa: int, exponent: int) -> tuple[int, int]:
    """(y, k): e^x lies within EXP_ERROR units of y, times 2^k, 2^124 <= y < 2^125 or so. |x| < 128.

    x = k log 2 + r with 0 <= r < log 2. r errs by the cut of x (1 unit), k times the error of LN2 (|k| < 200 times
    2^-16 units) and its own shift (1 unit): less than 3 units, and e^r by less than 6. The series has 35 terms; each
    division errs by less than 1 unit, which the later terms multiply by less than e^r < 2 altogether, and what is left
    out after the last is less than 2 units: less than 6 + 35 * 2 + 2 = 78 units."""
    x = _fixed(mantissa, exponent, FRACTION_BITS) << GUARD_BITS
    if negative:
        k = -((x + LN2 - 1) // LN2)
        r = (-k * LN2 - x) >> GUARD_BITS
    else:
        k = x // LN2
        r = (x - k * LN2) >> GUARD_BITS
    total = term = ONE
    n = 1
    while term:
        term = term * r // (n << FRACTION_BITS)
        total += term
        n += 1
    return total, k


def _exp(x: int) -> Interval | int:
    negative, mantissa, exponent = _split(x)
    if x & ~ieee.SIGN >= _power_of_two(7):
        # e^128 > 2^128, and e^-128 < 2^-150: the sum of all that rounds to infinity, or to zero.
        return 0 if negative else ieee.INFINITY
    y, k = _exponential(negative, mantissa, exponent)
    return Interval(False, y - EXP_ERROR, y + EXP_ERROR, k - FRACTION_BITS)


def _expm1(x: int) -> Interval | int:
    negative, mantissa, exponent = _split(x)
    if x & ~ieee.SIGN <= _power_of_two(-26):
        # x + x^2/2 + ...: nearer to x than half of its last place, 2^-25 of it.
        return x if x != ieee.SIGN else 0
    if negative and x & ~ieee.SIGN >= _power_of_two(5):
        return _MINUS_ONE  # e^-32 < 2^-46, where half of the last place is 2^-25
    if x & ~ieee.SIGN >= _power_of_two(7):
        return ieee.INFINITY
    y, k = _exponential(negative, mantissa, exponent)
    # k <= 128, since x < 89 unless the result overflows; beyond, y * 2^k would need more than 255 bits.
    if k > 128:
        return ieee.INFINITY
    scaled = y << k if k >= 0 else y >> -k
    error = EXP_ERROR << max(k, 0)
    return _around(scaled - ONE, error, -FRACTION_BITS)


def _around(number: int, error: int, exponent: int) -> Interval:
    """The interval number +- error, which does not hold zero."""
    return Interval(number < 0, abs(number) - error, abs(number) + error, exponent)


def _logarithm(natural: int, scale: int) -> Interval:
    """log(natural * 2^scale), 1 <= natural <= 2^128, the argument not 1.

    = e log 2 + 2 atanh(z), z = (m - 1) / (m + 1) < 1/3 for the mantissa 1 <= m < 2. z errs by 1 unit, the series of 40
    terms by less than 2 a term (its division, and its power), what is left out by less than 1; all that twice, and
    e log 2 by less than 2: less than 2 * (2 + 80 + 1) + 2 = 168 units. A natural that was cut to 128 bits adds less
    than 1."""
    top = natural.bit_length() - 1
    power = ((natural - (1 << top)) << FRACTION_BITS) // (natural + (1 << top))
    square = power * power >> FRACTION_BITS
    total, n = 0, 1
    while power:
        total += power // n
        power = power * square >> FRACTION_BITS
        n += 2
    e = top + scale
    whole = abs(e) * LN2 >> GUARD_BITS
    return _around((-whole if e < 0 else whole) + 2 * total, LOG_ERROR, -FRACTION_BITS)


def _log(x: int) -> Interval | int:
    negative, mantissa, exponent = _split(x)
    if mantissa == 0:
        return ieee.SIGN | ieee.INFINITY
    if negative:
        return ieee.NAN
    if x == _ONE:
        return 0
    return _logarithm(mantissa, exponent)


def _log1p(x: int) -> Interval | int:
    negative, mantissa, exponent = _split(x)
    if x & ~ieee.SIGN <= _power_of_two(-26):
        return x if x != ieee.SIGN else 0  # x - x^2/2 + ...
    if negative and x & ~ieee.SIGN >= _ONE:
        return ieee.SIGN | ieee.INFINITY if x == _MINUS_ONE else ieee.NAN
    # 1 + x in units of 2^exponent if x is small, exactly (exponent >= -49); cut to 128 bits if it is large.
    if exponent <= 0:
        unit = 1 << -exponent
        return _logarithm(unit - mantissa if negative else unit + mantissa, exponent)
    natural = (mantissa << exponent) + 1
    cut = max(natural.bit_length() - 128, 0)
    return _logarithm(natural >> cut, cut)


def _tanh(x: int) -> Interval | int:
    """(E - 1) / (E + 1), E = e^(2 |x|)."""
    negative, mantissa, exponent = _split(x)
    if x & ~ieee.SIGN <= _power_of_two(-13):
        # x - x^3/3 + ...: within 2^-26 / 3 of x relatively, where half of the last place is at least 2^-25.
        return x if x != ieee.SIGN else 0
    if x & ~ieee.SIGN >= _power_of_two(3) + (1 << 21):
        return _MINUS_ONE if negative else _ONE  # |x| >= 10: 1 - tanh < 2 e^-20 < 2^-27
    y, k = _exponential(False, mantissa, exponent + 1)
    # E < 2^29. Its error of 128 * 2^k units moves the quotient by less than 2 * 128 units / 2^k, far below one of
    # these larger units; the division errs by one.
    e = y << k
    quotient = ((e - ONE) << TANH_BITS) // (e + ONE)
    return Interval(negative, quotient - TANH_ERROR, quotient + TANH_ERROR, -TANH_BITS)


def _erf(x: int) -> Interval | int:
    """2 / sqrt(pi) * x * S, S = sum of (-w)^n / (n! (2 n + 1)), w = x^2 < 16.

    w errs by 1 unit, S by 1/3 of that. A term's division errs by 1 unit, which the later terms multiply by at most
    e^w < 2^23.1 altogether; the divisions by 2 n + 1 by 1 each; 97 terms: less than 98 * (2^23.1 + 1) < 2^30 units, and
    below |x| = 1 less than 30 * (e + 1) < 128. The product with the constant, which is below 1.13, errs by 2 more."""
    negative, mantissa, exponent = _split(x)
    if mantissa == 0:
        return 0
    if x & ~ieee.SIGN >= _power_of_two(2):
        return _MINUS_ONE if negative else _ONE  # 1 - erf(4) < 2^-25.9
    square = _fixed(mantissa * mantissa, 2 * exponent, ERF_BITS)
    term = total = 1 << ERF_BITS
    n = 0
    while term:
        n += 1
        term = term * square // (n << ERF_BITS)
        total += -(term // (2 * n + 1)) if n % 2 else term // (2 * n + 1)
    slope = total * TWO_OVER_ROOT_PI >> 120
    error = ERF_ERROR if x & ~ieee.SIGN >= _ONE else ERF_ERROR_SMALL
    return Interval(negative, (slope - error) * mantissa, (slope + error) * mantissa, exponent - ERF_BITS)


_FUNCTIONS: dict[Function, Callable[[int], Interval | int]] = {
    Function.EXP: _exp,
    Function.EXPM1: _expm1,
    Function.LOG: _log,
    Function.LOG1P: _log1p,
    Function.TANH: _tanh,
    Function.ERF: _erf,
}
