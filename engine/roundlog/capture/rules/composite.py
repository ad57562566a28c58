"""Normalisation, softmax and dropout, written out in elementary operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.elementwise import rsqrt
from roundlog.capture.rules.reduction import variance
from roundlog.capture.rules.table import Context, Scalar, rule
from roundlog.program import DType, TensorType


@rule("_softmax")
def softmax(c: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    e, total = _exponentials(c, x, c.dim(dim, c.rank(x)))[1:]
    return c.op("div", e, total)


@rule("_log_softmax")
def log_softmax(c: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    shifted, _, total = _exponentials(c, x, c.dim(dim, c.rank(x)))
    return c.op("sub", shifted, c.op("log", total))


def _exponentials(c: Context, x: Value, dim: int) -> tuple[Value, Value, Value]:
    """(x - max, its exponentials, their sum): the shift keeps every exponential at or below 1."""
    shifted = c.op("sub", x, c.op("amax", x, dims=(dim,)))
    e = c.op("exp", shifted)
    return shifted, e, c.op("sum", e, dims=(dim,))


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
            raise CaptureError("normalises by running statistics that are not there")
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


@rule("bernoulli.p", "bernoulli_.float")
def bernoulli(c: Context, x: Value, p: float = 0.5, *, generator: None = None) -> Value:
    """1 with probability p, else 0: uniform < p, p rounded to FP32."""
    drawn = c.op("lt", c.builder.uniform(c.shape(x)), c.f32(p))
    return c.op("to_f32", drawn)


@rule("bernoulli")
def bernoulli_of(c: Context, x: Value, *, generator: None = None) -> Value:
    return c.op("to_f32", c.op("lt", c.builder.uniform(c.shape(x)), x))


@rule("rand", "rand_like")
def rand(c: Context, *_: Any, **__: Any) -> Value:
    return c.builder.uniform(tuple(int(n) for n in c.node.meta["val"].shape))


@rule("native_dropout")
def native_dropout(c: Context, x: Value, p: Scalar, train: bool | None) -> tuple[Value, Value]:
    if train is False:
        raise CaptureError("applies dropout outside of training")
    mask = c.op("lt", c.builder.uniform(c.shape(x)), c.f32(1 - p))
    scaled = c.op("mul", x, c.f32(1 / (1 - p)))
    return c.op("where", mask, scaled, c.f32(0.0)), mask
