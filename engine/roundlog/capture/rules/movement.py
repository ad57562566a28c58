"""Shapes, views, indexing, and tensors made from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.table import Context, Scalar, rule
from roundlog.program import DType, TensorType


@rule("alias", "detach", "lift_fresh", view=True)
@rule("clone", "lift_fresh_copy", "contiguous")
def same(c: Context, x: Value, **_: Any) -> Value:
    return x


@rule("_to_copy")
def to_copy(c: Context, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return c.to_torch_dtype(x, dtype)


@rule("copy")
def copy(c: Context, target: Value, x: Value, non_blocking: bool = False) -> Value:
    return c.builder.expand(c.builder.convert(x, c.dtype(target)), c.shape(target))


@rule("view", "_unsafe_view", "reshape", view=True)
def view(c: Context, x: Value, shape: Sequence[int]) -> Value:
    known = prod(size for size in shape if size != -1)
    total = prod(c.shape(x))
    return c.builder.reshape(x, [total // known if size == -1 else size for size in shape])


@rule("permute", view=True)
def permute(c: Context, x: Value, dims: Sequence[int]) -> Value:
    return c.builder.permute(x, [c.dim(d, c.rank(x)) for d in dims])


@rule("transpose.int", view=True)
def transpose(c: Context, x: Value, a: int, b: int) -> Value:
    dims = list(range(c.rank(x)))
    a, b = c.dim(a, len(dims)), c.dim(b, len(dims))
    dims[a], dims[b] = dims[b], dims[a]
    return c.builder.permute(x, dims)


@rule("t", view=True)
def t(c: Context, x: Value) -> Value:
    return c.builder.permute(x, list(range(c.rank(x)))[::-1])


@rule("expand", view=True)
def expand(c: Context, x: Value, shape: Sequence[int], implicit: bool = False) -> Value:
    have = (1,) * (len(shape) - c.rank(x)) + c.shape(x)
    return c.builder.expand(x, [a if b == -1 else b for a, b in zip(have, shape, strict=True)])


@rule("unsqueeze", view=True)
def unsqueeze(c: Context, x: Value, dim: int) -> Value:
    shape = list(c.shape(x))
    shape.insert(c.dim(dim, len(shape) + 1), 1)
    return c.builder.reshape(x, shape)


@rule("squeeze", view=True)
def squeeze(c: Context, x: Value, dims: Sequence[int] | int | None = None) -> Value:
    return c.squeeze(x, [d for d in c.dims(dims, c.rank(x)) if c.shape(x)[d] == 1])


@rule("slice.Tensor", view=True)
def slice_(
    c: Context, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim = c.dim(dim, c.rank(x))
    first, stop, _ = slice(start, end, step).indices(c.shape(x)[dim])
    stop = max(first, stop)
    if (first, stop, step) == (0, c.shape(x)[dim], 1):
        return x
    return c.op("slice", x, dim=dim, start=first, stop=stop, step=step)


@rule("select.int", view=True)
def select(c: Context, x: Value, dim: int, index: int) -> Value:
    dim = c.dim(dim, c.rank(x))
    index %= c.shape(x)[dim]
    return c.squeeze(c.op("slice", x, dim=dim, start=index, stop=index + 1, step=1), [dim])


@rule("cat")
def cat(c: Context, xs: Sequence[Value], dim: int = 0) -> Value:
    return c.op("cat", *xs, dim=c.dim(dim, c.rank(xs[0])))


@rule("flip")
def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    for dim in c.dims(tuple(dims), c.rank(x)) if dims else ():
        x = c.op("flip", x, dim=dim)
    return x


@rule("repeat")
def repeat(c: Context, x: Value, repeats: Sequence[int]) -> Value:
    shape = (1,) * (len(repeats) - c.rank(x)) + c.shape(x)
    split = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    wide = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    whole = [a * b for a, b in zip(repeats, shape, strict=True)]
    return c.builder.reshape(c.builder.expand(c.builder.reshape(x, split), wide), whole)


@rule("constant_pad_nd")
def constant_pad(c: Context, x: Value, pad: Sequence[int], value: Scalar = 0) -> Value:
    rank = c.rank(x)
    low, high = [0] * rank, [0] * rank
    for a in range(len(pad) // 2):
        dim = rank - 1 - a
        low[dim], high[dim] = pad[2 * a], pad[2 * a + 1]
        cut_low, cut_high = max(-low[dim], 0), max(-high[dim], 0)
        if cut_low or cut_high:
            x = c.op("slice", x, dim=dim, start=cut_low, stop=c.shape(x)[dim] - cut_high, step=1)
            low[dim], high[dim] = max(low[dim], 0), max(high[dim], 0)
    return _pad(c, x, low, high, value)


def _pad(c: Context, x: Value, low: Sequence[int], high: Sequence[int], value: Scalar = 0) -> Value:
    if not any(low) and not any(high):
        return x
    return c.op("pad", x, c.builder.constant(value, c.dtype(x)), low=tuple(low), high=tuple(high))


@rule("slice_backward")
def slice_backward(c: Context, g: Value, shape: Sequence[int], dim: int, start: int, end: int, step: int) -> Value:
    dim = c.dim(dim, len(shape))
    first, _, _ = slice(start, end, step).indices(shape[dim])
    count = c.shape(g)[dim]
    if step != 1 and count:
        # Each row is followed by step - 1 rows of zeros, except the last.
        split = (*c.shape(g)[: dim + 1], 1, *c.shape(g)[dim + 1 :])
        g = c.builder.reshape(g, split)
        g = _pad(c, g, [0] * len(split), [step - 1 if a == dim + 1 else 0 for a in range(len(split))])
        g = c.builder.reshape(g, (*split[:dim], count * step, *split[dim + 2 :]))
        count = (count - 1) * step + 1
        g = c.op("slice", g, dim=dim, start=0, stop=count, step=1)
    zeros = [0] * len(shape)
    low, high = list(zeros), list(zeros)
    low[dim], high[dim] = first, shape[dim] - first - count
    return _pad(c, g, low, high)


@rule("select_backward")
def select_backward(c: Context, g: Value, shape: Sequence[int], dim: int, index: int) -> Value:
    dim = c.dim(dim, len(shape))
    index %= shape[dim]
    low, high = [0] * len(shape), [0] * len(shape)
    low[dim], high[dim] = index, shape[dim] - index - 1
    return _pad(c, unsqueeze(c, g, dim), low, high)


@rule("gather")
def gather(c: Context, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    return c.op("gather", x, index, dim=c.dim(dim, c.rank(x)))


@rule("index_select")
def index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    if c.dim(dim, c.rank(x)) != 0:
        raise CaptureError("selects along an axis that is not the first")
    return c.op("take", x, index)


@rule("embedding")
def embedding(
    c: Context, table: Value, index: Value, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Value:
    return c.op("take", table, index)


@rule("embedding_dense_backward")
def embedding_backward(
    c: Context, g: Value, index: Value, rows: int, padding_idx: int, scale_by_frequency: bool
) -> Value:
    if scale_by_frequency:
        raise CaptureError("scales embedding gradients by frequency")
    count, width = prod(c.shape(index)), c.shape(g)[-1]
    flat = c.builder.reshape(g, (count, width))
    at = c.builder.reshape(index, (count, 1))
    if padding_idx >= 0:
        is_padding = c.op("eq", at, c.i64(padding_idx))
        flat = c.op("where", is_padding, c.f32(0.0), flat)
    return c.op("scatter_add", flat, at, dim=0, size=rows)


@rule("scatter_add")
def scatter_add(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim = c.dim(dim, c.rank(x))
    if any(a != b for d, (a, b) in enumerate(zip(c.shape(x), c.shape(index), strict=True)) if d != dim):
        raise CaptureError("scatters into a part of a tensor")
    added = c.op("scatter_add", source, index, dim=dim, size=c.shape(x)[dim])
    return c.op("add", x, added)


@rule("scatter.value")
def scatter_value(c: Context, x: Value, dim: int, index: Value, value: Scalar) -> Value:
    dim = c.dim(dim, c.rank(x))
    if c.shape(index)[dim] != 1 or any(
        a != b for d, (a, b) in enumerate(zip(c.shape(x), c.shape(index), strict=True)) if d != dim
    ):
        raise CaptureError("scatters more than one value a line, whose order would matter")
    size = c.shape(x)[dim]
    iota = c.builder.source_op("iota", TensorType((size,), DType.I64), start=0, step=1)
    positions = c.builder.reshape(iota, [size if d == dim else 1 for d in range(c.rank(x))])
    return c.op("where", c.op("eq", positions, index), c.builder.constant(value, c.dtype(x)), x)


@rule("where.self")
def where(c: Context, condition: Value, a: Value, b: Value) -> Value:
    dtype = max((c.dtype(a), c.dtype(b)), key=[DType.BOOL, DType.I64, DType.F32].index)
    return c.op("where", condition, c.builder.convert(a, dtype), c.builder.convert(b, dtype))


@rule("masked_fill.Scalar")
def masked_fill(c: Context, x: Value, mask: Value, value: Scalar) -> Value:
    return c.op("where", mask, c.builder.constant(value, c.dtype(x)), x)


@rule("masked_fill.Tensor")
def masked_fill_tensor(c: Context, x: Value, mask: Value, value: Value) -> Value:
    return c.op("where", mask, c.builder.convert(value, c.dtype(x)), x)


@rule("tril", "triu")
def triangle(c: Context, x: Value, diagonal: int = 0) -> Value:
    rows, columns = c.shape(x)[-2:]
    row = c.builder.source_op("iota", TensorType((rows,), DType.I64), start=diagonal, step=1)
    column = c.builder.source_op("iota", TensorType((columns,), DType.I64), start=0, step=1)
    row = c.builder.reshape(row, (rows, 1))
    lower = "tril" in str(c.node.target)
    keep = c.op("le", column, row) if lower else c.op("le", row, column)
    return c.op("where", keep, x, c.builder.constant(0, c.dtype(x)))


def _dtype(c: Context, dtype: torch.dtype | None) -> DType:
    return DType.F32 if dtype is None else DType.of(dtype)


@rule("full")
def full(c: Context, shape: Sequence[int], value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return c.builder.constant(value, DType.of(c.node.meta["val"].dtype), shape)


@rule("full_like")
def full_like(c: Context, x: Value, value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return c.builder.constant(value, c.dtype(x) if dtype is None else DType.of(dtype), c.shape(x))


@rule("zeros_like", "empty_like", "new_zeros", "new_empty", "new_empty_strided")
def zeros_like(c: Context, x: Value, *_: Any, **__: Any) -> Value:
    traced = c.node.meta["val"]
    return c.builder.constant(0, DType.of(traced.dtype), tuple(traced.shape))


@rule("ones_like")
def ones_like(c: Context, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return full_like(c, x, 1, dtype=dtype)


@rule("zeros", "ones", "empty", "empty_permuted")
def filled(c: Context, shape: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Value | None:
    # Memory that is never read may have any dtype; `None` is what reading it would find.
    if "empty" in str(c.node.target) and dtype not in (None, torch.float32, torch.int64, torch.bool):
        return None
    return c.builder.constant(1 if "ones" in str(c.node.target) else 0, _dtype(c, dtype), shape)


@rule("scalar_tensor")
def scalar_tensor(c: Context, value: Scalar, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return c.builder.constant(value, _dtype(c, dtype))


@rule("fill.Scalar")
def fill(c: Context, x: Value, value: Scalar) -> Value:
    return c.builder.constant(value, c.dtype(x), c.shape(x))


@rule("zero")
def zero(c: Context, x: Value) -> Value:
    return fill(c, x, 0)


@rule("arange")
def arange(c: Context, *args: Scalar, dtype: torch.dtype | None = None, **_: Any) -> Value:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (args[0], args[1], args[2] if len(args) > 2 else 1)
    traced = c.node.meta["val"]
    if any(not isinstance(item, int) for item in (start, end, step)):
        raise CaptureError("counts in fractions: count in integers and multiply")
    count = len(range(int(start), int(end), int(step)))
    iota = c.builder.source_op("iota", TensorType((count,), DType.I64), start=int(start), step=int(step))
    return c.builder.convert(iota, DType.of(traced.dtype))
