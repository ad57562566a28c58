"""Powers, logarithms to other bases, rounding to integers; and angles, by a polynomial: within a few units in the last
place, and everywhere the same."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi
from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.pointwise import reciprocal, rsqrt
from roundlog.capture.rules.rule_table import Context, Scalar, rule
from roundlog.program import DType


@rule("pow.Tensor_Scalar", "pow_.Scalar")
def pow_(c: Context, x: Value, exponent: Scalar) -> Value:
    """Whole and half exponents by multiplications and a square root; others as e^(exponent * log x), x >= 0."""
    if c.dtype(x) == DType.I64 and not (isinstance(exponent, int) and exponent >= 0):
        raise CaptureError(f"raises integers to the power {exponent}: convert them to float32")
    doubled = abs(exponent) * 2
    if doubled != int(doubled) or doubled > 128:
        return _by_logarithm(c, x, c.f32(exponent))
    whole, half = divmod(int(doubled), 2)
    result = c.op("sqrt", x) if half else None
    factor = x
    while whole:
        if whole & 1:
            result = factor if result is None else c.op("mul", result, factor)
        whole >>= 1
        if whole:
            factor = c.op("mul", factor, factor)
    if result is None:
        return c.builder.constant(1, c.dtype(x), c.shape(x))
    if exponent == -0.5:
        return rsqrt(c, x)
    return result if exponent > 0 else reciprocal(c, result)


def _by_logarithm(c: Context, x: Value, exponent: Value) -> Value:
    """e^(exponent * log x), with a relative error of at most 2^-23 (1 + |exponent * log x|); NaN for a negative x."""
    zero = c.f32(0.0)
    nothing = c.op("logical_and", c.op("eq", x, zero), c.op("lt", zero, exponent))
    sure = c.op("logical_or", nothing, c.op("eq", exponent, zero))
    power = c.op("exp", c.op("mul", exponent, c.op("log", c.op("where", sure, c.f32(1.0), x))))
    return c.op("where", nothing, zero, power)


@rule("pow.Tensor_Tensor", "pow_.Tensor")
def pow_tensor(c: Context, x: Value, exponent: Value) -> Value:
    """One exponent that is known at capture as a number; others as e^(exponent * log x), x >= 0."""
    if DType.F32 not in (c.dtype(x), c.dtype(exponent)):
        raise CaptureError("raises integers to variable powers: convert them to float32")
    known = c.known(c.node.args[1])
    shape = torch.broadcast_shapes(c.shape(x), c.shape(exponent))
    x, exponent = (c.builder.convert(value, DType.F32) for value in (x, exponent))
    if known is not None and len(known.unique()) == 1:
        return c.builder.expand(pow_(c, x, float(known.reshape(-1)[0])), shape)
    return _by_logarithm(c, x, exponent)


@rule("pow.Scalar")
def pow_of_scalar(c: Context, base: Scalar, x: Value) -> Value:
    """e^(x * log base), with a relative error of at most 2^-23 (1 + |x * log base|)."""
    if base <= 0:
        raise CaptureError(f"raises {base} to variable powers: only a positive base is supported")
    if isinstance(base, int) and c.dtype(x) != DType.F32:
        raise CaptureError("raises integers to variable powers: convert them to float32")
    return c.op("exp", c.op("mul", c.builder.convert(x, DType.F32), c.f32(log(base))))


@rule("exp2")
def exp2(c: Context, x: Value) -> Value:
    return pow_of_scalar(c, 2.0, x)


@rule("log2", "log10")
def log_to_base(c: Context, x: Value) -> Value:
    """log x / log base, with a relative error of at most 2^-22."""
    base = 10 if "log10" in str(c.node.target) else 2
    return c.op("mul", c.op("log", c.builder.convert(x, DType.F32)), c.f32(1 / log(base)))


@rule("round")
def round_(c: Context, x: Value, *, decimals: int = 0) -> Value:
    """Rounding to nearest, ties to even: adding 2^23 leaves no room for a fraction, and IEEE 754 rounds it away like
    that."""
    if decimals:
        raise CaptureError("rounds to decimals: write torch.round(x * 10**n) / 10**n")
    if c.dtype(x) == DType.I64:
        return x
    size, large = c.op("abs", x), c.f32(2.0**23)
    whole = c.op("sub", c.op("add", size, large), large)
    signed = c.op("where", c.op("lt", x, c.f32(0.0)), c.op("neg", whole), whole)
    return c.op("where", c.op("lt", size, large), signed, x)


_ARC_TANGENT = (
    *(-0.3333333432674408, 0.19999989867210388, -0.14285318553447723, 0.11104706674814224),
    *(-0.09036742150783539, 0.07417497038841248, -0.05760715901851654, 0.03832744434475899),
    *(-0.019261080771684647, 0.0062072547152638435, -0.0009362994460389018),
)
"""(atan(a) / a - 1) / s as a polynomial in s = a^2, 0 <= s <= 1."""


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
