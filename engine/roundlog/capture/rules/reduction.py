"""Sums, means, extremes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import torch

from roundlog.capture.builder import Value
from roundlog.capture.rules.powers import pow_
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


def mean_over(c: Context, x: Value, dims: Iterable[int]) -> Value:
    """sum / count over axes that stay."""
    over = tuple(dims)
    count = prod(c.shape(x)[d] for d in over)
    return c.op("div", c.op("sum", x, dims=over), c.f32(count))


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


@rule("max", "min")
def extreme_of_all(c: Context, x: Value) -> Value:
    over = tuple(range(c.rank(x)))
    name = "amax" if "max" in str(c.node.target) else "amin"
    if c.dtype(x) == DType.F32:
        return c.builder.reshape(c.op(name, x, dims=over), ())
    flat = c.builder.reshape(x, (prod(c.shape(x)),))
    return c.builder.reshape(c.op("gather", flat, _place(c, flat, 0, name == "amax"), dim=0), ())


def _place(c: Context, x: Value, dim: int, largest: bool) -> Value:
    """Place of the first largest or smallest element along an axis, which stays."""
    if c.dtype(x) == DType.BOOL:
        x = c.builder.convert(x, DType.F32)
    if c.dtype(x) == DType.I64:
        # The first that no other is beyond: of integers there is no argmax.
        size, rank = c.shape(x)[dim], c.rank(x)
        line = c.move(x, dim, rank - 1)
        this = c.builder.reshape(line, (*c.shape(line), 1))
        other = c.builder.reshape(line, (*c.shape(line)[:-1], 1, size))
        beyond = c.op("any", c.op("lt", this, other) if largest else c.op("lt", other, this), dims=(rank,))
        best = c.op("to_f32", c.op("logical_not", c.squeeze(beyond, [rank])))
        return c.move(c.op("argmax", best, dim=rank - 1), rank - 1, dim)
    return c.op("argmax", x if largest else c.op("neg", x), dim=dim)


@rule("argmax", "argmin")
def argmax(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    largest = "argmax" in str(c.node.target)
    if dim is None or c.rank(x) == 0:
        flat = c.builder.reshape(x, (prod(c.shape(x)),))
        shape = (1,) * c.rank(x) if keepdim else ()
        return c.builder.reshape(_place(c, flat, 0, largest), shape)
    dim = c.dim(dim, c.rank(x))
    return kept(c, _place(c, x, dim, largest), [dim], keepdim)


@rule("max.dim", "min.dim")
def extreme_and_place(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    if c.rank(x) == 0:
        return x, c.i64(0)
    dim = c.dim(dim, c.rank(x))
    index = _place(c, x, dim, "max" in str(c.node.target))
    return kept(c, c.op("gather", x, index, dim=dim), [dim], keepdim), kept(c, index, [dim], keepdim)


@rule("linalg_vector_norm")
def vector_norm(
    c: Context,
    x: Value,
    ord: Scalar = 2,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    x = c.to_torch_dtype(x, dtype)
    over = c.dims(dims, c.rank(x))
    size = c.op("abs", x)
    if ord in (float("inf"), float("-inf")):
        result = c.op("amax" if ord > 0 else "amin", size, dims=over)
    elif ord == 0:
        result = c.op("sum", c.op("to_f32", c.op("logical_not", c.op("eq", x, c.f32(0.0)))), dims=over)
    else:
        powers = size if ord == 1 else pow_(c, size, ord)
        result = c.op("sum", powers, dims=over)
        result = result if ord == 1 else pow_(c, result, 1 / ord)
    return kept(c, result, over, keepdim)


@rule("any")
def any_(c: Context, x: Value, dims: Sequence[int] | int | None = None, keepdim: bool = False) -> Value:
    over = c.dims(dims, c.rank(x))
    return kept(c, c.op("any", c.builder.convert(x, DType.BOOL), dims=over), over, keepdim)


@rule("all", "_is_all_true")
def all_(c: Context, x: Value, dims: Sequence[int] | int | None = None, keepdim: bool = False) -> Value:
    over = c.dims(dims, c.rank(x))
    untrue = c.op("logical_not", c.builder.convert(x, DType.BOOL))
    return kept(c, c.op("logical_not", c.op("any", untrue, dims=over)), over, keepdim)
