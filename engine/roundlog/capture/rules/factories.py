"""Tensors made from nothing: filled, counted, and random, all of the last made of `uniform` numbers. Every operator
draws from a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import tau
from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.rule_table import Context, Scalar, rule, storage
from roundlog.program import DType


def _dtype(c: Context, dtype: torch.dtype | None) -> DType:
    return DType.F32 if dtype is None else storage(dtype)


@rule("full")
def full(c: Context, shape: Sequence[int], value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if isinstance(value, Value):
        return c.builder.expand(c.builder.convert(value, storage(c.node.meta["val"].dtype)), shape)
    return c.builder.constant(value, storage(c.node.meta["val"].dtype), shape)


@rule("full_like")
def full_like(c: Context, x: Value, value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if isinstance(value, Value):
        return c.builder.expand(c.builder.convert(value, storage(c.node.meta["val"].dtype)), c.shape(x))
    return c.builder.constant(value, c.dtype(x) if dtype is None else storage(dtype), c.shape(x))


@rule("zeros_like", "empty_like", "new_zeros", "_new_zeros_with_same_feature_meta", "new_empty", "new_empty_strided")
def zeros_like(c: Context, x: Value, *_: Any, **__: Any) -> Value:
    traced = c.node.meta["val"]
    return c.builder.constant(0, storage(traced.dtype), tuple(traced.shape))


_WRITTEN = (None, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool)


@rule("zeros", "ones", "empty", "empty_permuted")
def filled(c: Context, shape: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Value | None:
    # Memory that is never read may have any dtype; `None` is what reading it would find.
    if "empty" in str(c.node.target) and dtype not in _WRITTEN:
        return None
    return c.builder.constant(1 if "ones" in str(c.node.target) else 0, _dtype(c, dtype), shape)


@rule("scalar_tensor")
def scalar_tensor(c: Context, value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if isinstance(value, Value):
        return c.builder.convert(value, storage(c.node.meta["val"].dtype))
    return c.builder.constant(value, _dtype(c, dtype))


@rule("arange")
def arange(c: Context, *args: Scalar, dtype: torch.dtype | None = None, **_: Any) -> Value:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (args[0], args[1], args[2] if len(args) > 2 else 1)
    traced = c.node.meta["val"]
    if any(not isinstance(item, int) for item in (start, end, step)):
        raise CaptureError("counts in fractions: count in integers and multiply")
    count = len(range(int(start), int(end), int(step)))
    return c.builder.convert(c.iota(count, int(start), int(step)), storage(traced.dtype))


@rule("eye", "eye.m")
def eye(c: Context, rows: int, columns: int | None = None, **_: Any) -> Value:
    row = c.builder.reshape(c.iota(rows), (rows, 1))
    same = c.op("eq", row, c.iota(rows if columns is None else columns))
    return c.builder.convert(same, storage(c.node.meta["val"].dtype))


def _shape(c: Context) -> tuple[int, ...]:
    return tuple(int(n) for n in c.node.meta["val"].shape)


@rule("bernoulli.p", "bernoulli_.float")
def bernoulli(c: Context, x: Value, p: float = 0.5, *, generator: None = None) -> Value:
    """1 with probability p, else 0: uniform < p, p rounded to FP32."""
    drawn = c.op("lt", c.builder.uniform(c.shape(x)), c.f32(p))
    return c.op("to_f32", drawn)


@rule("native_dropout")
def native_dropout(c: Context, x: Value, p: Scalar, train: bool | None) -> tuple[Value, Value]:
    if train is False:
        raise CaptureError("applies dropout outside of training: leave it out, since it changes nothing there")
    mask = c.op("lt", c.builder.uniform(c.shape(x)), c.f32(1 - p))
    scaled = c.op("mul", x, c.f32(1 / (1 - p)))
    return c.op("where", mask, scaled, c.f32(0.0)), mask


@rule("rand", "rand_like")
def rand(c: Context, *_: Any, **__: Any) -> Value:
    return c.builder.uniform(_shape(c))


@rule("uniform_")
def uniform(c: Context, x: Value, low: float = 0.0, high: float = 1.0, *, generator: None = None) -> Value:
    drawn = c.builder.uniform(_shape(c))
    return drawn if (low, high) == (0, 1) else c.op("add", c.f32(low), c.op("mul", c.f32(high - low), drawn))


def _never_zero(c: Context) -> Value:
    """Uniform in (0, 1): half a unit in the last place stands for zero."""
    drawn = c.builder.uniform(_shape(c))
    return c.op("where", c.op("eq", drawn, c.f32(0.0)), c.f32(2.0**-25), drawn)


@rule("exponential_")
def exponential(c: Context, x: Value, rate: float = 1.0, *, generator: None = None) -> Value:
    drawn = c.op("neg", c.op("log", _never_zero(c)))
    return drawn if rate == 1 else c.op("div", drawn, c.f32(rate))


def _standard_normal(c: Context) -> Value:
    """Box and Muller 1958: sqrt(-2 log u) cos(2 pi v)."""
    radius = c.op("sqrt", c.op("mul", c.f32(-2.0), c.op("log", _never_zero(c))))
    return c.op("mul", radius, c.op("cos", c.op("mul", c.f32(tau), c.builder.uniform(_shape(c)))))


@rule("randn", "randn_like")
def randn(c: Context, *_: Any, **__: Any) -> Value:
    return _standard_normal(c)


@rule("normal.float_float")
def normal(c: Context, mean: float, deviation: float, shape: Sequence[int], **_: Any) -> Value:
    return c.op("add", c.f32(mean), c.op("mul", c.f32(deviation), _standard_normal(c)))


@rule("normal_", "normal_functional")
def normal_(c: Context, x: Value, mean: float = 0.0, deviation: float = 1.0, *, generator: None = None) -> Value:
    return normal(c, mean, deviation, ())


@rule("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(c: Context, *args: Any, dtype: Any = None, **_: Any) -> Value:
    """floor(uniform * n), found among the numbers below n."""
    bounds = [item for position, item in enumerate(args) if isinstance(item, int) and not c.is_tensor(position)]
    low, high = (0, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
    count, shape = high - low, _shape(c)
    if not 0 < count <= 1 << 16:
        raise CaptureError(f"draws from {count} integers: up to 65536 are supported")
    scaled = c.op("floor", c.op("mul", c.builder.uniform(shape), c.f32(count)))
    drawn = c.builder.reshape(c.op("minimum", scaled, c.f32(count - 1)), (*shape, 1))
    hits = c.op("to_f32", c.op("eq", drawn, c.op("to_f32", c.iota(count))))
    found = c.squeeze(c.op("argmax", hits, dim=len(shape)), [len(shape)])
    result = c.op("add", found, c.i64(low)) if low else found
    return c.builder.convert(result, storage(c.node.meta["val"].dtype))
