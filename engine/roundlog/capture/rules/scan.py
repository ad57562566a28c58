"""Running sums, products and extremes, and products over axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from roundlog.capture.builder import Value
from roundlog.capture.rules.elementwise import not_a_number
from roundlog.capture.rules.movement import pad
from roundlog.capture.rules.reduction import kept
from roundlog.capture.rules.table import Context, rule
from roundlog.program import DType


@rule("cumsum")
def cumsum(c: Context, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """Integers exactly; FP32 as a product with a triangle of ones, so that every prefix is rounded once. Zeros meet
    what comes after a prefix, so that an infinity makes the prefixes before it NaN."""
    x = c.to_torch_dtype(x, dtype)
    if c.dtype(x) == DType.BOOL:
        x = c.builder.convert(x, DType.I64)
    rank = c.rank(x)
    if rank == 0:
        return x
    dim = c.dim(dim, rank)
    if c.dtype(x) == DType.I64:
        return _scan(c, "add", x, dim, 0)
    size, moved = c.shape(x)[dim], c.move(x, dim, rank - 1)
    shape = c.shape(moved)
    row, column = c.builder.reshape(c.iota(size), (size, 1)), c.iota(size)
    triangle = c.op("to_f32", c.op("le", row, column))
    sums = c.op("matmul", c.builder.reshape(moved, (prod(shape[:-1]), size)), triangle)
    return c.move(c.builder.reshape(sums, shape), rank - 1, dim)


@rule("cumprod")
def cumprod(c: Context, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """Running product by doubling: log2(n) multiplications, in an order of its own."""
    x = c.to_torch_dtype(x, dtype)
    if c.dtype(x) == DType.BOOL:
        x = c.builder.convert(x, DType.I64)
    return _scan(c, "mul", x, c.dim(dim, c.rank(x)), 1) if c.rank(x) else x


def _scan(c: Context, name: str, x: Value, dim: int, neutral: int) -> Value:
    """Hillis and Steele 1986: after the round with stride s, an element holds the 2s last ones up to itself."""
    size, rank, stride = c.shape(x)[dim], c.rank(x), 1
    while stride < size:
        earlier = c.op("slice", x, dim=dim, start=0, stop=size - stride, step=1)
        low = [stride if d == dim else 0 for d in range(rank)]
        x = c.op(name, x, pad(c, earlier, low, [0] * rank, neutral))
        stride *= 2
    return x


@rule("cummax", "cummin", at_capture=True)
def running_extreme(c: Context, x: Value, dim: int) -> tuple[Value, Value]:
    """Running maximum or minimum by doubling, with its index: the last of equal elements. NaN stays."""
    if c.rank(x) == 0:
        return x, c.i64(0)
    dim = c.dim(dim, c.rank(x))
    size, stride = c.shape(x)[dim], 1
    along = [size if d == dim else 1 for d in range(c.rank(x))]
    place = c.builder.expand(c.builder.reshape(c.iota(size), along), c.shape(x))
    largest = "cummax" in str(c.node.target)
    while stride < size:
        before, place_before = (_cut(c, value, dim, 0, size - stride) for value in (x, place))
        after, place_after = (_cut(c, value, dim, stride, size) for value in (x, place))
        goes_on = c.op("lt", after, before) if largest else c.op("lt", before, after)
        if c.dtype(x) == DType.F32:
            lost = c.op("logical_and", not_a_number(c, before), c.op("eq", after, after))
            goes_on = c.op("logical_or", goes_on, lost)
        first, place_first = (_cut(c, value, dim, 0, stride) for value in (x, place))
        x = c.op("cat", first, c.op("where", goes_on, before, after), dim=dim)
        place = c.op("cat", place_first, c.op("where", goes_on, place_before, place_after), dim=dim)
        stride *= 2
    return x, place


def _cut(c: Context, x: Value, dim: int, start: int, stop: int) -> Value:
    return c.op("slice", x, dim=dim, start=start, stop=stop, step=1)


@rule("prod.dim_int")
def prod_dim(c: Context, x: Value, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    x = c.to_torch_dtype(x, dtype)
    if c.dtype(x) == DType.BOOL:
        x = c.builder.convert(x, DType.I64)
    if c.rank(x) == 0:
        return x
    dim = c.dim(dim, c.rank(x))
    return kept(c, _product(c, x, dim), [dim], keepdim)


@rule("prod")
def prod_all(c: Context, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    x = c.to_torch_dtype(x, dtype)
    if c.dtype(x) == DType.BOOL:
        x = c.builder.convert(x, DType.I64)
    return c.builder.reshape(_product(c, c.builder.reshape(x, (prod(c.shape(x)),)), 0), ())


def _product(c: Context, x: Value, dim: int) -> Value:
    """Halves multiplied together until one element is left, on an axis that stays."""
    size = c.shape(x)[dim]
    if size == 0:
        shape: Sequence[int] = [1 if d == dim else n for d, n in enumerate(c.shape(x))]
        return c.builder.constant(1, c.dtype(x), shape)
    while size > 1:
        half = size // 2
        low = c.op("slice", x, dim=dim, start=0, stop=half, step=1)
        high = c.op("slice", x, dim=dim, start=half, stop=2 * half, step=1)
        rest = [c.op("slice", x, dim=dim, start=2 * half, stop=size, step=1)] if size % 2 else []
        product = c.op("mul", low, high)
        x = c.op("cat", product, *rest, dim=dim) if rest else product
        size = half + len(rest)
    return x
