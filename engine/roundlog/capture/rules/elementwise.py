"""Arithmetic, comparisons and elementary functions."""

from __future__ import annotations

from typing import Any

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.table import Context, Rule, Scalar, rule
from roundlog.program import DType


def _alpha(c: Context, b: Value, alpha: Scalar) -> Value:
    return b if alpha == 1 else c.op("mul", c.builder.constant(alpha, c.dtype(b)), b)


@rule("add.Tensor", "add.Scalar")
def add(c: Context, a: Any, b: Any, alpha: Scalar = 1) -> Value:
    a, b = c.operands(a, b)
    return c.op("add", a, _alpha(c, b, alpha))


@rule("sub.Tensor", "sub.Scalar")
def sub(c: Context, a: Any, b: Any, alpha: Scalar = 1) -> Value:
    a, b = c.operands(a, b)
    return c.op("sub", a, _alpha(c, b, alpha))


@rule("rsub")
def rsub(c: Context, a: Any, b: Any, alpha: Scalar = 1) -> Value:
    a, b = c.operands(a, b)
    return c.op("sub", b, _alpha(c, a, alpha))


@rule("mul.Tensor", "mul.Scalar")
def mul(c: Context, a: Any, b: Any) -> Value:
    return c.op("mul", *c.operands(a, b))


@rule("div.Tensor", "div.Scalar")
def div(c: Context, a: Any, b: Any) -> Value:
    return c.op("div", *c.operands(a, b, floating=True))


def _binary(aten: str, ours: str, *, swap: bool = False, negate: bool = False) -> None:
    @rule(aten)
    def compare(c: Context, a: Any, b: Any) -> Value:
        a, b = c.operands(a, b)
        result = c.op(ours, b, a) if swap else c.op(ours, a, b)
        return c.op("logical_not", result) if negate else result


_binary("eq", "eq")
_binary("ne", "eq", negate=True)
_binary("lt", "lt")
_binary("le", "le")
_binary("gt", "lt", swap=True)
_binary("ge", "le", swap=True)
_binary("maximum", "maximum")
_binary("minimum", "minimum")


def _logical(name: str) -> Rule:
    def apply(c: Context, *xs: Value) -> Value:
        return c.op(name, *(c.builder.convert(x, DType.BOOL) for x in xs))

    return apply


for _name in ("and", "or", "not"):
    rule(f"logical_{_name}")(_logical(f"logical_{_name}"))


def _bitwise(name: str) -> Rule:
    def apply(c: Context, *xs: Value) -> Value:
        if any(c.dtype(x) != DType.BOOL for x in xs):
            raise CaptureError("works on the bits of integers: only masks (bool) are supported")
        return c.op(name, *xs)

    return apply


rule("bitwise_and.Tensor")(_bitwise("logical_and"))
rule("bitwise_or.Tensor")(_bitwise("logical_or"))
rule("bitwise_not")(_bitwise("logical_not"))


@rule("neg")
def neg(c: Context, x: Value) -> Value:
    return c.op("neg", x)


@rule("abs")
def abs_(c: Context, x: Value) -> Value:
    return c.op("abs", x)


@rule("floor")
def floor(c: Context, x: Value) -> Value:
    return c.op("floor", x)


@rule("sqrt")
def sqrt(c: Context, x: Value) -> Value:
    return c.op("sqrt", c.builder.convert(x, DType.F32))


@rule("rsqrt")
def rsqrt(c: Context, x: Value) -> Value:
    return c.op("div", c.f32(1.0), c.op("sqrt", x))


@rule("reciprocal")
def reciprocal(c: Context, x: Value) -> Value:
    return c.op("div", c.f32(1.0), x)


@rule("square")
def square(c: Context, x: Value) -> Value:
    return c.op("mul", x, x)


@rule("sign")
def sign(c: Context, x: Value) -> Value:
    zero = c.f32(0.0)
    one = c.op("where", c.op("lt", zero, x), c.f32(1.0), zero)
    return c.op("where", c.op("lt", x, zero), c.f32(-1.0), one)


@rule("pow.Tensor_Scalar")
def pow_(c: Context, x: Value, exponent: Scalar) -> Value:
    if exponent == 0.5:
        return c.op("sqrt", x)
    if exponent == -0.5:
        return rsqrt(c, x)
    whole = int(exponent)
    if whole != exponent or not 1 <= abs(whole) <= 64:
        raise CaptureError(f"raises to the power {exponent}: only 1/2, -1/2 and integers up to 64 are supported")
    result, factor, rest = None, x, abs(whole)
    while rest:
        if rest & 1:
            result = factor if result is None else c.op("mul", result, factor)
        rest >>= 1
        if rest:
            factor = c.op("mul", factor, factor)
    assert result is not None
    return result if whole > 0 else reciprocal(c, result)


@rule("relu")
def relu(c: Context, x: Value) -> Value:
    return c.op("maximum", x, c.builder.constant(0, c.dtype(x)))


@rule("threshold_backward")
def threshold_backward(c: Context, g: Value, x: Value, threshold: Scalar) -> Value:
    return c.op("where", c.op("le", x, c.f32(threshold)), c.f32(0.0), g)


@rule("clamp")
def clamp(c: Context, x: Value, low: Scalar | None = None, high: Scalar | None = None) -> Value:
    if low is not None:
        x = c.op("maximum", x, c.builder.constant(low, c.dtype(x)))
    if high is not None:
        x = c.op("minimum", x, c.builder.constant(high, c.dtype(x)))
    return x


@rule("clamp_min")
def clamp_min(c: Context, x: Value, low: Scalar) -> Value:
    return clamp(c, x, low)


@rule("clamp_max")
def clamp_max(c: Context, x: Value, high: Scalar) -> Value:
    return clamp(c, x, None, high)


@rule("addcmul")
def addcmul(c: Context, x: Value, a: Value, b: Value, *, value: Scalar = 1) -> Value:
    return c.op("add", x, _alpha(c, c.op("mul", a, b), value))


@rule("addcdiv")
def addcdiv(c: Context, x: Value, a: Value, b: Value, *, value: Scalar = 1) -> Value:
    return c.op("add", x, _alpha(c, c.op("div", a, b), value))


@rule("lerp.Scalar")
def lerp(c: Context, a: Value, b: Value, weight: Scalar) -> Value:
    return c.op("add", a, c.op("mul", c.f32(weight), c.op("sub", b, a)))


def _function(name: str) -> None:
    @rule(name)
    def apply(c: Context, x: Value) -> Value:
        return c.op(name, c.builder.convert(x, DType.F32))


for _name in ("exp", "expm1", "log", "log1p", "tanh", "erf"):
    _function(_name)


@rule("sigmoid")
def sigmoid(c: Context, x: Value) -> Value:
    # 1 / (1 + e^-x) in a form that cannot overflow: e^-|x| <= 1.
    e = c.op("exp", c.op("neg", c.op("abs", x)))
    one = c.f32(1.0)
    below = c.op("lt", x, c.f32(0.0))
    return c.op("div", c.op("where", below, e, one), c.op("add", one, e))


@rule("silu")
def silu(c: Context, x: Value) -> Value:
    return c.op("mul", x, sigmoid(c, x))


@rule("gelu")
def gelu(c: Context, x: Value, *, approximate: str = "none") -> Value:
    half = c.op("mul", c.f32(0.5), x)
    if approximate == "none":
        inner = c.op("erf", c.op("mul", x, c.f32(0.5**0.5)))
    else:
        cube = c.op("mul", c.op("mul", x, x), x)
        sum_ = c.op("add", x, c.op("mul", c.f32(0.044715), cube))
        inner = c.op("tanh", c.op("mul", c.f32(0.7978845608028654), sum_))
    return c.op("mul", half, c.op("add", c.f32(1.0), inner))
