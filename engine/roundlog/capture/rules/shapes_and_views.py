"""Shapes, views, and choices between elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.rule_table import Context, Scalar, rule, wider


@rule("alias", "detach", "lift_fresh", view=True)
@rule("clone", "lift_fresh_copy", "contiguous", "prims.copy_strided.default")
def same(c: Context, x: Value, strides: Any = None, **_: Any) -> Value:
    return x


@rule("view_as_complex", "view_as_real", view=True, complex_numbers=True)
def real_view(c: Context, x: Value) -> Value:
    """Complex numbers are held as the real pairs that they are views of; no other operator on them is left by now."""
    if "complex" in str(c.node.target):
        # The type that a program gives it: what is held against the traced one.
        c.node.meta["val"] = c.node.args[0].meta["val"]  # type: ignore[union-attr]
        c.node.meta["pairs"] = True
    return x


@rule("_to_copy")
def to_copy(c: Context, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """FP32 numbers lose their fraction on the way to integers; what int64 does not hold stops the run."""
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


@rule("transpose.int", "transpose_", view=True)
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
    over = () if isinstance(dims, Sequence) and not dims else c.dims(dims, c.rank(x))
    return c.squeeze(x, [d for d in over if c.shape(x)[d] == 1])


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
    # PyTorch leaves empty vectors out, whatever the shape of the others.
    xs = [x for x in xs if c.shape(x) != (0,)] or xs[:1]
    dtype = wider(*(c.dtype(x) for x in xs))
    xs = [c.builder.convert(x, dtype) for x in xs]
    return c.op("cat", *xs, dim=c.dim(dim, c.rank(xs[0])))


@rule("roll")
def roll(c: Context, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        flat = c.builder.reshape(x, (prod(c.shape(x)),))
        return c.builder.reshape(roll(c, flat, shifts, (0,)), c.shape(x))
    for shift, axis in zip(shifts, dims, strict=True):
        dim = c.dim(axis, c.rank(x))
        size = c.shape(x)[dim]
        cut = -shift % size if size else 0
        if cut:
            tail = c.op("slice", x, dim=dim, start=cut, stop=size, step=1)
            x = c.op("cat", tail, c.op("slice", x, dim=dim, start=0, stop=cut, step=1), dim=dim)
    return x


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
def constant_pad(c: Context, x: Value, sizes: Sequence[int], value: Scalar = 0) -> Value:
    rank = c.rank(x)
    low, high = [0] * rank, [0] * rank
    for a in range(len(sizes) // 2):
        dim = rank - 1 - a
        low[dim], high[dim] = sizes[2 * a], sizes[2 * a + 1]
        cut_low, cut_high = max(-low[dim], 0), max(-high[dim], 0)
        if cut_low or cut_high:
            x = c.op("slice", x, dim=dim, start=cut_low, stop=c.shape(x)[dim] - cut_high, step=1)
            low[dim], high[dim] = max(low[dim], 0), max(high[dim], 0)
    return pad(c, x, low, high, value)


def pad(c: Context, x: Value, low: Sequence[int], high: Sequence[int], value: Scalar = 0) -> Value:
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
        g = pad(c, g, [0] * len(split), [step - 1 if a == dim + 1 else 0 for a in range(len(split))])
        g = c.builder.reshape(g, (*split[:dim], count * step, *split[dim + 2 :]))
        count = (count - 1) * step + 1
        g = c.op("slice", g, dim=dim, start=0, stop=count, step=1)
    zeros = [0] * len(shape)
    low, high = list(zeros), list(zeros)
    low[dim], high[dim] = first, shape[dim] - first - count
    return pad(c, g, low, high)


@rule("slice_scatter")
def slice_scatter(
    c: Context, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim = c.dim(dim, c.rank(x))
    size = c.shape(x)[dim]
    first, stop, _ = slice(start, end, step).indices(size)
    if not len(range(first, stop, step)):
        return x
    spread = slice_backward(c, c.builder.convert(source, c.dtype(x)), c.shape(x), dim, first, stop, step)
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[first:stop:step] = True
    along = [size if d == dim else 1 for d in range(c.rank(x))]
    return c.op("where", c.builder.reshape(c.literal(chosen), along), spread, x)


@rule("diagonal", view=True)
def diagonal(c: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Every (columns + 1)-th element of the matrix, read row by row."""
    flat, start, count, columns = _matrix(c, x, offset, dim1, dim2)
    stop = start + (count - 1) * (columns + 1) + 1 if count else start
    return c.op("slice", flat, dim=c.rank(flat) - 1, start=start, stop=stop, step=columns + 1)


def _matrix(c: Context, x: Value, offset: int, dim1: int, dim2: int) -> tuple[Value, int, int, int]:
    """(x with these two axes as one, at the end; where in it the diagonal starts; its length; its matrix's columns)."""
    rank = c.rank(x)
    dim1, dim2 = c.dim(dim1, rank), c.dim(dim2, rank)
    others = [d for d in range(rank) if d not in (dim1, dim2)]
    rows, columns = c.shape(x)[dim1], c.shape(x)[dim2]
    turned = c.builder.permute(x, [*others, dim1, dim2])
    flat = c.builder.reshape(turned, (*c.shape(turned)[:-2], rows * columns))
    below, right = max(-offset, 0), max(offset, 0)
    count = max(min(rows - below, columns - right), 0)
    return flat, below * columns + right if count else 0, count, columns


@rule("diagonal_scatter")
def diagonal_scatter(c: Context, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rank = c.rank(x)
    dim1, dim2 = c.dim(dim1, rank), c.dim(dim2, rank)
    flat, start, count, columns = _matrix(c, x, offset, dim1, dim2)
    if not count:
        return x
    stop = start + (count - 1) * (columns + 1) + 1
    written = slice_scatter(c, flat, source, c.rank(flat) - 1, start, stop, columns + 1)
    order = [*(d for d in range(rank) if d not in (dim1, dim2)), dim1, dim2]
    whole = c.builder.reshape(written, [c.shape(x)[d] for d in order])
    return c.builder.permute(whole, [order.index(d) for d in range(rank)])


@rule("unfold", view=True)
def unfold(c: Context, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows along an axis; a new last axis runs through each."""
    if not c.rank(x):
        raise CaptureError("takes windows of a single number: give it an axis by .reshape(1)")
    dim = c.dim(dim, c.rank(x))
    count = (c.shape(x)[dim] - size) // step + 1
    starts = c.builder.reshape(c.iota(count, 0, step), (count, 1))
    windows = c.op("take", c.move(x, dim, 0), c.op("add", starts, c.iota(size)))
    # [count, size, others ...]
    return c.move(c.move(windows, 1, c.rank(windows) - 1), 0, dim)


@rule("as_strided", view=True)
def as_strided(c: Context, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Value:
    """The elements of a tensor under another shape, or some of them, by their places in memory."""
    places = places_in_base(c.node, c.shape(x))
    if places.numel() == prod(c.shape(x)) and torch.equal(places.reshape(-1), torch.arange(places.numel())):
        return c.builder.reshape(x, size)
    return c.op("take", c.builder.reshape(x, (prod(c.shape(x)),)), _arithmetic(c, places))


def _arithmetic(c: Context, places: torch.Tensor) -> Value:
    """i64 numbers that grow by a constant along every axis, made from them; any others as a literal."""
    first, total = int(places.reshape(-1)[0]) if places.numel() else 0, torch.zeros(1, dtype=torch.int64)
    result: Value = c.i64(first)
    for axis, n in enumerate(places.shape):
        along = [n if d == axis else 1 for d in range(places.ndim)]
        step = int(places.select(axis, 1).reshape(-1)[0]) - first if n > 1 and places.numel() else 0
        total = total + (torch.arange(n) * step).reshape(along)
        result = c.op("add", result, c.builder.reshape(c.iota(n, 0, step), along))
    return result if torch.equal(total + first, places) else c.literal(places)


def places_in_base(view: fx.Node, shape: Sequence[int]) -> torch.Tensor:
    """i64, of the view's shape: which element of its base, of this shape, each one is, counted in row-major order."""
    base: Any = view.args[0]
    numbers = torch.arange(prod(shape)).reshape(list(shape))
    if "view_as_" in str(view.target):
        return numbers  # complex numbers are held as real pairs
    if not str(view.target).startswith("aten.as_strided"):
        return view.target(numbers, *view.args[1:], **view.kwargs)  # type: ignore[operator, no-any-return]
    given: list[Any] = [*view.args[1:], None]
    traced: torch.Tensor = base.meta["val"]
    size, stride = list(given[0]), list(given[1])
    start = int(traced.storage_offset() if given[2] is None else given[2])
    # Every place in memory gets the number of the base's element that it holds, or -1.
    reach = [
        o + sum((n - 1) * s for n, s in zip(ns, ss, strict=True)) for o, ns, ss in _spans(traced, start, size, stride)
    ]
    memory = torch.full((max(reach) + 1,), -1, dtype=torch.int64)
    torch.as_strided(memory, traced.shape, traced.stride(), traced.storage_offset()).copy_(numbers)
    places = torch.as_strided(memory, size, stride, start).clone()
    if bool((places < 0).any()):
        raise CaptureError(
            "looks at memory outside of the tensor that it is given: start from the tensor that this one is a part of"
        )
    return places


def _spans(
    traced: torch.Tensor, start: int, size: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, Sequence[int], Sequence[int]]]:
    """(offset, sizes, strides) of a tensor and of a view of its memory; of those without elements, nothing."""
    both = [(int(traced.storage_offset()), tuple(traced.shape), traced.stride()), (start, size, stride)]
    return [item for item in both if all(item[1])] or [(0, (), ())]


@rule("select_backward")
def select_backward(c: Context, g: Value, shape: Sequence[int], dim: int, index: int) -> Value:
    dim = c.dim(dim, len(shape))
    index %= shape[dim]
    low, high = [0] * len(shape), [0] * len(shape)
    low[dim], high[dim] = index, shape[dim] - index - 1
    return pad(c, unsqueeze(c, g, dim), low, high)


@rule("where.self")
def where(c: Context, condition: Value, a: Value, b: Value) -> Value:
    dtype = wider(c.dtype(a), c.dtype(b))
    return c.op("where", condition, c.builder.convert(a, dtype), c.builder.convert(b, dtype))
