"""Sums, means, extremes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from roundlog.capture.builder import Value
from roundlog.capture.rules.table import Context, Scalar, rule
from roundlog.program import DType


def kept(c: Context, y: Value, dims: Sequence[int], keepdim: bool) -> Value:
    return y if keepdim else c.squeeze(y, dims)


@rule("sum")
def sum_(
    c: Context,
    x: Value,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    x = c.to_torch_dtype(x, dtype)
    if c.dtype(x) == DType.BOOL:
        x = c.builder.convert(x, DType.I64)
    over = c.dims(dims, c.rank(x))
    name = "sum" if c.dtype(x) == DType.F32 else "sum_i64"
    return kept(c, c.op(name, x, dims=over), over, keepdim)


@rule("mean")
def mean(
    c: Context,
    x: Value,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    x = c.to_torch_dtype(x, dtype)
    over = c.dims(dims, c.rank(x))
    return kept(c, mean_over(c, x, over), over, keepdim)


def mean_over(c: Context, x: Value, dims: Sequence[int]) -> Value:
    """sum / count over axes that stay."""
    count = prod(c.shape(x)[d] for d in dims)
    return c.op("div", c.op("sum", x, dims=tuple(dims)), c.f32(count))


@rule("var.correction")
def var(
    c: Context, x: Value, dims: Sequence[int] | None = None, *, correction: Scalar | None = None, keepdim: bool = False
) -> Value:
    over = c.dims(dims, c.rank(x))
    return kept(c, variance(c, x, over, 1 if correction is None else correction)[1], over, keepdim)


@rule("var_mean.correction")
def var_mean(
    c: Context, x: Value, dims: Sequence[int] | None = None, *, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    over = c.dims(dims, c.rank(x))
    mean_, var_ = variance(c, x, over, 1 if correction is None else correction)
    return kept(c, var_, over, keepdim), kept(c, mean_, over, keepdim)


def variance(c: Context, x: Value, dims: Sequence[int], correction: Scalar) -> tuple[Value, Value]:
    """(mean, variance) in two passes, over axes that stay."""
    mean_ = mean_over(c, x, dims)
    centred = c.op("sub", x, mean_)
    squares = c.op("sum", c.op("mul", centred, centred), dims=tuple(dims))
    count = prod(c.shape(x)[d] for d in dims) - correction
    return mean_, c.op("div", squares, c.f32(max(count, 0)))


@rule("amax", "amin")
def extreme(c: Context, x: Value, dims: Sequence[int] | None = None, keepdim: bool = False) -> Value:
    over = c.dims(dims, c.rank(x))
    name = "amax" if "amax" in str(c.node.target) else "amin"
    return kept(c, c.op(name, x, dims=over), over, keepdim)


@rule("argmax")
def argmax(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    if dim is None:
        x, dim = c.builder.reshape(x, (prod(c.shape(x)),)), 0
        return c.squeeze(c.op("argmax", x, dim=0), [0])
    dim = c.dim(dim, c.rank(x))
    return kept(c, c.op("argmax", x, dim=dim), [dim], keepdim)


@rule("max.dim")
def max_dim(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    dim = c.dim(dim, c.rank(x))
    index = c.op("argmax", x, dim=dim)
    return kept(c, c.op("gather", x, index, dim=dim), [dim], keepdim), kept(c, index, [dim], keepdim)


@rule("any")
def any_(c: Context, x: Value, dims: Sequence[int] | int | None = None, keepdim: bool = False) -> Value:
    over = c.dims(dims, c.rank(x))
    return kept(c, c.op("any", c.builder.convert(x, DType.BOOL), dims=over), over, keepdim)


@rule("all")
def all_(c: Context, x: Value, dims: Sequence[int] | int | None = None, keepdim: bool = False) -> Value:
    over = c.dims(dims, c.rank(x))
    untrue = c.op("logical_not", c.builder.convert(x, DType.BOOL))
    return kept(c, c.op("logical_not", c.op("any", untrue, dims=over)), over, keepdim)
