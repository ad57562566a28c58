"""Elementary functions in fixed point, as a contract with 256-bit words computes them.

Every intermediate number is an integer below 2^255, so the code can be ported line by line (docs/protocol.md, "What the
contract computes", states the error bounds that are argued here). Each function gives an interval that contains the
mathematical value. If both its ends round to the same FP32 number, that number is the answer; if not, the contract
cannot decide and the referee does. The intervals are narrower than 2^-76 of the value, and an FP32 argument whose
value comes nearer to a boundary than about 2^-60 would be an accident that nobody has seen.

A *unit* is 2^-124 (2^-112 in erf). Divisions and shifts of natural numbers round down and err by less than a unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from roundlog.adjudication import binary32 as ieee
from roundlog.number_format import FLOAT32, Format

FRACTION_BITS = 124
ONE = 1 << FRACTION_BITS
GUARD_BITS = 16
LN2 = 0xB17217F7D1CF79ABC9E3B39803F2F6AF40F
"""floor(log(2) * 2^140): 16 more bits, since it is multiplied by an exponent."""

ERF_BITS = 112
TWO_OVER_ROOT_PI = 0x120DD750429B6D11AE3A914FED7FD86
"""floor(2 / sqrt(pi) * 2^120)."""

TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7
TWO_OVER_PI_EXPONENT = 104
"""floor(2 / pi * 2^264): 160 bits behind the point for arguments up to 2^128."""
HALF_PI = 0x1921FB54442D18469898CC51701B839A
"""floor(pi / 2 * 2^124)."""

EXP_ERROR = 128
TRIG_ERROR = 128
LOG_ERROR = 256
TANH_BITS = 100
TANH_ERROR = 4
ERF_ERROR = 1 << 32
"""Error of erf for 1 <= |x| < 4; below 1 it is ERF_ERROR_SMALL."""
ERF_ERROR_SMALL = 512


@dataclass(frozen=True, slots=True)
class Interval:
    """The value lies in (number +- error) * 2^exponent."""

    number: int
    error: int
    exponent: int

    def negated(self, negative: bool) -> Interval:
        return Interval(-self.number, self.error, self.exponent) if negative else self


def round_interval(interval: Interval, format: Format = FLOAT32) -> int | None:
    """The number of a format that the whole interval rounds to, as FP32 bits (a zero is +0); None if there are
    several."""
    low, high = (
        ieee.rounded(Fraction(interval.number + error) * Fraction(2) ** interval.exponent, format)
        for error in (-interval.error, interval.error)
    )
    return low if low == high else None


def evaluate(name: str, x: int, format: Format = FLOAT32) -> int | None:
    """The value of a function, by its operator's name, at a bit pattern, rounded once to a format: FP32
    bits; None where the fixed-point interval does not decide. Infinities and NaN come out where the function has no
    finite value."""
    if not ieee.is_finite(x):
        return _of_infinity(name, x)
    answer = _FUNCTIONS[name](x)
    return answer if isinstance(answer, int) else round_interval(answer, format)


def _of_infinity(name: str, x: int) -> int:
    if ieee.is_nan(x):
        return ieee.NAN
    up, down = {
        "exp": (ieee.INFINITY, 0),
        "expm1": (ieee.INFINITY, _MINUS_ONE),
        "log": (ieee.INFINITY, ieee.NAN),
        "log1p": (ieee.INFINITY, ieee.NAN),
        "tanh": (_ONE, _MINUS_ONE),
        "erf": (_ONE, _MINUS_ONE),
        "sin": (ieee.NAN, ieee.NAN),
        "cos": (ieee.NAN, ieee.NAN),
    }[name]
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


def _beside(negative: bool, mantissa: int, exponent: int, outwards: bool) -> Interval:
    """The number an eighth of its last place away from x, outwards or towards zero. The next boundary of FP32 is at
    least a quarter away, and narrower formats have none nearer but x itself: it stands for all numbers beside x."""
    return Interval((mantissa << 3) + (1 if outwards else -1), 0, exponent - 3).negated(negative)


def _below_one(negative: bool) -> Interval:
    """Interval next to +-1, on the side of zero: the next boundary is 1 - 2^-25."""
    return _beside(negative, 1 << 23, -23, outwards=False)


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
    return Interval(y, EXP_ERROR, k - FRACTION_BITS)


def _expm1(x: int) -> Interval | int:
    negative, mantissa, exponent = _split(x)
    if mantissa == 0:
        return 0
    if x & ~ieee.SIGN <= _power_of_two(-26):
        return _beside(negative, mantissa, exponent, outwards=not negative)  # x + x^2/2 + ..., within 2^-27 of x
    if negative and x & ~ieee.SIGN >= _power_of_two(5):
        return _below_one(negative)  # e^-32 < 2^-46
    if x & ~ieee.SIGN >= _power_of_two(7):
        return ieee.INFINITY
    y, k = _exponential(negative, mantissa, exponent)
    # k <= 128, since x < 89 unless the result overflows; beyond, y * 2^k would need more than 255 bits.
    if k > 128:
        return ieee.INFINITY
    scaled = y << k if k >= 0 else y >> -k
    return Interval(scaled - ONE, EXP_ERROR << max(k, 0), -FRACTION_BITS)


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
    return Interval((-whole if e < 0 else whole) + 2 * total, LOG_ERROR, -FRACTION_BITS)


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
    if mantissa == 0:
        return 0
    if x & ~ieee.SIGN <= _power_of_two(-26):
        return _beside(negative, mantissa, exponent, outwards=negative)  # x - x^2/2 + ...
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
    if mantissa == 0:
        return 0
    if x & ~ieee.SIGN <= _power_of_two(-13):
        return _beside(negative, mantissa, exponent, outwards=False)  # x - x^3/3 + ..., within 2^-27 of x
    if x & ~ieee.SIGN >= _power_of_two(3) + (1 << 21):
        return _below_one(negative)  # |x| >= 10: 1 - tanh < 2 e^-20 < 2^-27
    y, k = _exponential(False, mantissa, exponent + 1)
    # E < 2^29. Its error of 128 * 2^k units moves the quotient by less than 2 * 128 units / 2^k, far below one of
    # these larger units; the division errs by one.
    e = y << k
    quotient = ((e - ONE) << TANH_BITS) // (e + ONE)
    return Interval(quotient, TANH_ERROR, -TANH_BITS).negated(negative)


def _erf(x: int) -> Interval | int:
    """2 / sqrt(pi) * x * S, S = sum of (-w)^n / (n! (2 n + 1)), w = x^2 < 16.

    w errs by 1 unit, S by 1/3 of that. A term's division errs by 1 unit, which the later terms multiply by at most
    e^w < 2^23.1 altogether; the divisions by 2 n + 1 by 1 each; 97 terms: less than 98 * (2^23.1 + 1) < 2^30 units, and
    below |x| = 1 less than 30 * (e + 1) < 128. The product with the constant, which is below 1.13, errs by 2 more."""
    negative, mantissa, exponent = _split(x)
    if mantissa == 0:
        return 0
    if x & ~ieee.SIGN >= _power_of_two(2):
        return _below_one(negative)  # 1 - erf(4) < 2^-25.9
    square = _fixed(mantissa * mantissa, 2 * exponent, ERF_BITS)
    term = total = 1 << ERF_BITS
    n = 0
    while term:
        n += 1
        term = term * square // (n << ERF_BITS)
        total += -(term // (2 * n + 1)) if n % 2 else term // (2 * n + 1)
    slope = total * TWO_OVER_ROOT_PI >> 120
    error = ERF_ERROR if x & ~ieee.SIGN >= _ONE else ERF_ERROR_SMALL
    return Interval(slope * mantissa, error * mantissa, exponent - ERF_BITS).negated(negative)


def _quarter_turns(mantissa: int, exponent: int) -> tuple[int, int]:
    """(quadrant, r): x = mantissa * 2^exponent is r plus that many quarter turns, but for whole turns; 0 <= r < pi / 2,
    within 8 units. -36 <= exponent <= 104 (Payne and Hanek 1983).

    Whole turns are left out bit by bit: of 2 / pi, only those 162 bits matter that give the quadrant and 160 bits
    behind the point. The cut table errs by 1 in the last of them, times the mantissa: 2^-136, far below a unit. The cut
    to units, the product's shift and the error of HALF_PI make less than 2 + 1 + 1."""
    window = (TWO_OVER_PI >> (TWO_OVER_PI_EXPONENT - exponent)) % (1 << 162)
    product = window * mantissa % (1 << 162)
    turned = product % (1 << 160) >> (160 - FRACTION_BITS)
    return product >> 160, turned * HALF_PI >> FRACTION_BITS


def _sine(quadrant: int, r: int) -> Interval:
    """sin(r + quadrant * pi / 2). The series of sine or cosine at r: 19 terms, whose divisions err by 1 unit each,
    times at most cosh(pi / 2) < 2.6 in what follows, and r^2 by 1; r by 8: less than 19 * 3.6 + 8 + 2 < 128 units."""
    square = r * r >> FRACTION_BITS
    odd = quadrant % 2 == 0
    term = total = r if odd else ONE
    n = 1 if odd else 0
    sign = 1
    while term:
        n += 2
        sign = -sign
        term = term * square // ((n * (n - 1)) << FRACTION_BITS)
        total += sign * term
    return Interval(total, TRIG_ERROR, -FRACTION_BITS).negated(quadrant % 4 >= 2)


def _sin(x: int) -> Interval | int:
    negative, mantissa, exponent = _split(x)
    if mantissa == 0:
        return 0
    if x & ~ieee.SIGN <= _power_of_two(-13):
        return _beside(negative, mantissa, exponent, outwards=False)  # x - x^3/6 + ...
    quadrant, r = _quarter_turns(mantissa, exponent)
    return _sine(quadrant, r).negated(negative)


def _cos(x: int) -> Interval | int:
    _, mantissa, exponent = _split(x)
    if x & ~ieee.SIGN <= _power_of_two(-13):
        return _below_one(False) if mantissa else _ONE  # 1 - x^2/2 + ..., within 2^-27
    quadrant, r = _quarter_turns(mantissa, exponent)
    return _sine(quadrant + 1, r)


_FUNCTIONS: dict[str, Callable[[int], Interval | int]] = {
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "tanh": _tanh,
    "erf": _erf,
    "sin": _sin,
    "cos": _cos,
}
