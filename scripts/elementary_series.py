"""Elementary functions in integer fixed point: a fraction within 2^-400 of the function's value, relatively.

Textbook series on `_BITS` fractional bits, without any library. No FP32 argument brings one of these functions nearer
to a rounding boundary than about 2^-300 without hitting it (the worst are those where the series' second term is all
that separates the value from a boundary, such as exp(2^-149)), so rounding the fraction rounds the value.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import isqrt

_BITS = 700
_ONE = 1 << _BITS


def _fixed(x: Fraction) -> int:
    return (x.numerator << _BITS) // x.denominator


def _series(x: int, divisor: int) -> int:
    """sum over k of x^k * d! / (k + d)!, d = divisor: exp for 0, (exp - 1)/x for 1. |x| < 1."""
    total, term, k = 0, _ONE, divisor
    while term:
        total += term
        k += 1
        term = (term * x >> _BITS) // k
        if term == -1:
            break
    return total


def exp(x: Fraction) -> Fraction:
    """|x| <= 1000. Halve until small, then square back: each squaring doubles a relative error of about 2^-690."""
    halvings = max(0, (abs(x) * 256).__ceil__().bit_length())
    result = Fraction(_series(_fixed(x / 2**halvings), 0), _ONE)
    for _ in range(halvings):
        square = result * result
        # Cut to 700 significant bits, or the fractions double in length with every squaring.
        excess = max(0, square.numerator.bit_length() - _BITS)
        result = Fraction(square.numerator >> excess, 1) * 2**excess / square.denominator
    return result


def expm1(x: Fraction) -> Fraction:
    if abs(x) < Fraction(1, 4):
        return x * Fraction(_series(_fixed(x), 1), _ONE)
    return exp(x) - 1


def _atanh(z: Fraction) -> Fraction:
    """|z| < 1/4: z * sum of z^2k / (2k + 1)."""
    square = _fixed(z * z)
    total, power, k = 0, _ONE, 1
    while power:
        total += power // k
        power = power * square >> _BITS
        k += 2
    return z * Fraction(total, _ONE)


@cache
def _log2() -> Fraction:
    return 2 * (_atanh(Fraction(1, 5)) + _atanh(Fraction(1, 7)))  # 3/2 * 4/3 = 2


def log(y: Fraction) -> Fraction:
    """y > 0. log y = e log 2 + 2 atanh((m - 1) / (m + 1)), y = m 2^e, m near 1."""
    e = 0
    while y > Fraction(3, 2):
        step = max(1, y.numerator.bit_length() - y.denominator.bit_length() - 1)
        y, e = y / 2**step, e + step
    while y < Fraction(3, 4):
        step = max(1, y.denominator.bit_length() - y.numerator.bit_length() - 1)
        y, e = y * 2**step, e - step
    return e * _log2() + 2 * _atanh((y - 1) / (y + 1)) if e else 2 * _atanh((y - 1) / (y + 1))


def log1p(x: Fraction) -> Fraction:
    return log(1 + x)


def tanh(x: Fraction) -> Fraction:
    if abs(x) > 200:
        # 1 - tanh(200) < 2^-576
        return Fraction(1 if x > 0 else -1) * (1 - Fraction(1, 2**576))
    t = expm1(2 * abs(x))
    return t / (t + 2) if x > 0 else -t / (t + 2)


@cache
def _pi(bits: int) -> int:
    """pi * 2^bits, to within a few units."""

    def arccot(n: int) -> int:
        total, term, k, sign = 0, (1 << bits) // n, 1, 1
        while term:
            total += sign * (term // k)
            term //= n * n
            k, sign = k + 2, -sign
        return total

    return 4 * (4 * arccot(5) - arccot(239))  # Machin 1706


@cache
def _two_over_root_pi() -> Fraction:
    return Fraction(2 * _ONE, isqrt(_pi(_BITS) << _BITS))


def erf(x: Fraction) -> Fraction:
    """2 / sqrt(pi) * x * sum of (-x^2)^k / (k! (2k + 1)); its terms stay below e^(x^2), which costs 208 bits at 12."""
    if abs(x) > 12:
        # erfc(12) < e^-144 < 2^-207; with the bounds of FP32 and FP64, only that it is positive and tiny matters.
        return Fraction(1 if x > 0 else -1) * (1 - Fraction(1, 2**207))
    square = _fixed(x * x)
    total, term, k = 0, _ONE, 0
    while term:
        total += (-term if k % 2 else term) // (2 * k + 1)
        k += 1
        term = (term * square >> _BITS) // k
    return _two_over_root_pi() * x * Fraction(total, _ONE)


def _turned(x: Fraction, quarters: int) -> Fraction:
    """sin(x + quarters * pi / 2). An FP32 number is below 2^128: so many more bits of pi leave all of them here."""
    bits = _BITS + 160
    half_pi = Fraction(_pi(bits), 2 << bits)
    turns = round(x / half_pi)
    rest = x - turns * half_pi
    square = _fixed(rest * rest)
    # Taylor: sin is rest times its series in the square, cos the series itself.
    turn = (turns + quarters) % 4
    total, term, k = 0, _ONE, turn % 2 == 0
    while term:
        total += term
        k += 2
        term = -((term * square >> _BITS) // (k * (k - 1)))
        if term == 1:
            break
    value = Fraction(total, _ONE) * (rest if turn % 2 == 0 else 1)
    return -value if turn >= 2 else value


def sin(x: Fraction) -> Fraction:
    return _turned(x, 0)


def cos(x: Fraction) -> Fraction:
    return _turned(x, 1)


FUNCTIONS = {"sin": sin, "cos": cos, "exp": exp, "expm1": expm1, "log": log, "log1p": log1p, "tanh": tanh, "erf": erf}
