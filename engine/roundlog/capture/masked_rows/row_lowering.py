"""Lowering of the operators that have to do with chosen rows. Here are those that give them shapes and places: views,
expansions, parts, and several tensors joined."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.masked_rows import row_operators, row_positions  # noqa: F401 - they register what they lower
from roundlog.capture.masked_rows.row_masks import (
    LOWERERS,
    TWO_MASKS,
    Axes,
    AxisTable,
    Call,
    Lowered,
    Part,
    expression,
    has_unknown_size,
    is_unknown,
    lowers,
    padded,
    whole_parts,
)
from roundlog.capture.rules import VIEWS
from roundlog.capture.rules.numbers import is_number, refuse_numbers
from roundlog.capture.rules.rule_table import Context, NodeValues, Rule, base_name, is_among
from roundlog.capture.rules.short_formats import refuse_short


def _first(call: Call) -> tuple[Any, int]:
    x: Any = call.node.args[0]
    return x, len(call.shape(x))


@lowers("permute")
def permute(call: Call) -> Lowered:
    x, rank = _first(call)
    axes = call.axes(x)
    return call.plain(), tuple(axes[call.c.dim(dim, rank)] for dim in call.argument("dims"))


@lowers("transpose", "t")
def transpose(call: Call) -> Lowered:
    x, rank = _first(call)
    order = list(range(rank))
    a, b = (0, rank - 1) if call.argument("dim0") is None else (call.argument("dim0"), call.argument("dim1"))
    if rank:
        a, b = call.c.dim(a, rank), call.c.dim(b, rank)
        order[a], order[b] = order[b], order[a]
    axes = call.axes(x)
    return call.plain(), tuple(axes[axis] for axis in order)


@lowers("unsqueeze")
def unsqueeze(call: Call) -> Lowered:
    x, rank = _first(call)
    axes = list(call.axes(x))
    axes.insert(call.c.dim(call.argument("dim"), rank + 1), None)
    return call.plain(), tuple(axes)


@lowers("squeeze")
def squeeze(call: Call) -> Lowered:
    """Axes that all count along: PyTorch leaves one of chosen elements out where there happens to be one."""
    x, rank = _first(call)
    dims, axes = call.argument("dim"), call.axes(x)
    over = () if isinstance(dims, Sequence) and not dims else call.c.dims(dims, rank)
    if any(axes[dim] is not None for dim in over):
        call.refuse("leaves an axis of chosen elements out if there is one of them")
    gone = [dim for dim in over if call.shape(x)[dim] == 1]
    return call.c.squeeze(call.value(x), gone), tuple(mask for dim, mask in enumerate(axes) if dim not in gone)


@lowers("expand")
def expand(call: Call) -> Lowered:
    x, rank = _first(call)
    sizes = call.traced.shape
    before = (None,) * (len(sizes) - rank) + call.axes(x)
    shape = (1,) * (len(sizes) - rank) + call.shape(x)
    axes = [
        mask if mask is not None or (length != 1 and call.table.length(size) == length) else call.table.of_size(size)
        for mask, length, size in zip(before, shape, sizes, strict=True)
    ]
    return call.c.builder.expand(call.value(x), call.table.shape(sizes)), tuple(axes)


@lowers("view", "_unsafe_view", "reshape")
def view(call: Call) -> Lowered:
    """Axes are kept, taken together, or taken apart again as they were."""
    x, _ = _first(call)
    shape = call.table.shape(call.traced.shape)
    parts = [
        part
        for size, mask in zip(call.shape(x), call.axes(x), strict=True)
        for part in ([(size, None)] if mask is None else call.table.factors(mask))
    ]
    parts = whole_parts(parts)
    axes = []
    for size, length in zip(call.traced.shape, shape, strict=True):
        taken = _taken(parts, length, is_unknown(size))
        if taken is None:
            call.refuse("takes the axes of chosen elements apart")
        axes.append(call.table.merged(taken) if is_unknown(size) else None)
    if any(mask is not None for _, mask in parts):
        call.refuse("takes the axes of chosen elements apart")
    return call.c.builder.reshape(call.value(x), shape), tuple(axes)


def _taken(parts: list[Part], length: int, chosen: bool) -> list[Part] | None:
    """Takes the first parts, which make an axis of this length, off the list. None if they do not.

    chosen: whether the axis is one of chosen elements."""
    taken: list[Part] = []
    while parts and (length > 1 or (chosen and all(mask is None for _, mask in taken))):
        size, mask = parts.pop(0)
        if mask is None and size > length > 0 and size % length == 0:
            parts.insert(0, (size // length, None))
            size = length
        if size == 0 or length % size or (mask is not None and not chosen):
            return None
        taken.append((size, mask))
        length //= size
    return taken if length == 1 and chosen == any(mask is not None for _, mask in taken) else None


@lowers("slice.Tensor")
def slice_(call: Call) -> Lowered:
    x, rank = _first(call)
    axes = list(call.axes(x))
    dim = call.c.dim(call.argument("dim", 0), rank)
    mask = axes[dim]
    if mask is None:
        return _beginning(call, x, dim, axes)
    start, end = (_place(call.argument(name, default)) for name, default in (("start", 0), ("end", sys.maxsize)))
    whole = call.size(x, dim)
    if end is sys.maxsize or (type(end) is int and end >= sys.maxsize):
        end = whole
    if call.argument("step", 1) != 1:
        call.refuse("takes some of the rows that a mask chooses")
    if expression(start) == 0 and expression(end) == expression(whole):
        return call.value(x), tuple(axes)
    found = call.table.part(mask, start, end)
    if found is None:
        call.refuse("takes some of the rows that a mask chooses")
    first, last, axes[dim] = found
    return call.c.op("slice", call.value(x), dim=dim, start=first, stop=last, step=1), tuple(axes)


def _beginning(call: Call, x: fx.Node, dim: int, axes: list[Any]) -> Lowered:
    """As many elements from the start as a mask of the same length chooses, which are its first ones."""
    end = call.argument("end")
    if not isinstance(end, fx.Node):
        return call.plain(), tuple(axes)
    mask = call.table.of_size(end.meta["val"])
    length = call.shape(x)[dim]
    if not call.table.is_beginning(mask) or call.c.shape(mask)[0] != length or call.argument("start", 0) != 0:  # type: ignore[arg-type]
        call.refuse("takes as many elements as a mask chooses")
    axes[dim] = mask
    return call.value(x), tuple(axes)


def _place(item: Any) -> Any:
    return item.meta["val"] if isinstance(item, fx.Node) else item


@lowers("select.int", "select")
def select(call: Call) -> Lowered:
    x, rank = _first(call)
    axes = list(call.axes(x))
    if axes.pop(call.c.dim(call.argument("dim"), rank)) is not None:
        call.refuse("takes one of the rows that a mask chooses")
    return call.plain(), tuple(axes)


@lowers("select_backward")
def select_backward(call: Call) -> Lowered:
    sizes = call.traced.shape
    axes = list(call.axes(call.node.args[0]))  # type: ignore[arg-type]
    axes.insert(call.c.dim(call.argument("dim"), len(sizes)), None)
    return call.plain(), tuple(axes)


@lowers("slice_backward")
def slice_backward(call: Call) -> Lowered:
    x, rank = _first(call)
    axes, dim = call.axes(x), call.c.dim(call.argument("dim"), rank)
    if axes[dim] is not None or call.made()[dim] is not None:
        call.refuse("takes some of the rows that a mask chooses")
    return call.plain(), axes


@lowers("cat")
def cat(call: Call) -> Lowered:
    parts: Any = call.node.args[0]
    rank = len(call.traced.shape)
    dim = call.c.dim(call.argument("dim", 0), rank)
    axes = [list(call.axes(part)) for part in parts]
    along = [one.pop(dim) if len(one) == rank else call.refuse() for one in axes]
    if any(one != axes[0] for one in axes):
        call.refuse("joins the rows that one mask chooses with others side by side")
    result: list[Any] = list(axes[0])
    mask = None
    if any(one is not None for one in along):
        lengths = [call.shape(part)[dim] for part in parts]
        mask = call.table.joined([(call.size(p, dim), (n, m)) for p, n, m in zip(parts, lengths, along, strict=True)])
    result.insert(dim, mask)
    return call.plain(), tuple(result)


@lowers("repeat")
def repeat(call: Call) -> Lowered:
    x, rank = _first(call)
    repeats = call.argument("repeats")
    axes, new = call.axes(x), len(repeats) - rank
    if any(isinstance(times, fx.Node) for times in repeats):
        call.refuse("repeats rows as often as a mask chooses elements")
    if any(mask is not None and times != 1 for mask, times in zip(axes, repeats[new:], strict=True)):
        call.refuse("repeats the rows that a mask chooses")
    return call.plain(), (None,) * new + axes


@lowers("flip", "roll", "constant_pad_nd")
def along_other_axes(call: Call) -> Lowered:
    """Moves of elements along axes that all count along."""
    x, rank = _first(call)
    axes, name = call.axes(x), str(call.node.target)
    if "pad" in name:
        sizes = call.argument("pad")
        dims: tuple[int, ...] = tuple(rank - 1 - place // 2 for place, size in enumerate(sizes) if size)
    else:
        given = call.argument("dims")
        dims = call.c.dims(tuple(given), rank) if given else tuple(range(rank))
    if any(axes[dim] is not None for dim in dims):
        call.refuse("moves the rows that a mask chooses")
    return call.plain(), axes


_CHOOSING = ("nonzero", "index", "_unsafe_index", "index_put", "_unsafe_index_put")
"""Operators on which a mask, or what comes from one, may choose rows."""


class MaskedRows:
    """Chosen rows of one step, while it is lowered."""

    def __init__(self, context: Context, values: NodeValues) -> None:
        self._c = context
        self._values = values
        self._table = AxisTable(context)
        self._axes: dict[fx.Node, Any] = {}
        self._traced: dict[fx.Node, Any] = {}
        """Results as PyTorch has traced them, of nodes whose sizes depend on values."""
        self._places: dict[fx.Node, tuple[Value, torch.Tensor]] = {}
        """Value of a node that holds the positions that a mask chooses, and all positions that it may choose."""

    def concerns(self, node: fx.Node) -> bool:
        """Whether a graph node has to do with chosen rows."""
        if any(source in self._axes or self.counts(source) for source in node.all_input_nodes):
            return True
        return _writes_by_mask(node) or has_unknown_size(self._traced.get(node, node.meta.get("val")))

    def counts(self, node: fx.Node) -> bool:
        """Whether a graph node stands for a number of Python that is computed from numbers of chosen elements alone."""
        return is_number(node) and self._table.knows(node.meta["val"])

    def number(self, node: fx.Node) -> Value:
        """The value of such a number."""
        return self._table.number(node.meta["val"])

    def axes(self, node: fx.Node) -> Axes:
        """The masks of a tensor's axes; of one that has nothing to do with chosen rows, nothing."""
        found: Axes = self._axes.get(node, ())
        return found

    def take_item(self, node: fx.Node, container: fx.Node, position: int) -> None:
        """Notes a node that takes one result out of several."""
        if container in self._axes:
            self._axes[node] = self._axes[container][position]
            self._traced[node] = self._traced[container][position]
            node.meta["val"] = container.meta["val"][position]

    def lowered(self, node: fx.Node, name: str, rule: Rule | None) -> Any:
        """Values of a node that this concerns. rule: the one for rows that all count. Raises CaptureError for an
        operator that mixes chosen rows in a way that is not known."""
        traced = self._traced.setdefault(node, node.meta.get("val"))
        base = base_name(node.target)
        if any(is_number(source) and not self.counts(source) for source in node.all_input_nodes):
            refuse_numbers(node, base)
        lowerer = next((LOWERERS[known] for known in (name, base) if known in LOWERERS), None)
        call = Call(self._c, self._table, node, rule, self._values, self._axes, self._traced, self._places)
        if lowerer is None:
            lowerer = row_operators.pointwise if row_operators.is_pointwise(node) else None
        if lowerer is None:
            call.refuse()
        is_by_itself = lowerer is row_operators.pointwise and not any(map(is_number, node.all_input_nodes))
        if not is_by_itself and base not in _CHOOSING and lowerer is not row_operators.making:
            refuse_short(node)
        if base not in _CHOOSING:
            self._pad(node, traced)
        result, axes = lowerer(call)
        self._pad(node, traced)
        several = isinstance(result, (tuple, list))
        for one, of_one, masks in zip(
            result if several else (result,), tree_leaves(traced), axes if several else (axes,), strict=True
        ):
            self._confirm(one, of_one, masks)
        if any(mask is not None for masks in (axes if several else (axes,)) for mask in masks or ()):
            self._axes[node] = axes
        self._follow_places(node, call, result)
        return result

    def _pad(self, node: fx.Node, traced: Any) -> None:
        """Gives a graph node the shape that it has in the program, which rules look at."""

        def shaped(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not has_unknown_size(leaf):
                return leaf
            return padded(leaf, self._table.shape(leaf.shape))

        node.meta["val"] = tree_map(shaped, traced)

    def _confirm(self, value: Any, traced: Any, axes: Any) -> None:
        """Raises CaptureError unless the masks of a result are those of its sizes in PyTorch."""
        if not isinstance(value, Value):
            return
        for size, mask in zip(traced.shape, axes, strict=True):
            if is_unknown(size) != (mask is not None):
                raise CaptureError(TWO_MASKS)
            if mask is None:
                continue
            if expression(size).is_Symbol and self._table.of_size(size) != mask:
                raise CaptureError(TWO_MASKS)
            self._table.note(size, mask)

    def _follow_places(self, node: fx.Node, call: Call, result: Any) -> None:
        """Positions under another shape are as well known."""
        source = node.args[0] if node.args else None
        known = call.positions(source) if isinstance(source, fx.Node) else None
        if known is None or not is_among(VIEWS, node.target):
            return
        args: Any = fx.node.map_arg(node.args[1:], lambda n: self._table.length(n.meta["val"]))
        with torch.no_grad():
            self._places[node] = (result, node.target(known, *args, **node.kwargs))  # type: ignore[operator]


def _writes_by_mask(node: fx.Node) -> bool:
    if not str(node.target).startswith(("aten.index_put", "aten._unsafe_index_put")):
        return False
    indices: Any = node.args[1]
    return any(index is not None and index.meta["val"].dtype == torch.bool for index in indices)
