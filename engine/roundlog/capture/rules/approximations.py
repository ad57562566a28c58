"""Functions that no program operator computes, by polynomials: within a few units in the last place, and everywhere the
same.

The coefficients are those of the polynomial through the function's values at Chebyshev points (computed in 40 digits),
rounded to FP32; what they leave out is far below a unit in the last place."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

from roundlog.capture.builder import Value
from roundlog.capture.rules.table import Context, rule
from roundlog.program import DType

_ARC_TANGENT = (
    *(-0.3333333432674408, 0.19999989867210388, -0.14285318553447723, 0.11104706674814224),
    *(-0.09036742150783539, 0.07417497038841248, -0.05760715901851654, 0.03832744434475899),
    *(-0.019261080771684647, 0.0062072547152638435, -0.0009362994460389018),
)
"""(atan(a) / a - 1) / s as a polynomial in s = a^2, 0 <= s <= 1."""

_ERFC = (
    *(1.2769783735275269, -0.0927637591958046, -0.16603092849254608, 0.16404864192008972, -0.05420994013547897),
    *(-0.008004377596080303, 0.008653858676552773, 0.0011414517648518085, -0.0012589828111231327),
    -0.00021953703253529966,
)
"""(1 + 2 z) e^(z^2) erfc(z) as a polynomial in (z - 2) / (z + 2), 1/2 <= z <= 11 (Shepherd and Laframboise 1981)."""


def _polynomial(c: Context, coefficients: Sequence[float], x: Value) -> Value:
    result = c.f32(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = c.op("add", c.op("mul", result, x), c.f32(coefficient))
    return result


def _angle(c: Context, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), in (-pi, pi]; of the origin 0. Signs of zeros are not looked at."""
    zero, one = c.f32(0.0), c.f32(1.0)
    across, along = c.op("abs", y), c.op("abs", x)
    steep = c.op("lt", along, across)
    longer = c.op("maximum", across, along)
    a = c.op("div", c.op("minimum", across, along), c.op("where", c.op("eq", longer, zero), one, longer))
    s = c.op("mul", a, a)
    angle = c.op("add", a, c.op("mul", c.op("mul", a, s), _polynomial(c, _ARC_TANGENT, s)))
    angle = c.op("where", steep, c.op("sub", c.f32(pi / 2), angle), angle)
    angle = c.op("where", c.op("lt", x, zero), c.op("sub", c.f32(pi), angle), angle)
    return c.op("where", c.op("lt", y, zero), c.op("neg", angle), angle)


@rule("atan", at_capture=True)
def atan(c: Context, x: Value) -> Value:
    """A polynomial of degree 23 in min(x, 1 / x)."""
    return _angle(c, c.builder.convert(x, DType.F32), c.f32(1.0))


@rule("atan2", at_capture=True)
def atan2(c: Context, y: Any, x: Any) -> Value:
    """Angle by the approximation of atan; atan2(0, 0) is 0, and zeros have no sign."""
    return _angle(c, *c.operands(y, x, floating=True))


def _leg(c: Context, x: Value) -> Value:
    """sqrt(1 - x^2), NaN beyond 1."""
    one = c.f32(1.0)
    return c.op("sqrt", c.op("mul", c.op("sub", one, x), c.op("add", one, x)))


@rule("asin", at_capture=True)
def asin(c: Context, x: Value) -> Value:
    """atan2(x, sqrt(1 - x^2))."""
    x = c.builder.convert(x, DType.F32)
    return _angle(c, x, _leg(c, x))


@rule("acos", at_capture=True)
def acos(c: Context, x: Value) -> Value:
    """atan2(sqrt(1 - x^2), x)."""
    x = c.builder.convert(x, DType.F32)
    return _angle(c, _leg(c, x), x)


@rule("erfc", at_capture=True)
def erfc(c: Context, x: Value) -> Value:
    """1 - erf(x) below 1/2; from there on e^(-x^2) times a polynomial, so that what is small keeps its digits."""
    x = c.builder.convert(x, DType.F32)
    one, two, half = c.f32(1.0), c.f32(2.0), c.f32(0.5)
    # From 11 on it is less than half of the least FP32 number.
    z = c.op("minimum", c.op("maximum", x, half), c.f32(11.0))
    # z^2 = h^2 + (z - h) (z + h), where h has so few bits that its square is exact.
    h = c.op("mul", c.op("floor", c.op("mul", z, c.f32(128.0))), c.f32(1 / 128))
    rest = c.op("mul", c.op("sub", z, h), c.op("add", z, h))
    fall = c.op("mul", c.op("exp", c.op("neg", c.op("mul", h, h))), c.op("exp", c.op("neg", rest)))
    slow = _polynomial(c, _ERFC, c.op("div", c.op("sub", z, two), c.op("add", z, two)))
    tail = c.op("mul", c.op("div", slow, c.op("add", one, c.op("mul", two, z))), fall)
    return c.op("where", c.op("lt", x, half), c.op("sub", one, c.op("erf", x)), tail)
