"""Activation functions, in forms in which nothing overflows that PyTorch has a number for; normalisation, softmax and
dropout, written out in elementary operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.pointwise import rsqrt
from roundlog.capture.rules.reductions import variance
from roundlog.capture.rules.rule_table import Context, Scalar, rule
from roundlog.program import DType, TensorType


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


@rule("_softmax")
def softmax(c: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    e, total = _exponentials(c, x, c.dims(dim, c.rank(x)))[1:]
    return c.op("div", e, total)


@rule("_log_softmax")
def log_softmax(c: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    shifted, _, total = _exponentials(c, x, c.dims(dim, c.rank(x)))
    return c.op("sub", shifted, c.op("log", total))


@rule("_safe_softmax")
def safe_softmax(c: Context, x: Value, dim: int, dtype: Any = None) -> Value:
    """Softmax; where everything along the axis is -inf, zeros."""
    x = c.to_torch_dtype(x, dtype)
    over = c.dims(dim, c.rank(x))
    largest = c.op("amax", x, dims=over)
    none = c.op("eq", largest, c.f32(float("-inf")))
    e = c.op("exp", c.op("sub", x, c.op("where", none, c.f32(0.0), largest)))
    total = c.op("sum", e, dims=over)
    return c.op("div", e, c.op("where", none, c.f32(1.0), total))


def _exponentials(c: Context, x: Value, over: tuple[int, ...]) -> tuple[Value, Value, Value]:
    """(x - max, its exponentials, their sum): the shift keeps every exponential at or below 1."""
    shifted = c.op("sub", x, c.op("amax", x, dims=over))
    e = c.op("exp", shifted)
    return shifted, e, c.op("sum", e, dims=over)


@rule("native_layer_norm")
def layer_norm(
    c: Context, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    rank = c.rank(x)
    mean, var = variance(c, x, tuple(range(rank - len(shape), rank)), 0)
    rstd = rsqrt(c, c.op("add", var, c.f32(eps)))
    y = c.op("mul", c.op("sub", x, mean), rstd)
    if weight is not None:
        y = c.op("mul", y, weight)
    if bias is not None:
        y = c.op("add", y, bias)
    return y, mean, rstd


@rule("native_group_norm")
def group_norm(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    samples: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    blocks = c.builder.reshape(x, (samples, groups, channels // groups * inner))
    mean, var = variance(c, blocks, (2,), 0)
    rstd = rsqrt(c, c.op("add", var, c.f32(eps)))
    y = c.builder.reshape(c.op("mul", c.op("sub", blocks, mean), rstd), c.shape(x))
    along = (1, channels, *[1] * (c.rank(x) - 2))
    if weight is not None:
        y = c.op("mul", y, c.builder.reshape(weight, along))
    if bias is not None:
        y = c.op("add", y, c.builder.reshape(bias, along))
    return y, c.squeeze(mean, [2]), c.squeeze(rstd, [2])


@rule("_weight_norm_interface_backward")
def weight_norm_backward(c: Context, g: Value, v: Value, size: Value, norms: Value, dim: int) -> tuple[Value, Value]:
    """Gradients of v * size / norm(v), norms over all axes but one."""
    over = tuple(d for d in range(c.rank(v)) if d != c.dim(dim, c.rank(v)))
    inward = c.op("sum", c.op("mul", g, v), dims=over)
    projected = c.op("mul", v, c.op("div", inward, c.op("mul", norms, norms)))
    grad_v = c.op("mul", c.op("div", size, norms), c.op("sub", g, projected))
    return grad_v, c.op("div", inward, norms)


@rule("native_batch_norm")
def batch_norm(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Running statistics are updated in place, as PyTorch does: with the unbiased variance."""
    channels = c.shape(x)[1]
    along = (1, channels, *[1] * (c.rank(x) - 2))
    over = tuple(d for d in range(c.rank(x)) if d != 1)

    def channel(value: Value) -> Value:
        return c.builder.reshape(value, along)

    if training:
        mean, var = variance(c, x, over, 0)
        if running_mean is not None and running_var is not None:
            count = prod(c.shape(x)[d] for d in over)
            if count < 2:
                raise CaptureError("normalises over a single element a channel: use a larger batch")
            unbiased = c.op("mul", c.builder.reshape(var, (channels,)), c.f32(count / (count - 1)))
            for position, old, new in (
                (3, running_mean, c.builder.reshape(mean, (channels,))),
                (4, running_var, unbiased),
            ):
                kept = c.op("mul", c.f32(1 - momentum), old)
                c.rebind(c.node.args[position], c.op("add", kept, c.op("mul", c.f32(momentum), new)))  # type: ignore[arg-type]
    else:
        if running_mean is None or running_var is None:
            raise CaptureError(
                "normalises by running statistics that are not there: make the module with track_running_stats=True"
            )
        mean, var = channel(running_mean), channel(running_var)
    rstd = rsqrt(c, c.op("add", var, c.f32(eps)))
    y = c.op("mul", c.op("sub", x, mean), rstd)
    if weight is not None:
        y = c.op("mul", y, channel(weight))
    if bias is not None:
        y = c.op("add", y, channel(bias))
    saved = (channels,) if training else (0,)
    if not training:
        empty = c.builder.source_op("constant", TensorType((0,), DType.F32), bits=())
        return y, empty, empty
    return y, c.builder.reshape(mean, saved), c.builder.reshape(rstd, saved)
