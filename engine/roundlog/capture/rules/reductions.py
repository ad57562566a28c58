"""Sums, means and extremes, running ones too, products over axes, and distances between all rows of two matrices;
softmax and normalisation. Sorting and largest elements: by counting, for each element, how many stand before it.
Histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, prod
from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.pointwise import not_a_number, pow_, rsqrt
from roundlog.capture.rules.rule_table import Context, Scalar, rule, storage
from roundlog.capture.rules.shapes_and_views import pad
from roundlog.program import DType, TensorType


def kept(c: Context, y: Value, dims: Sequence[int], keepdim: bool) -> Value:
    return y if keepdim else c.squeeze(y, dims)


def _counted(c: Context, x: Value, dtype: torch.dtype | None) -> Value:
    """Numbers that are added or multiplied: of a dtype, or as they are, truths as int64."""
    x = c.to_torch_dtype(x, dtype)
    return c.builder.convert(x, DType.I64) if c.dtype(x) == DType.BOOL else x


@rule("sum")
def sum_(
    c: Context,
    x: Value,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    x = _counted(c, x, dtype)
    over = c.dims(dims, c.rank(x))
    name = "sum" if c.dtype(x).is_float else "sum_i64"
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


@rule("cumsum")
def cumsum(c: Context, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """Integers exactly; FP32 as a product with a triangle of ones, so that every prefix is rounded once. Zeros meet
    what comes after a prefix, so that an infinity makes the prefixes before it NaN."""
    x = _counted(c, x, dtype)
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
    x = _counted(c, x, dtype)
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


@rule("prod.dim_int")
def prod_dim(c: Context, x: Value, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    """The last of the running products."""
    if c.rank(x) == 0:
        return _counted(c, x, dtype)
    dim = c.dim(dim, c.rank(x))
    running, size = cumprod(c, x, dim, dtype=dtype), c.shape(x)[dim]
    if not size:
        running, size = c.builder.constant(1, c.dtype(running), [n or 1 for n in c.shape(x)]), 1
    return kept(c, c.op("slice", running, dim=dim, start=size - 1, stop=size, step=1), [dim], keepdim)


@rule("prod")
def prod_all(c: Context, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    return prod_dim(c, c.builder.reshape(x, (prod(c.shape(x)),)), 0, dtype=dtype)


MAX_DIFFERENCES = 1 << 28
"""Every row is subtracted from every other: above so many differences an operator is refused."""


def _differences(c: Context, a: Value, b: Value) -> Value:
    """[..., P, M] and [..., R, M] -> [..., P, R, M]."""
    (rows, width), count = c.shape(a)[-2:], c.shape(b)[-2]
    outer = torch.broadcast_shapes(c.shape(a)[:-2], c.shape(b)[:-2])
    if prod(outer) * rows * count * width > MAX_DIFFERENCES:
        raise CaptureError(
            f"subtracts {rows} rows of {width} from {count}, more than {MAX_DIFFERENCES} differences: use fewer rows"
        )
    return c.op(
        "sub",
        c.builder.reshape(a, (*c.shape(a)[:-2], rows, 1, width)),
        c.builder.reshape(b, (*c.shape(b)[:-2], 1, count, width)),
    )


@rule("_cdist_forward", at_capture=True)
def distances(c: Context, a: Value, b: Value, p: float, mode: int | None = None) -> Value:
    """The p-norms of all differences, p being 1 or 2, each as linalg_vector_norm."""
    if p not in (1, 2):
        raise CaptureError(f"takes distances of order {p}: write (x[:, None] - y).abs().pow({p}).sum(-1).pow(1 / {p})")
    return vector_norm(c, _differences(c, a, b), p, (-1,))


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


MAX_COMPARISONS = 1 << 26
"""Every element of a line is compared with every other, and every index with every position: above so many comparisons
an operator is refused."""


def order(c: Context, x: Value, dim: int, count: int, *, descending: bool) -> Value:
    """i64, `count` along the axis: where the first, second, ... of every line stands; of equal ones the lower first.
    NaN is larger than any number."""
    rank, size = c.rank(x), c.shape(x)[dim]
    if prod(c.shape(x)) * size > MAX_COMPARISONS:
        width = max(64, 4 * count)
        if descending and c.dtype(x).is_float and width < size and prod(c.shape(x)) * width <= MAX_COMPARISONS:
            return _order_by_parts(c, x, dim, count, width)
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


def _order_by_parts(c: Context, x: Value, dim: int, count: int, width: int) -> Value:
    """Places of the largest elements of long lines: each part of a line has as many, and the largest of these are those
    of the line. Equal ones stand in the order of their places among them, too."""
    rank, size = c.rank(x), c.shape(x)[dim]
    line = c.move(x, dim, rank - 1)
    outer, parts = c.shape(line)[:-1], -(-size // width)
    # The filling of the last part stands behind all others, and so behind elements that are equal to it.
    filled = pad(c, line, [0] * rank, [*[0] * len(outer), parts * width - size], -inf)
    table = c.builder.reshape(filled, (*outer, parts, width))
    inside = order(c, table, rank, count, descending=True)
    first = c.op("mul", c.builder.reshape(c.iota(parts), (parts, 1)), c.i64(width))
    flat = (*outer, parts * count)
    places = c.builder.reshape(c.op("add", inside, first), flat)
    largest = c.builder.reshape(c.op("gather", table, inside, dim=rank), flat)
    chosen = order(c, largest, rank - 1, count, descending=True)
    return c.move(c.op("gather", places, chosen, dim=rank - 1), rank - 1, dim)


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


@rule("histc", at_capture=True)
def histogram(c: Context, x: Value, bins: int = 100, low: Scalar = 0, high: Scalar = 0) -> Value:
    """Number of elements in each of the equal bins between two numbers; the last bin includes its end."""
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


@rule("randperm")
def randperm(c: Context, count: int, **_: Any) -> Value:
    """The order of as many uniform numbers."""
    if storage(c.node.meta["val"].dtype) != DType.I64:
        raise CaptureError("permutes numbers that are not integers: permute int64 numbers, and convert them")
    return order(c, c.builder.uniform((count,)), 0, count, descending=False)
