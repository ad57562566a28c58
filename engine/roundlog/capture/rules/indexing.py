"""Reading and writing at positions that tensors of indices name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.reductions import MAX_COMPARISONS, cumsum
from roundlog.capture.rules.rule_table import Context, rule
from roundlog.capture.rules.shapes_and_views import pad
from roundlog.program import DType


@rule("gather")
def gather(c: Context, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if c.rank(x) == 0:
        return c.builder.reshape(gather(c, c.builder.reshape(x, (1,)), 0, c.builder.reshape(index, (1,))), ())
    dim = c.dim(dim, c.rank(x))
    shape = list(c.shape(index))
    shape[dim] = c.shape(x)[dim]
    x = _corner(c, x, shape)
    return c.op("gather", x, index, dim=dim)


def _corner(c: Context, x: Value, shape: Sequence[int]) -> Value:
    """The first elements along every axis."""
    for dim, size in enumerate(shape):
        if size < c.shape(x)[dim]:
            x = c.op("slice", x, dim=dim, start=0, stop=size, step=1)
    return x


@rule("scatter_add")
def scatter_add(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value:
    if c.rank(x) == 0:
        return c.op("add", x, source)
    dim = c.dim(dim, c.rank(x))
    added = c.op("scatter_add", _corner(c, source, c.shape(index)), index, dim=dim, size=c.shape(x)[dim])
    high = [whole - part for whole, part in zip(c.shape(x), c.shape(added), strict=True)]
    return c.op("add", x, pad(c, added, [0] * c.rank(x), high))


@rule("scatter.value", "scatter.src")
def scatter(c: Context, x: Value, dim: int, index: Value, source: Any) -> Value:
    """One place a line; several only if they cannot be the same or get the same value, since their order matters."""
    if c.rank(x) == 0:
        return c.builder.convert(source, c.dtype(x)) if c.is_tensor(3) else c.builder.constant(source, c.dtype(x))
    dim = c.dim(dim, c.rank(x))
    count, size = c.shape(index)[dim], c.shape(x)[dim]
    sizes = [c.shape(x)[d] if d == dim else n for d, n in enumerate(c.shape(index))]
    if tuple(sizes) != c.shape(x):
        raise CaptureError("scatters into a part of other axes: take that part first, x[:n].scatter_(...)")
    if c.is_tensor(3):
        source = _corner(c, c.builder.convert(source, c.dtype(x)), c.shape(index))
    else:
        source = c.builder.constant(source, c.dtype(x))
    if count == 1:
        positions = c.builder.reshape(c.iota(size), [size if d == dim else 1 for d in range(c.rank(x))])
        return c.op("where", c.op("eq", positions, index), source, x)
    if c.is_tensor(3) and not _all_different(c.node.args[2]):
        raise CaptureError(
            "scatters more than one value a line, whose order would matter: use scatter_add or torch.where"
        )
    # Which index, if any, names each position: [.., positions, .., indices].
    _check_comparisons(prod(c.shape(index)) * size)
    last = c.rank(x)
    lines = c.move(c.builder.reshape(index, (*c.shape(index)[:dim], 1, *c.shape(index)[dim:])), dim + 1, last)
    positions = c.builder.reshape(c.iota(size), [size if d == dim else 1 for d in range(last + 1)])
    hits = c.op("eq", lines, positions)
    hit = c.squeeze(c.op("any", hits, dims=(last,)), [last])
    if c.is_tensor(3):
        which = c.op("where", hits, c.iota(count), c.i64(0))
        source = c.op("gather", source, c.squeeze(c.op("sum_i64", which, dims=(last,)), [last]), dim=dim)
    return c.op("where", hit, source, x)


def _all_different(index: Any) -> bool:
    """Whether an index tensor is known to name no place of a line twice: it comes from a sort."""
    if not isinstance(index, fx.Node) or getattr(index.target, "__name__", "") != "getitem":
        return False
    origin, output = index.args
    if not isinstance(origin, fx.Node) or output != 1:
        return False  # the values, not their places
    return str(origin.target).partition(".")[2].startswith(("topk.", "sort."))


def _check_comparisons(count: int) -> None:
    if count > MAX_COMPARISONS:
        raise CaptureError(f"compares {count} indices with positions, more than {MAX_COMPARISONS}: use fewer")


@rule("index_select")
def index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    if c.rank(x) == 0:
        return x
    dim = c.dim(dim, c.rank(x))
    return c.move(c.op("take", c.move(x, dim, 0), index), 0, dim)


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
        raise CaptureError("scales embedding gradients by frequency: make the embedding with scale_grad_by_freq=False")
    count, width = prod(c.shape(index)), c.shape(g)[-1]
    flat = c.builder.reshape(g, (count, width))
    at = c.builder.reshape(index, (count, 1))
    if padding_idx >= 0:
        is_padding = c.op("eq", at, c.i64(padding_idx))
        flat = c.op("where", is_padding, c.f32(0.0), flat)
    return c.op("scatter_add", flat, at, dim=0, size=rows)


@dataclass(frozen=True, slots=True)
class _Places:
    """Indices of some axes of a tensor, as positions in those axes taken together (NumPy's advanced indexing)."""

    axes: tuple[int, ...]
    others: tuple[int, ...]
    flat: Value
    """i64[indexed...]: positions, in row-major order of the indexed axes."""
    front: int
    """Place of the indexed axes in the result: that of the first one, or in front of all."""


def _places(c: Context, shape: Sequence[int], indices: Sequence[Value | None]) -> _Places:
    axes = tuple(axis for axis, index in enumerate(indices) if index is not None)
    flat: Value | None = None
    inside: Value | None = None
    for axis in axes:
        index, size = indices[axis], shape[axis]
        assert index is not None
        if c.dtype(index) != DType.I64:
            raise CaptureError(
                "chooses rows by a mask, whose number depends on values: keep all rows, and weigh them by the mask, as "
                "(loss * mask).sum() / mask.sum(), or by labels of -100 in F.cross_entropy"
            )
        index = c.op("where", c.op("lt", index, c.i64(0)), c.op("add", index, c.i64(size)), index)
        if len(axes) > 1:
            # An index out of its axis must not reach into the next line.
            fits = c.op("logical_and", c.op("le", c.i64(0), index), c.op("lt", index, c.i64(size)))
            inside = fits if inside is None else c.op("logical_and", inside, fits)
        flat = index if flat is None else c.op("add", c.op("mul", flat, c.i64(size)), index)
    assert flat is not None
    if inside is not None:
        flat = c.op("where", inside, flat, c.i64(-1))
    together = axes == tuple(range(axes[0], axes[-1] + 1))
    return _Places(axes, tuple(d for d in range(len(shape)) if d not in axes), flat, axes[0] if together else 0)


@rule("index.Tensor", "_unsafe_index.Tensor")
def index(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    places = _places(c, c.shape(x), indices)
    rest = [c.shape(x)[d] for d in places.others]
    rows = c.builder.permute(x, [*places.axes, *places.others])
    rows = c.builder.reshape(rows, (prod(c.shape(x)[d] for d in places.axes), *rest))
    chosen = c.op("take", rows, places.flat)
    wide = c.rank(places.flat)
    order = [*range(wide, wide + places.front), *range(wide), *range(wide + places.front, wide + len(rest))]
    return c.builder.permute(chosen, order)


@rule("index_put", "_unsafe_index_put")
def index_put(c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    values = c.builder.convert(values, c.dtype(x))
    given = [index for index in indices if index is not None]
    if len(given) == 1 and indices[-1] is not None and c.dtype(given[0]) == DType.BOOL:
        return _put_by_mask(c, x, len(indices) - 1, given[0], c.op("add", x, values) if accumulate else values)
    places = _places(c, c.shape(x), indices)
    axes, others = places.axes, places.others
    at = c.shape(places.flat)
    rest = [c.shape(x)[d] for d in others]
    # The shape that index() gives; then with the indexed axes in front.
    whole = c.builder.expand(values, (*rest[: places.front], *at, *rest[places.front :]))
    wide = len(at)
    moved = c.builder.permute(
        whole,
        [*range(places.front, places.front + wide), *range(places.front), *range(places.front + wide, c.rank(whole))],
    )
    count, rows = prod(at), prod(c.shape(x)[d] for d in axes)
    flat = c.builder.reshape(places.flat, (count,))
    lines = c.builder.reshape(moved, (count, *rest))
    before = c.builder.permute(x, [*axes, *others])
    target = c.builder.reshape(before, (rows, *rest))
    if accumulate:
        after = _add_rows(c, target, flat, lines)
    else:
        after = _put_rows(c, target, flat, lines, single=_is_one_number(c, values))
    after = c.builder.reshape(after, c.shape(before))
    order = [*axes, *others]
    return c.builder.permute(after, [order.index(d) for d in range(len(order))])


def _put_by_mask(c: Context, x: Value, front: int, mask: Value, values: Value) -> Value:
    """Values in the places that a mask marks, of the axes behind the first `front` ones."""
    behind = c.rank(x) - front - c.rank(mask)
    if c.rank(values) > behind and prod(c.shape(values)[: c.rank(values) - behind]) != 1:
        raise CaptureError("writes other values in each place that a mask marks: use torch.where")
    wide = c.builder.reshape(mask, (*c.shape(mask), *[1] * behind))
    return c.op("where", c.builder.expand(wide, c.shape(x)), c.builder.expand(values, c.shape(x)), x)


def _is_one_number(c: Context, x: Value) -> bool:
    """Whether all elements are known to be the same."""
    node = c.builder.nodes[x]
    while node.op in ("expand", "reshape"):
        node = c.builder.nodes[node.inputs[0]]
    return node.type.numel == 1 or (node.op == "constant" and len(set(node.attributes["bits"])) == 1)  # type: ignore[arg-type]


def _add_rows(c: Context, target: Value, flat: Value, lines: Value) -> Value:
    count, rows = c.shape(lines)[0], c.shape(target)[0]
    if c.dtype(target) != DType.F32:
        raise CaptureError("adds integers at indices: convert them to float32")
    width = prod(c.shape(target)[1:])
    index = c.builder.reshape(flat, (count, 1))
    sums = c.op("scatter_add", c.builder.reshape(lines, (count, width)), index, dim=0, size=rows)
    return c.op("add", target, c.builder.reshape(sums, c.shape(target)))


def _put_rows(c: Context, target: Value, flat: Value, lines: Value, *, single: bool) -> Value:
    """The target with rows written at an index, which names no row twice unless all values are the same: otherwise the
    last value would win."""
    count, rows, rank = c.shape(lines)[0], c.shape(target)[0], c.rank(target)
    column = (rows, *[1] * (rank - 1))
    if not single and count > 1 and not _known_to_differ(c):
        raise CaptureError("writes several values at indices that may be equal: use torch.where or scatter_add")
    _check_comparisons(count * rows)
    hits = c.op("eq", c.builder.reshape(c.iota(rows), (rows, 1)), flat)
    hit = c.builder.reshape(c.op("any", hits, dims=(1,)), column)
    which = c.squeeze(c.op("sum_i64", c.op("where", hits, c.iota(count), c.i64(0)), dims=(1,)), [1])
    if single:
        which = c.builder.constant(0, DType.I64, (rows,))
    return c.op("where", hit, c.op("take", lines, which), target)


def _known_to_differ(c: Context) -> bool:
    """Whether the indices of the node being lowered are constants that name no place twice, or the order of a list."""
    shape = c.node.args[0].meta["val"].shape  # type: ignore[union-attr]
    indices: Any = c.node.args[1]
    if len(indices) == 1 and _all_different(indices[0]) and indices[0].meta["val"].ndim == 1:
        return True
    columns = []
    for axis, node in enumerate(indices):
        known = c.known(node) if node is not None else None
        if known is not None:
            columns.append(known % shape[axis])
        elif node is not None:
            return False
    stacked = torch.stack([column.reshape(-1) for column in torch.broadcast_tensors(*columns)], dim=1)
    return len(torch.unique(stacked, dim=0)) == len(stacked)


def _counted(c: Context, mask: Value, otherwise: int) -> Value:
    """Number of marked elements before each marked one; `otherwise` for the others."""
    count = prod(c.shape(mask))
    flat = c.builder.reshape(mask, (count,))
    before = c.op("sub", cumsum(c, flat, 0), c.i64(1))
    return c.op("where", flat, before, c.i64(otherwise))


@rule("masked_scatter")
def masked_scatter(c: Context, x: Value, mask: Value, source: Value) -> Value:
    """The marked elements get those of the source, one after another; too few of them stop the run."""
    shape = torch.broadcast_shapes(c.shape(x), c.shape(mask))
    x, mask = c.builder.expand(x, shape), c.builder.expand(mask, shape)
    given = c.builder.reshape(source, (prod(c.shape(source)),))
    return c.op("where", mask, c.builder.reshape(c.op("take", given, _counted(c, mask, 0)), shape), x)


@rule("masked_scatter_backward")
def masked_scatter_backward(c: Context, g: Value, mask: Value, sizes: Sequence[int]) -> Value:
    mask = c.builder.expand(mask, c.shape(g))
    flat = c.builder.reshape(g, (prod(c.shape(g)),))
    sums = c.op("scatter_add", flat, _counted(c, mask, -1), dim=0, size=prod(sizes))
    return c.builder.reshape(sums, sizes)
