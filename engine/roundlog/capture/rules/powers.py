"""Powers, logarithms to other bases, hyperbolic and trigonometric functions, rounding to integers; and functions that
no program operator computes, by polynomials: within a few units in the last place, and everywhere the same."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, log10, pi
from typing import Any

import numpy as np
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
        return _by_logarithm(c, x, c.f32(exponent), at_zero=0.0 if exponent > 0 else None)
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


def _by_logarithm(c: Context, x: Value, exponent: Value, at_zero: float | None) -> Value:
    """e^(exponent * log x): NaN for a negative x; at zero, what is given if it is."""
    if at_zero is None:
        return c.op("exp", c.op("mul", exponent, c.op("log", x)))
    is_zero = c.op("eq", x, c.f32(0.0))
    power = _by_logarithm(c, c.op("where", is_zero, c.f32(1.0), x), exponent, None)
    return c.op("where", is_zero, c.f32(at_zero), power)


def _need_floats(c: Context, whole: bool, x: Value) -> None:
    if whole and c.dtype(x) != DType.F32:
        raise CaptureError("raises integers to variable powers: convert them to float32")


WHOLE_EXPONENTS = 64
"""Largest whole exponent, of those that a step computes, whose power is taken by multiplications."""


@rule("pow.Tensor_Tensor", "pow_.Tensor")
def pow_tensor(c: Context, x: Value, exponent: Value) -> Value:
    """Whole exponents n up to 64 by multiplications, each rounded (relative error at most (n + 1) 2^-24, none where
    FP32 holds every product); others as e^(exponent * log |x|), within 2^-23 (1 + |exponent * log x|) relatively."""
    _need_floats(c, c.dtype(x) != DType.F32, exponent)
    x, exponent = (c.builder.convert(value, DType.F32) for value in (x, exponent))
    number = same_number(c, exponent)
    if number is not None:
        shape = torch.broadcast_shapes(c.shape(x), c.shape(exponent))
        return c.builder.expand(pow_(c, x, number), shape)
    zero, one, two, half = c.f32(0.0), c.f32(1.0), c.f32(2.0), c.f32(0.5)
    size, steps = c.op("abs", x), c.op("abs", exponent)
    whole = c.op("eq", exponent, c.op("floor", exponent))
    few = c.op("logical_and", whole, c.op("le", steps, c.f32(WHOLE_EXPONENTS)))
    below = c.op("lt", exponent, zero)
    # Bit by bit: the factors are |x|, |x|^2, |x|^4, ...
    rest, factor, product = c.op("where", few, steps, zero), size, one
    for place in range(WHOLE_EXPONENTS.bit_length()):
        lower = c.op("floor", c.op("mul", half, rest))
        taken = c.op("lt", c.op("mul", two, lower), rest)
        product = c.op("mul", product, c.op("where", taken, factor, one))
        rest = lower
        if place + 1 < WHOLE_EXPONENTS.bit_length():
            # A square that no bit asks for could overflow.
            factor = c.op("where", c.op("lt", zero, rest), factor, one)
            factor = c.op("mul", factor, factor)
    is_zero = c.op("eq", x, zero)
    upright = c.op("where", c.op("logical_and", few, below), product, one)
    product = c.op("where", below, c.op("div", one, upright), product)
    # Zero to a positive power is zero; to a negative one it is what the division above, or the logarithm, makes of it.
    nothing = c.op("logical_and", is_zero, c.op("lt", zero, exponent))
    negative = c.op("lt", x, zero)
    # Negative numbers have whole powers only: for others their own logarithm gives NaN.
    argument = c.op("where", c.op("logical_and", negative, whole), size, x)
    # One to any power is one, to an infinite one too.
    sure = c.op("logical_or", c.op("logical_or", few, nothing), c.op("eq", argument, one))
    power = _by_logarithm(c, c.op("where", sure, one, argument), c.op("where", sure, one, exponent), None)
    power = c.op("where", few, product, c.op("where", nothing, zero, power))
    odd = c.op("logical_and", whole, c.op("lt", c.op("mul", two, c.op("floor", c.op("mul", half, exponent))), exponent))
    return c.op("where", c.op("logical_and", negative, odd), c.op("neg", power), power)


def same_number(c: Context, x: Value) -> float | None:
    """The number that every element of an FP32 value is known to be at capture, if there is one."""
    node = c.builder.nodes[x]
    if node.op in ("expand", "reshape"):
        return same_number(c, Value(node.inputs[0]))
    if node.op == "constant":
        bits: Any = node.attributes["bits"]
        if len(set(bits)) > 1:
            return None
        return float(np.uint32(bits[0]).view(np.float32)) if node.type.dtype == DType.F32 else float(bits[0])
    if node.op not in ("add", "sub", "mul", "neg", "to_f32"):
        return None
    numbers = [same_number(c, Value(value)) for value in node.inputs]
    known = [np.float32(number) for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    if node.op in ("neg", "to_f32"):
        return float(-known[0] if node.op == "neg" else known[0])
    a, b = known
    return float(a + b if node.op == "add" else a - b if node.op == "sub" else a * b)


@rule("pow.Scalar")
def pow_of_scalar(c: Context, base: Scalar, x: Value) -> Value:
    """e^(x * log base), with a relative error of at most 2^-23 (1 + |x * log base|); powers of two as exp2."""
    if base <= 0:
        raise CaptureError(f"raises {base} to variable powers: only a positive base is supported")
    _need_floats(c, isinstance(base, int), x)
    x = c.builder.convert(x, DType.F32)
    if base == 2:
        return _power_of_two(c, x)
    return c.op("exp", c.op("mul", x, c.f32(log(base))))


@rule("exp2")
def exp2(c: Context, x: Value) -> Value:
    """2^k e^((x - k) log 2), k the integer next to x: exact for integers."""
    return _power_of_two(c, c.builder.convert(x, DType.F32))


def _power_of_two(c: Context, x: Value) -> Value:
    # Beyond, the power is zero, or infinite: what is left of x says so.
    inside = c.op("minimum", c.op("maximum", x, c.f32(-160.0)), c.f32(130.0))
    k = c.op("floor", c.op("add", inside, c.f32(0.5)))
    fraction = c.op("exp", c.op("mul", c.op("sub", inside, k), c.f32(log(2))))
    result = _scaled_by_power(c, fraction, k)
    return c.op("where", c.op("eq", x, x), result, x)


def _scaled_by_power(c: Context, x: Value, k: Value) -> Value:
    """x 2^k, rounded once, for an integer k (as FP32) between -200 and 200, and x such that the first half of the way
    leaves it a normal number."""
    half = c.op("floor", c.op("mul", c.f32(0.5), k))
    return c.op("mul", c.op("mul", x, _whole_power(c, half)), _whole_power(c, c.op("sub", k, half)))


def _whole_power(c: Context, k: Value) -> Value:
    """2^k exactly, for an integer k (as FP32) between -100 and 100: e^(k log 2) errs by less than 2^-16 relatively, and
    the nearest number of 12 bits (Veltkamp 1968) is the power itself."""
    near = c.op("exp", c.op("mul", k, c.f32(log(2))))
    wide = c.op("mul", near, c.f32(2.0**12 + 1))
    return c.op("sub", wide, c.op("sub", wide, near))


@rule("log2", "log10")
def log_to_base(c: Context, x: Value) -> Value:
    """k + log2(x 2^-k), k the integer next to log2(x), to the base asked for: exact for powers of two, or of ten."""
    decimal = "log10" in str(c.node.target)
    x = c.builder.convert(x, DType.F32)
    ordinary = c.op("logical_and", c.op("lt", c.f32(0.0), x), c.op("lt", x, c.f32(inf)))
    near = c.op("where", ordinary, x, c.f32(1.0))
    k = c.op("mul", c.op("log", near), c.f32(1 / log(2)))
    k = c.op("floor", c.op("add", k, c.f32(0.5)))
    rest = c.op("log", _scaled_by_power(c, near, c.op("neg", k)))
    if decimal:
        # k * high is exact: high has 14 bits.
        high = round(log10(2) * 2**15) / 2**15
        low = c.op("mul", k, c.f32(log10(2) - high))
        rest = c.op("add", low, c.op("mul", rest, c.f32(1 / log(10))))
        k = c.op("mul", k, c.f32(high))
    else:
        rest = c.op("mul", rest, c.f32(1 / log(2)))
    # Arguments that are no numbers above zero get what the logarithm makes of them.
    return c.op("where", ordinary, c.op("add", k, rest), c.op("log", c.op("where", ordinary, c.f32(1.0), x)))


@rule("tan")
def tan(c: Context, x: Value) -> Value:
    return c.op("div", c.op("sin", x), c.op("cos", x))


@rule("sinh")
def sinh(c: Context, x: Value) -> Value:
    # (e^x - e^-x) / 2 by way of m = e^|x| - 1, which keeps what is small: (m + m / (m + 1)) / 2.
    m = c.op("expm1", c.op("abs", x))
    share = c.op("div", m, c.op("add", m, c.f32(1.0)))
    size = c.op("mul", c.f32(0.5), c.op("add", m, c.op("where", c.op("eq", m, c.f32(float("inf"))), m, share)))
    return c.op("where", c.op("lt", x, c.f32(0.0)), c.op("neg", size), size)


@rule("cosh")
def cosh(c: Context, x: Value) -> Value:
    e = c.op("exp", c.op("abs", x))
    return c.op("mul", c.f32(0.5), c.op("add", e, reciprocal(c, e)))


@rule("round", "round.decimals")
def round_(c: Context, x: Value, *, decimals: int = 0) -> Value:
    """Rounding to nearest, ties to even: adding 2^23 leaves no room for a fraction, and IEEE 754 rounds it away like
    that. Decimals are kept as PyTorch does it: round(x 10^decimals) / 10^decimals, three roundings."""
    if c.dtype(x) == DType.I64:
        return x
    if decimals:
        scale = c.f32(10.0 ** abs(decimals))
        there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
        return c.op(back, round_(c, c.op(there, x, scale)), scale)
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
