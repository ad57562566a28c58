"""Arithmetic, comparisons and elementary functions, also of bits of integers and of masks; quotients without their
fraction, and what they leave over; powers and logarithms; activation functions, in forms in which nothing overflows
that PyTorch has a number for."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
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


WHOLE_EXPONENTS = 64
"""Largest whole exponent, of those that a step computes, whose power is taken by multiplications."""


@rule("pow.Tensor_Tensor", "pow_.Tensor")
def pow_tensor(c: Context, x: Value, exponent: Value) -> Value:
    """Whole exponents n up to 64 by multiplications, each rounded (relative error at most (n + 1) 2^-24, none where
    FP32 holds every product); others as e^(exponent * log |x|), within 2^-23 (1 + |exponent * log x|) relatively."""
    if DType.F32 not in (c.dtype(x), c.dtype(exponent)):
        raise CaptureError("raises integers to variable powers: convert them to float32")
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
    """e^(x * log base), with a relative error of at most 2^-23 (1 + |x * log base|)."""
    if base <= 0:
        raise CaptureError(f"raises {base} to variable powers: only a positive base is supported")
    if isinstance(base, int) and c.dtype(x) != DType.F32:
        raise CaptureError("raises integers to variable powers: convert them to float32")
    return c.op("exp", c.op("mul", c.builder.convert(x, DType.F32), c.f32(log(base))))


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


@rule("relu")
def relu(c: Context, x: Value) -> Value:
    return c.op("maximum", x, c.builder.constant(0, c.dtype(x)))


@rule("sigmoid")
def sigmoid(c: Context, x: Value) -> Value:
    # 1 / (1 + e^-x) in a form that cannot overflow: e^-|x| <= 1.
    e = c.op("exp", c.op("neg", c.op("abs", x)))
    one = c.f32(1.0)
    below = c.op("lt", x, c.f32(0.0))
    return c.op("div", c.op("where", below, e, one), c.op("add", one, e))


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


def _scaled(c: Context, x: Value, factor: Scalar) -> Value:
    return x if factor == 1 else c.op("mul", x, c.f32(factor))


@rule("elu")
def elu(c: Context, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Value:
    zero = c.f32(0.0)
    below = _scaled(c, c.op("expm1", _scaled(c, c.op("minimum", x, zero), input_scale)), alpha * scale)
    return c.op("where", c.op("lt", zero, x), _scaled(c, x, scale), below)


@rule("elu_backward")
def elu_backward(
    c: Context, g: Value, alpha: Scalar, scale: Scalar, input_scale: Scalar, is_result: bool, x: Value
) -> Value:
    zero = c.f32(0.0)
    if is_result:
        slope = _scaled(c, c.op("add", x, c.f32(alpha * scale)), input_scale)
    else:
        e = c.op("exp", _scaled(c, c.op("minimum", x, zero), input_scale))
        slope = _scaled(c, e, alpha * scale * input_scale)
    return c.op("mul", g, c.op("where", c.op("lt", zero, x), c.f32(scale), slope))


def _log_of_one_plus_exp(c: Context, x: Value) -> Value:
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)."""
    return c.op("add", c.op("maximum", x, c.f32(0.0)), c.op("log1p", c.op("exp", c.op("neg", c.op("abs", x)))))


@rule("softplus")
def softplus(c: Context, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    inner = _scaled(c, x, beta)
    smooth = _log_of_one_plus_exp(c, inner)
    if beta != 1:
        smooth = c.op("div", smooth, c.f32(beta))
    return c.op("where", c.op("lt", c.f32(threshold), inner), x, smooth)


@rule("softplus_backward")
def softplus_backward(c: Context, g: Value, x: Value, beta: Scalar, threshold: Scalar) -> Value:
    inner = _scaled(c, x, beta)
    return c.op("where", c.op("lt", c.f32(threshold), inner), g, c.op("mul", g, sigmoid(c, inner)))


@rule("mish")
def mish(c: Context, x: Value) -> Value:
    return c.op("mul", x, c.op("tanh", _log_of_one_plus_exp(c, x)))


@rule("mish_backward")
def mish_backward(c: Context, g: Value, x: Value) -> Value:
    t = c.op("tanh", _log_of_one_plus_exp(c, x))
    slope = c.op("mul", c.op("mul", x, sigmoid(c, x)), c.op("sub", c.f32(1.0), c.op("mul", t, t)))
    return c.op("mul", g, c.op("add", t, slope))


@rule("hardshrink_backward", "softshrink_backward")
def shrink_backward(c: Context, g: Value, x: Value, limit: Scalar) -> Value:
    return c.op("where", c.op("le", c.op("abs", x), c.f32(limit)), c.f32(0.0), g)
