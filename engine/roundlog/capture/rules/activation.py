"""Activation functions, in forms in which nothing overflows that PyTorch has a number for."""

from __future__ import annotations

from roundlog.capture.builder import Value
from roundlog.capture.rules.table import Context, Scalar, rule


@rule("relu")
def relu(c: Context, x: Value) -> Value:
    return c.op("maximum", x, c.builder.constant(0, c.dtype(x)))


@rule("threshold_backward")
def threshold_backward(c: Context, g: Value, x: Value, threshold: Scalar) -> Value:
    return c.op("where", c.op("le", x, c.f32(threshold)), c.f32(0.0), g)


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


@rule("hardshrink")
def hardshrink(c: Context, x: Value, limit: Scalar = 0.5) -> Value:
    return shrink_backward(c, x, x, limit)


@rule("hardshrink_backward", "softshrink_backward")
def shrink_backward(c: Context, g: Value, x: Value, limit: Scalar) -> Value:
    return c.op("where", c.op("le", c.op("abs", x), c.f32(limit)), c.f32(0.0), g)
