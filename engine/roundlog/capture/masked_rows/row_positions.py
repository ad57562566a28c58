"""Reading and writing of chosen rows: by masks, and at the positions that a mask marks."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.masked_rows.row_masks import TWO_MASKS, Call, Lowered, Part, lowers
from roundlog.program import DType


@lowers("nonzero")
def nonzero(call: Call) -> Lowered:
    """All positions in order; those that the mask marks count."""
    x: Any = call.node.args[0]
    c, shape = call.c, call.shape(x)
    if any(call.axes(x)):
        call.refuse("asks for the places of chosen elements among others")
    count = prod(shape)
    mask = c.builder.reshape(c.builder.convert(call.value(x), DType.BOOL), (count,))
    call.table.add(call.traced.shape[0], mask)
    columns = []
    for axis, size in enumerate(shape):
        along = c.builder.reshape(c.iota(size), [size if d == axis else 1 for d in range(len(shape))])
        columns.append(c.builder.reshape(c.builder.expand(along, shape), (count, 1)))
    found = columns[0] if len(columns) == 1 else c.op("cat", *columns, dim=1)
    call.places[call.node] = (found, torch.ones(shape, dtype=torch.bool).nonzero())
    return found, (mask, None)


class _Chosen:
    """The elements of a tensor that an index names by a mask: along which axes, and which."""

    def __init__(self, call: Call, x: fx.Node, first: int, rank: int, mask: Value) -> None:
        """first, rank: the axes of the mask. mask: bool, of the shape of these axes, or flat."""
        c, shape = call.c, call.shape(x)
        self.call, self.first = call, first
        self.own = shape[first : first + rank]
        self.size = prod(self.own)
        self.merged = (*shape[:first], self.size, *shape[first + rank :])
        parts: list[Part] = [*zip(self.own, call.axes(x)[first : first + rank], strict=True)]
        self.mask = c.builder.reshape(mask, (self.size,))
        if any(of_x is not None for _, of_x in parts):
            self.mask = c.op("logical_and", self.mask, call.table.merged(parts))
        axes = call.axes(x)
        self.axes = (*axes[:first], self.mask, *axes[first + rank :])

    def read(self, x: Value) -> Value:
        return self.call.c.builder.reshape(x, self.merged)

    def written(self, x: Value, values: Value, *, accumulate: bool) -> Value:
        """x, of its own shape, with values of the merged one in the places that are chosen."""
        c, whole = self.call.c, self.read(x)
        values = c.builder.expand(c.builder.convert(values, c.dtype(x)), self.merged)
        after = c.op("add", whole, values) if accumulate else values
        mask = self.call.table.wide(self.mask, self.first, len(self.merged))
        return c.builder.reshape(c.op("where", mask, after, whole), c.shape(x))


def _chosen(call: Call, x: fx.Node, indices: Any) -> _Chosen | None:
    """The elements that an index chooses by a mask, or by all the positions that one marks; None for other indices."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    first, index = given[0]
    if call.c.dtype(call.value(index)) == DType.BOOL:
        if len(given) > 1:
            call.refuse("chooses by a mask and by other indices at once")
        rank = len(call.shape(index))
        if call.axes(index) != call.axes(x)[first : first + rank]:
            raise CaptureError(TWO_MASKS)
        return _Chosen(call, x, first, rank, call.value(index))
    if any(call.c.dtype(call.value(other)) == DType.BOOL for _, other in given):
        call.refuse("chooses by a mask and by other indices at once")
    # Positions of a mask of these very axes, one column for each of them.
    if [axis for axis, _ in given] != [*range(first, first + len(given))]:
        return None
    columns = [call.positions(index) for _, index in given]
    masks = {call.axes(index) for _, index in given}
    if len(masks) != 1 or any(column is None or column.ndim != 1 for column in columns):
        return None
    shape = call.shape(x)[first : first + len(given)]
    if any(call.axes(x)[first : first + len(given)]):
        return None
    wanted = torch.ones(shape, dtype=torch.bool).nonzero().unbind(1)
    if not all(torch.equal(a, b) for a, b in zip(columns, wanted, strict=True)):  # type: ignore[arg-type]
        return None
    ((mask,),) = masks
    assert mask is not None
    return _Chosen(call, x, first, len(given), mask)


@lowers("index", "_unsafe_index")
def index(call: Call) -> Lowered:
    x: Any = call.node.args[0]
    indices: Any = call.node.args[1]
    found = _chosen(call, x, indices)
    if found is None:
        return _taken(call, x, indices)
    call.table.add(call.traced.shape[found.first], found.mask)
    return found.read(call.value(x)), found.axes


def _taken(call: Call, x: fx.Node, indices: Any) -> Lowered:
    """Elements at positions, which are 0 where they do not count."""
    axes = call.axes(x)
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(axes[axis] is not None and not call.table.is_beginning(axes[axis]) for axis, _ in given):
        call.refuse("takes elements by their places among the rows that a mask chooses")
    nodes = [index for _, index in given]
    rank = max(len(call.shape(index)) for index in nodes)
    at = call.broadcast(nodes, rank)
    result = call.plain({index: _from_the_start(call, index, axes[axis]) for axis, index in given})
    others = [mask for axis, mask in enumerate(axes) if axis >= len(indices) or indices[axis] is None]
    front = given[0][0] if given[-1][0] - given[0][0] == len(given) - 1 else 0
    return result, (*others[:front], *at, *others[front:])


def _from_the_start(call: Call, index: fx.Node, mask: Value | None) -> Value:
    """Places along an axis whose first elements count, where negative ones count from the last of these."""
    c, places = call.c, call.filled(index, 0)
    if mask is None:
        return places
    count = call.table.count(mask)
    places = c.op("where", c.op("lt", places, c.i64(0)), c.op("add", places, count), places)
    # A place that none of them has stops the run, as one outside of the axis does.
    inside = c.op("logical_and", c.op("le", c.i64(0), places), c.op("lt", places, count))
    return c.op("where", inside, places, c.i64(c.shape(mask)[0]))


@lowers("index_put", "_unsafe_index_put")
def index_put(call: Call) -> Lowered:
    x: Any = call.node.args[0]
    indices: Any = call.node.args[1]
    values: Any = call.argument("values")
    accumulate = bool(call.argument("accumulate", False))
    found = _chosen(call, x, indices)
    axes = call.axes(x)
    if found is not None:
        _require_same(call, values, found.axes, found.merged)
        return found.written(call.value(x), call.value(values), accumulate=accumulate), axes
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    nodes = [index for _, index in given]
    if any(axes[axis] is not None and not call.table.is_beginning(axes[axis]) for axis, _ in given):
        call.refuse("writes into the rows that a mask chooses by their places")
    at = call.broadcast(nodes, max(len(call.shape(index)) for index in nodes))
    if given[-1][0] - given[0][0] != len(given) - 1:
        call.refuse("writes at places of axes that are apart")
    shape = [call.shape(index) for index in nodes]
    whole = (
        *call.shape(x)[: given[0][0]],
        *torch.broadcast_shapes(*shape),
        *call.shape(x)[given[-1][0] + 1 :],
    )
    target = (*axes[: given[0][0]], *at, *axes[given[-1][0] + 1 :])
    _require_same(call, values, target, whole)
    replaced = {index: _from_the_start(call, index, axes[axis]) for axis, index in given}
    if not any(target):
        return call.plain(replaced), axes
    if accumulate:
        # Values that have one element for all rows count for those that are chosen alone.
        wide = call.c.builder.expand(call.value(values), whole)
        return call.plain({**replaced, values: call.table.filled(wide, target, 0)}), axes
    raise CaptureError(
        "writes several values at places that may be the same: add them up by index_add_ into zeros, or write by the "
        "mask itself"
    )


def _require_same(call: Call, values: fx.Node, axes: Any, shape: tuple[int, ...]) -> None:
    """Raises CaptureError unless values fit a shape. Along axes of chosen elements they have the same mask, or one
    element for all."""
    masks, sizes = call.axes(values), call.shape(values)
    for mask, size, wanted, length in zip(masks[::-1], sizes[::-1], axes[::-1], shape[::-1], strict=False):
        if mask != wanted and (mask is not None or size != 1):
            raise CaptureError(TWO_MASKS)
        assert size in (1, length)


@lowers("index_select")
def index_select(call: Call) -> Lowered:
    x: Any = call.node.args[0]
    at: Any = call.argument("index")
    axes = list(call.axes(x))
    dim = call.c.dim(call.argument("dim"), len(axes))
    if axes[dim] is not None:
        call.refuse("takes elements by their places among the rows that a mask chooses")
    (axes[dim],) = call.axes(at)
    return call.plain({at: call.filled(at, 0)}), tuple(axes)


@lowers("embedding")
def embedding(call: Call) -> Lowered:
    table: Any = call.node.args[0]
    at: Any = call.argument("indices")
    if any(call.axes(table)):
        call.refuse("looks up the rows that a mask chooses")
    return call.plain({at: call.filled(at, 0)}), (*call.axes(at), None)


@lowers("embedding_dense_backward")
def embedding_backward(call: Call) -> Lowered:
    g: Any = call.node.args[0]
    at: Any = call.argument("indices")
    if call.axes(g) != (*call.axes(at), None):
        call.refuse()
    return call.plain({g: call.filled(g, 0), at: call.filled(at, 0)}), (None, None)


@lowers("gather")
def gather(call: Call) -> Lowered:
    x: Any = call.node.args[0]
    at: Any = call.argument("index")
    axes, masks = call.axes(x), call.axes(at)
    dim = call.c.dim(call.argument("dim"), len(axes)) if axes else 0
    if axes and (
        axes[dim] is not None or any(a != b for d, (a, b) in enumerate(zip(axes, masks, strict=True)) if d != dim)
    ):
        call.refuse("takes elements by their places among the rows that a mask chooses")
    return call.plain({at: call.filled(at, 0)}), masks


@lowers("scatter_add", "scatter.value", "scatter.src")
def scatter(call: Call) -> Lowered:
    x: Any = call.node.args[0]
    at: Any = call.argument("index")
    source: Any = call.argument("src")
    axes, masks = call.axes(x), call.axes(at)
    dim = call.c.dim(call.argument("dim"), len(axes))
    adds = "scatter_add" in str(call.node.target)
    if axes[dim] is not None or (masks[dim] is not None and not adds):
        call.refuse("writes by places among the rows that a mask chooses")
    others = [d for d in range(len(axes)) if d != dim]
    if any(axes[d] != masks[d] for d in others) or (source is not None and call.axes(source) != masks):
        raise CaptureError(TWO_MASKS)
    if adds:
        return call.plain({at: call.filled(at, 0), source: call.filled(source, 0)}), axes
    if not any(masks):
        return call.plain(), axes
    # Places that differ along the axis, as those have to that are written.
    c, count = call.c, call.shape(at)[dim]
    along = c.builder.reshape(c.iota(count), [count if d == dim else 1 for d in range(len(axes))])
    other = c.builder.expand(along, call.shape(at))
    chosen = call.table.filled(c.builder.constant(True, DType.BOOL, call.shape(at)), masks, False)
    return call.plain({at: c.op("where", chosen, call.value(at), other)}), axes


@lowers("masked_scatter_backward")
def masked_scatter_backward(call: Call) -> Lowered:
    """The part of the gradient that the mask chooses."""
    g: Any = call.node.args[0]
    mask: Any = call.argument("mask")
    if call.shape(g) != call.shape(mask) or any(call.axes(g)) or len(call.traced.shape) != 1:
        call.refuse("writes chosen elements into others, one after another")
    found = _Chosen(call, g, 0, len(call.shape(g)), call.value(mask))
    return found.read(call.value(g)), found.axes


@lowers("masked_scatter")
def masked_scatter(call: Call) -> Lowered:
    """Values that the same mask has chosen go back to their places."""
    x: Any = call.node.args[0]
    mask: Any = call.argument("mask")
    source: Any = call.argument("source")
    if call.shape(x) != call.shape(mask) or any(call.axes(x)) or any(call.axes(mask)) or len(call.shape(source)) != 1:
        call.refuse("writes chosen elements into others, one after another")
    found = _Chosen(call, x, 0, len(call.shape(x)), call.value(mask))
    if call.axes(source) != found.axes:
        raise CaptureError(TWO_MASKS)
    return found.written(call.value(x), call.value(source), accumulate=False), call.axes(x)
