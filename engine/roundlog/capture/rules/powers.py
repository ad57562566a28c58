"""Powers, logarithms to other bases, hyperbolic and trigonometric functions, rounding to integers."""

from __future__ import annotations

from math import log, log2

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.elementwise import reciprocal, rsqrt
from roundlog.capture.rules.table import Context, Scalar, rule
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


@rule("pow.Tensor_Tensor", "pow_.Tensor")
def pow_tensor(c: Context, x: Value, exponent: Value) -> Value:
    _need_floats(c, c.dtype(x) != DType.F32, exponent)
    x, exponent = (c.builder.convert(value, DType.F32) for value in (x, exponent))
    # x^0 and 1^y are 1, even of NaN; 0^positive is 0. 0^negative is infinite, by way of the logarithm.
    is_zero, zero, one = c.op("eq", x, c.f32(0.0)), c.f32(0.0), c.f32(1.0)
    positive = c.op("lt", zero, exponent)
    is_one = c.op("logical_or", c.op("eq", exponent, zero), c.op("eq", x, one))
    known = c.op("logical_or", c.op("logical_and", is_zero, positive), is_one)
    power = _by_logarithm(c, c.op("where", known, one, x), exponent, None)
    return c.op("where", known, c.op("to_f32", is_one), power)


@rule("pow.Scalar")
def pow_of_scalar(c: Context, base: Scalar, x: Value) -> Value:
    if base <= 0:
        raise CaptureError(f"raises {base} to variable powers: only a positive base is supported")
    _need_floats(c, isinstance(base, int), x)
    return c.op("exp", c.op("mul", c.builder.convert(x, DType.F32), c.f32(log(base))))


@rule("exp2")
def exp2(c: Context, x: Value) -> Value:
    return pow_of_scalar(c, 2.0, x)


@rule("log2", "log10")
def log_to_base(c: Context, x: Value) -> Value:
    base = 2 if "log2" in str(c.node.target) else 10
    return c.op("div", c.op("log", c.builder.convert(x, DType.F32)), c.f32(log2(base) * log(2)))


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


@rule("asinh", at_capture=True)
def asinh(c: Context, x: Value) -> Value:
    """log1p(x + x^2 / (1 + sqrt(1 + x^2))); from 2^32 on log(x) + log(2)."""
    a, one = c.op("abs", x), c.f32(1.0)
    large = c.op("lt", c.f32(2.0**32), a)
    near = c.op("where", large, one, a)
    square = c.op("mul", near, near)
    root = c.op("sqrt", c.op("add", one, square))
    size = c.op("log1p", c.op("add", near, c.op("div", square, c.op("add", one, root))))
    far = c.op("add", c.op("log", c.op("where", large, a, one)), c.f32(log(2)))
    size = c.op("where", large, far, size)
    return c.op("where", c.op("lt", x, c.f32(0.0)), c.op("neg", size), size)


@rule("acosh", at_capture=True)
def acosh(c: Context, x: Value) -> Value:
    """log1p(t + sqrt(t) sqrt(t + 2)), t = x - 1."""
    t = c.op("sub", x, c.f32(1.0))
    root = c.op("mul", c.op("sqrt", t), c.op("sqrt", c.op("add", t, c.f32(2.0))))
    return c.op("log1p", c.op("add", t, root))


@rule("atanh", at_capture=True)
def atanh(c: Context, x: Value) -> Value:
    """log1p(2 x / (1 - x)) / 2 for |x|, with the sign of x."""
    a = c.op("abs", x)
    ratio = c.op("div", c.op("mul", c.f32(2.0), a), c.op("sub", c.f32(1.0), a))
    size = c.op("mul", c.f32(0.5), c.op("log1p", ratio))
    return c.op("where", c.op("lt", x, c.f32(0.0)), c.op("neg", size), size)


@rule("ceil")
def ceil(c: Context, x: Value) -> Value:
    return x if c.dtype(x) == DType.I64 else c.op("neg", c.op("floor", c.op("neg", x)))


@rule("trunc")
def trunc(c: Context, x: Value) -> Value:
    if c.dtype(x) == DType.I64:
        return x
    return c.op("where", c.op("lt", x, c.f32(0.0)), ceil(c, x), c.op("floor", x))


@rule("round")
def round_(c: Context, x: Value) -> Value:
    """To nearest, ties to even: adding 2^23 leaves no room for a fraction, and IEEE 754 rounds it away like that."""
    if c.dtype(x) == DType.I64:
        return x
    size, large = c.op("abs", x), c.f32(2.0**23)
    whole = c.op("sub", c.op("add", size, large), large)
    signed = c.op("where", c.op("lt", x, c.f32(0.0)), c.op("neg", whole), whole)
    return c.op("where", c.op("lt", size, large), signed, x)
