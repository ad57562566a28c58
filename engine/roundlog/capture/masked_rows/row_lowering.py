"""Lowering of the operators that have to do with chosen rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.masked_rows import row_operators, row_positions, row_views  # noqa: F401 - they register what they lower
from roundlog.capture.masked_rows.row_calls import LOWERERS, Call, has_unknown_size
from roundlog.capture.masked_rows.row_masks import TWO_MASKS, Axes, AxisTable, expression, is_unknown, padded
from roundlog.capture.rules import VIEWS
from roundlog.capture.rules.numbers import is_number, refuse_numbers
from roundlog.capture.rules.rule_table import Context, NodeValues, Rule

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
        base = name.partition(".")[0]
        if base.endswith("_") and not base.startswith("_"):
            base = base[:-1]
        if any(is_number(source) and not self.counts(source) for source in node.all_input_nodes):
            refuse_numbers(node, base)
        lowerer = next((LOWERERS[known] for known in (name, base) if known in LOWERERS), None)
        call = Call(self._c, self._table, node, rule, self._values, self._axes, self._traced, self._places)
        if lowerer is None:
            lowerer = row_operators.pointwise if row_operators.is_pointwise(node) else None
        if lowerer is None:
            call.refuse()
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
        self._follow_places(node, name, call, result)
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

    def _follow_places(self, node: fx.Node, name: str, call: Call, result: Any) -> None:
        """Positions under another shape are as well known."""
        source = node.args[0] if node.args else None
        known = call.positions(source) if isinstance(source, fx.Node) else None
        if known is None or (name not in VIEWS and name.partition(".")[0] not in VIEWS):
            return
        args: Any = fx.node.map_arg(node.args[1:], lambda n: self._table.length(n.meta["val"]))
        with torch.no_grad():
            self._places[node] = (result, node.target(known, *args, **node.kwargs))  # type: ignore[operator]


def _writes_by_mask(node: fx.Node) -> bool:
    if not str(node.target).startswith(("aten.index_put", "aten._unsafe_index_put")):
        return False
    indices: Any = node.args[1]
    return any(index is not None and index.meta["val"].dtype == torch.bool for index in indices)
