"""Arithmetic, comparisons and elementary functions, also of bits of integers and of masks; quotients without their
fraction, and what they leave over."""

from __future__ import annotations

from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.rule_table import Context, Rule, Scalar, rule, scalar_dtype, wider
from roundlog.program import DType


def _alpha(c: Context, b: Value, alpha: Scalar) -> Value:
    return b if alpha == 1 else c.op("mul", c.builder.constant(alpha, c.dtype(b)), b)


@rule("add.Tensor", "add.Scalar")
def add(c: Context, a: Any, b: Any, alpha: Scalar = 1) -> Value:
    a, b = c.operands(a, b)
    if c.dtype(a) == DType.BOOL and alpha == 1:
        return c.op("logical_or", a, b)
    return c.op("add", a, _alpha(c, b, alpha))


@rule("sub.Tensor", "sub.Scalar")
def sub(c: Context, a: Any, b: Any, alpha: Scalar = 1) -> Value:
    a, b = c.operands(a, b)
    return c.op("sub", a, _alpha(c, b, alpha))


@rule("mul.Tensor", "mul.Scalar")
def mul(c: Context, a: Any, b: Any) -> Value:
    a, b = c.operands(a, b)
    return c.op("logical_and" if c.dtype(a) == DType.BOOL else "mul", a, b)


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


@rule("isnan")
def not_a_number(c: Context, x: Value) -> Value:
    return c.op("logical_not", c.op("eq", x, x))


@rule("isinf")
def isinf(c: Context, x: Value) -> Value:
    if c.dtype(x) != DType.F32:
        return c.builder.constant(False, DType.BOOL, c.shape(x))
    return c.op("eq", c.op("abs", x), c.f32(float("inf")))


def _logical(name: str) -> Rule:
    def apply(c: Context, *xs: Value) -> Value:
        return c.op(name, *(c.builder.convert(x, DType.BOOL) for x in xs))

    return apply


for _name in ("and", "or", "not"):
    rule(f"logical_{_name}")(_logical(f"logical_{_name}"))


@rule("logical_xor")
def xor(c: Context, a: Value, b: Value) -> Value:
    return c.op("logical_not", c.op("eq", c.builder.convert(a, DType.BOOL), c.builder.convert(b, DType.BOOL)))


for _name in ("neg", "abs"):
    rule(_name)(lambda c, x, name=_name: c.op(name, x))


@rule("floor")
def floor(c: Context, x: Value) -> Value:
    return x if c.dtype(x) == DType.I64 else c.op("floor", x)


@rule("sqrt")
def sqrt(c: Context, x: Value) -> Value:
    return c.op("sqrt", c.builder.convert(x, DType.F32))


@rule("rsqrt")
def rsqrt(c: Context, x: Value) -> Value:
    return c.op("div", c.f32(1.0), sqrt(c, x))


@rule("reciprocal")
def reciprocal(c: Context, x: Value) -> Value:
    return c.op("div", c.f32(1.0), c.builder.convert(x, DType.F32))


@rule("sign")
def sign(c: Context, x: Value) -> Value:
    zero, one, minus = (c.builder.constant(item, c.dtype(x)) for item in (0, 1, -1))
    positive = c.op("where", c.op("lt", zero, x), one, zero)
    return c.op("where", c.op("lt", x, zero), minus, positive)


@rule("clamp", "clamp_min", "clamp_max")
def clamp(c: Context, x: Value, low: Any = None, high: Any = None) -> Value:
    """Limits are scalars or tensors; where the lower one is above the upper one, the upper one counts."""
    if "clamp_max" in str(c.node.target):
        low, high = None, low
    for name, position, limit in (("maximum", 1, low), ("minimum", 2, high)):
        if limit is None:
            continue
        if "clamp_" in str(c.node.target):
            position = 1
        given = limit if c.is_tensor(position) else None
        dtype = c.dtype(given) if given is not None else scalar_dtype(limit)
        dtype = wider(c.dtype(x), dtype)
        bound = c.builder.constant(limit, dtype) if given is None else c.builder.convert(given, dtype)
        x = c.op(name, c.builder.convert(x, dtype), bound)
    return x


def _function(name: str) -> None:
    @rule(name)
    def apply(c: Context, x: Value) -> Value:
        return c.op(name, c.builder.convert(x, DType.F32))


for _name in ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"):
    _function(_name)


@rule("logaddexp")
def logaddexp(c: Context, a: Value, b: Value) -> Value:
    # The difference of two equal infinities is NaN.
    apart = c.op("where", c.op("eq", a, b), c.f32(0.0), c.op("sub", a, b))
    e = c.op("exp", c.op("neg", c.op("abs", apart)))
    return c.op("add", c.op("maximum", a, b), c.op("log1p", e))


@rule("xlogy")
def xlogy(c: Context, a: Any, b: Any) -> Value:
    """a * log b; zero where a is, unless b is NaN."""
    a, b = c.operands(a, b, floating=True)
    zero = c.f32(0.0)
    none = c.op("logical_and", c.op("eq", a, zero), c.op("eq", b, b))
    return c.op("where", none, zero, c.op("mul", a, c.op("log", c.op("where", none, c.f32(1.0), b))))


@rule("bitwise_and.Tensor", "bitwise_and.Scalar", "bitwise_or.Tensor", "bitwise_or.Scalar")
def bitwise(c: Context, a: Any, b: Any) -> Value:
    """Of truths. Bits of integers that are known at capture are computed there."""
    a, b = c.operands(a, b)
    _need_truths(c, a)
    return c.op("logical_and" if "and" in str(c.node.target) else "logical_or", a, b)


@rule("bitwise_xor.Tensor", "bitwise_xor.Scalar")
def bitwise_xor(c: Context, a: Any, b: Any) -> Value:
    a, b = c.operands(a, b)
    _need_truths(c, a)
    return xor(c, a, b)


@rule("bitwise_not")
def bitwise_not(c: Context, x: Value) -> Value:
    _need_truths(c, x)
    return c.op("logical_not", x)


def _need_truths(c: Context, x: Value) -> None:
    if c.dtype(x) != DType.BOOL:
        raise CaptureError("combines the bits of integers that a step computes: make them fields of the dataset")


@rule("ceil")
def ceil(c: Context, x: Value) -> Value:
    return x if c.dtype(x) == DType.I64 else c.op("neg", c.op("floor", c.op("neg", x)))


@rule("trunc")
def trunc(c: Context, x: Value) -> Value:
    if c.dtype(x) == DType.I64:
        return x
    return c.op("where", c.op("lt", x, c.f32(0.0)), ceil(c, x), c.op("floor", x))


@rule("remainder", at_capture=True)
def remainder(c: Context, a: Any, b: Any) -> Value:
    """a - floor(a / b) b of integers, by a constant above zero."""
    a, divisor = _integers(c, a, b, "a - torch.floor(a / b) * b")
    return c.op("sub", a, c.op("mul", _floor_of_integers(c, a, divisor), c.i64(divisor)))


@rule("div.Tensor_mode", "div.Scalar_mode", at_capture=True)
def divide(c: Context, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    """trunc: of the rounded FP32 quotient; floor: of integers by a constant above zero."""
    if rounding_mode is None:
        return c.op("div", *c.operands(a, b, floating=True))
    if rounding_mode == "floor":
        return _floor_of_integers(c, *_integers(c, a, b, "torch.floor(a / b)"))
    if c.dtype((operands := c.operands(a, b))[0]) != DType.F32:
        raise CaptureError("cuts quotients of integers off towards zero: write a // b, for numbers above zero the same")
    return trunc(c, c.op("div", *operands))


def _integers(c: Context, a: Any, b: Any, of_fractions: str) -> tuple[Value, int]:
    """The dividend as int64, and the divisor. of_fractions: what to write where they are no integers."""
    given = b
    a, b = c.operands(a, b)
    if c.dtype(a) == DType.F32:
        raise CaptureError(f"divides fractions with a remainder: write {of_fractions}")
    known = c.known(c.node.args[1])
    if not c.is_tensor(1):
        divisor = int(given)
    elif known is not None and known.numel() == 1:
        divisor = int(known)
    else:
        raise CaptureError("divides integers by a tensor: divide by a number, or convert to float32")
    if divisor <= 0:
        raise CaptureError(f"divides integers by {divisor}: only numbers above zero are supported")
    shape = torch.broadcast_shapes(c.shape(a), c.shape(b))
    return c.builder.expand(c.builder.convert(a, DType.I64), shape), divisor


def _floor_of_integers(c: Context, a: Value, divisor: int) -> Value:
    """Floor of a / divisor, by long division in hexadecimal: a digit is how many of 1 .. 15 times its worth fit into
    what is left. Below zero, floor(a / b) = -1 - floor((-1 - a) / b), which no int64 overflows."""
    if divisor == 1:
        return a
    minus = c.i64(-1)
    negative = c.op("lt", a, c.i64(0))
    rest = c.op("where", negative, c.op("sub", minus, a), a)
    shape, last = c.shape(a), c.rank(a)
    quotient = c.i64(0)
    for place in range(15, -1, -1):
        worth = divisor * 16**place
        multiples = [worth * digit for digit in range(1, 16) if worth * digit < 2**63]
        if not multiples:
            continue
        wide = c.builder.reshape(rest, (*shape, 1))
        fits = c.op("to_i64", c.op("le", c.literal(torch.tensor(multiples)), wide))
        digit = c.builder.reshape(c.op("sum_i64", fits, dims=(last,)), shape)
        rest = c.op("sub", rest, c.op("mul", digit, c.i64(worth)))
        quotient = c.op("add", quotient, c.op("mul", digit, c.i64(16**place)))
    return c.op("where", negative, c.op("sub", minus, quotient), quotient)
