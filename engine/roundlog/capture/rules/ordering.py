"""Sorting, largest elements, medians: by counting, for each element, how many stand before it. Histograms."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.pointwise import not_a_number
from roundlog.capture.rules.reductions import kept
from roundlog.capture.rules.rule_table import Context, Scalar, rule
from roundlog.capture.rules.shapes_and_views import pad
from roundlog.program import DType

MAX_COMPARISONS = 1 << 26
"""Every element of a line is compared with every other: above so many comparisons an operator is refused."""


def order(c: Context, x: Value, dim: int, count: int, *, descending: bool) -> Value:
    """i64, `count` along the axis: where the first, second, ... of every line stands; of equal ones the lower first.
    NaN is larger than any number."""
    rank, size = c.rank(x), c.shape(x)[dim]
    if prod(c.shape(x)) * size > MAX_COMPARISONS:
        raise CaptureError(
            f"sorts lines of {size}, which takes more than {MAX_COMPARISONS} comparisons: use shorter lines"
        )
    line = c.move(x, dim, rank - 1)
    outer = c.shape(line)[:-1]
    this, other = c.builder.reshape(line, (*outer, size, 1)), c.builder.reshape(line, (*outer, 1, size))
    position = c.iota(size)
    earlier = c.op("lt", position, c.builder.reshape(position, (size, 1)))
    ahead = c.op("lt", this, other) if descending else c.op("lt", other, this)
    equal = c.op("eq", this, other)
    if c.dtype(x) == DType.F32:
        lost, lost_other = not_a_number(c, this), not_a_number(c, other)
        later, first = (lost, lost_other) if descending else (lost_other, lost)
        ahead = c.op("logical_or", ahead, c.op("logical_and", first, c.op("logical_not", later)))
        equal = c.op("logical_or", equal, c.op("logical_and", lost, lost_other))
    before = c.op("logical_or", ahead, c.op("logical_and", equal, earlier))
    place = c.op("sum_i64", c.op("to_i64", before), dims=(rank,))
    # The element whose place is k, for every k.
    wanted = c.op("eq", place, c.iota(count))
    found = c.op("where", wanted, c.builder.reshape(position, (size, 1)), c.i64(0))
    return c.move(c.squeeze(c.op("sum_i64", found, dims=(rank - 1,)), [rank - 1]), rank - 1, dim)


def _sorted(c: Context, x: Value, dim: int, count: int, descending: bool) -> tuple[Value, Value]:
    if c.rank(x) == 0:
        return x, c.i64(0)
    dim = c.dim(dim, c.rank(x))
    index = order(c, x, dim, count, descending=descending)
    return c.op("gather", x, index, dim=dim), index


@rule("topk")
def topk(c: Context, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    return _sorted(c, x, dim, k, largest)


@rule("sort", "sort.stable")
def sort(c: Context, x: Value, dim: int = -1, descending: bool = False, **_: Any) -> tuple[Value, Value]:
    rank = c.rank(x)
    return _sorted(c, x, dim, c.shape(x)[c.dim(dim, rank)] if rank else 1, descending)


@rule("kthvalue")
def kth_value(c: Context, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    rank = c.rank(x)
    values, index = _sorted(c, x, dim, k, False)
    if rank == 0:
        return values, index
    dim = c.dim(dim, rank)
    last = [c.op("slice", part, dim=dim, start=k - 1, stop=k, step=1) for part in (values, index)]
    return kept(c, last[0], [dim], keepdim), kept(c, last[1], [dim], keepdim)


@rule("median.dim")
def median_dim(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower of the two middle ones; the first NaN, if there is one."""
    if c.rank(x) == 0:
        return x, c.i64(0)
    dim = c.dim(dim, c.rank(x))
    values, index = kth_value(c, x, (c.shape(x)[dim] + 1) // 2, dim, True)
    if c.dtype(x) == DType.F32:
        lost = c.op("any", not_a_number(c, x), dims=(dim,))
        index = c.op("where", lost, c.op("argmax", x, dim=dim), index)
        values = c.op("gather", x, index, dim=dim)
    return kept(c, values, [dim], keepdim), kept(c, index, [dim], keepdim)


@rule("median")
def median(c: Context, x: Value) -> Value:
    flat = c.builder.reshape(x, (prod(c.shape(x)),))
    return median_dim(c, flat, 0)[0]


@rule("histc", at_capture=True)
def histogram(c: Context, x: Value, bins: int = 100, low: Scalar = 0, high: Scalar = 0) -> Value:
    """Number of elements in each of the equal bins between two numbers, the last of which includes its end."""
    count = prod(c.shape(x))
    if low == high and bins == 1:  # all are between the least and the largest
        return c.builder.constant(count, c.dtype(x), (1,))
    if not low < high:
        raise CaptureError("counts in bins between the least and the largest element: give min and max")
    if count * bins > MAX_COMPARISONS:
        raise CaptureError(
            f"compares {count} elements with {bins} bins, more than {MAX_COMPARISONS} comparisons: use fewer bins"
        )
    edges = torch.tensor([low + (high - low) * edge / bins for edge in range(bins)], dtype=torch.float64)
    wide = c.builder.reshape(c.builder.convert(x, DType.F32), (count, 1))
    from_edge = c.op("logical_and", c.op("le", c.literal(edges), wide), c.op("le", wide, c.f32(high)))
    above = c.squeeze(c.op("sum_i64", c.op("to_i64", from_edge), dims=(0,)), [0])
    following = pad(c, c.op("slice", above, dim=0, start=1, stop=bins, step=1), [0], [1])
    return c.builder.convert(c.op("sub", above, following), c.dtype(x))
