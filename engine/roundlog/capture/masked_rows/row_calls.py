"""Operator calls of a traced step that have to do with chosen rows, as the functions that lower them see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.masked_rows.row_masks import REWRITE, TWO_MASKS, Axes, AxisTable, is_unknown
from roundlog.capture.rules.numbers import is_number
from roundlog.capture.rules.rule_table import Context, NodeValues, Rule

Lowered = tuple[Any, Any]
"""Values that an operator gives, and the axes of each."""

Lowerer = Callable[["Call"], Lowered]

LOWERERS: dict[str, Lowerer] = {}
"""ATen name, with or without overload -> function that lowers its calls on chosen rows."""


_SIZES = ("size", "sizes", "input_sizes")
"""Arguments that are sizes of tensors, and no other numbers."""

_OF_NUMBERS = (
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "clamp",
    "clamp_min",
    "clamp_max",
)
"""Operators whose rules take a value of the program for a number of Python's."""


def lowers(*names: str) -> Callable[[Lowerer], Lowerer]:
    """Registers a function under ATen names ("sum", or "max.dim" for one overload)."""

    def add(function: Lowerer) -> Lowerer:
        LOWERERS.update(dict.fromkeys(names, function))
        return function

    return add


class Call:
    """One call, with its arguments."""

    def __init__(
        self,
        context: Context,
        table: AxisTable,
        node: fx.Node,
        rule: Rule | None,
        values: NodeValues,
        axes: Mapping[fx.Node, Any],
        traced: Mapping[fx.Node, Any],
        places: dict[fx.Node, tuple[Value, torch.Tensor]],
    ) -> None:
        """rule: the one for rows that all count. By graph node, values: its value; axes: the masks of its axes; traced:
        the traced tensor; places, for positions that a mask chooses: the value of all positions, and all of them."""
        self.c, self.table, self.node = context, table, node
        self._rule, self._values, self._axes, self._traced = rule, values, axes, traced
        self.places = places
        schema = getattr(node.target, "_schema", None)
        self._schema = [] if schema is None else list(schema.arguments)

    @property
    def traced(self) -> Any:
        """The traced result, whose sizes are those of PyTorch."""
        return self._traced[self.node]

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name, as it stands in the graph."""
        for place, argument in enumerate(self._schema):
            if argument.name == name:
                given = self.node.args[place] if place < len(self.node.args) else self.node.kwargs.get(name)
                return default if given is None else given
        return default

    def tensors(self) -> list[fx.Node]:
        """The tensors among the arguments."""
        return [node for node in self.node.all_input_nodes if not is_number(node)]

    def value(self, node: fx.Node) -> Value:
        found: Value = self._values.value(node)
        return found

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        return self.c.shape(self.value(node))

    def size(self, node: fx.Node, dim: int) -> Any:
        """Size of a tensor's axis in PyTorch."""
        return self._traced.get(node, node.meta["val"]).shape[dim]

    def axes(self, node: fx.Node) -> Axes:
        """The masks of a tensor's axes."""
        return self._axes.get(node) or (None,) * len(self.shape(node))

    def positions(self, node: fx.Node) -> torch.Tensor | None:
        """All positions, if a tensor holds those that a mask chooses and nothing was written into it since."""
        value, found = self.places.get(node, (None, None))
        return found if value == self.value(node) else None

    def filled(self, node: fx.Node, fill: float | bool) -> Value:
        """A tensor with a number in the place of what does not count."""
        return self.table.filled(self.value(node), self.axes(node), fill)

    def plain(self, replaced: Mapping[fx.Node, Value] | None = None) -> Any:
        """The result of the rule, which knows of no masks. replaced: values in the place of those of some arguments."""
        if self._rule is None:
            self.refuse()
        args = [self._given(name, kind, item, replaced or {}) for name, kind, item in self._arguments()]
        options = {
            argument.name: self._given(
                argument.name, str(argument.type), self.node.kwargs[argument.name], replaced or {}
            )
            for argument in self._schema
            if argument.name in self.node.kwargs and argument.name != "generator"
        }
        return self._rule(self.c, *args, **options)

    def _arguments(self) -> list[tuple[str, str, Any]]:
        pairs = zip(self._schema, self.node.args, strict=False)
        return [(argument.name, str(argument.type), item) for argument, item in pairs]

    def _given(self, name: str, kind: str, item: Any, replaced: Mapping[fx.Node, Value]) -> Any:
        if isinstance(item, (list, tuple)):
            return [self._given(name, kind, part, replaced) for part in item]
        if not isinstance(item, fx.Node):
            return item
        if not is_number(item) or not self.table.knows(item.meta["val"]):
            return replaced[item] if item in replaced else self.value(item)
        if (kind == "List[int]" and name in _SIZES) or name == "N":  # rows of a group norm
            return self.table.length(item.meta["val"])
        base = str(self.node.target).split(".")[1].removesuffix("_")
        if kind in ("number", "Tensor") and base in _OF_NUMBERS and name != "alpha":
            return self.table.number(item.meta["val"])
        raise CaptureError(f"takes a number of chosen elements for {name}: {REWRITE}")

    def broadcast(self, nodes: Sequence[fx.Node], rank: int) -> Axes:
        """The masks of a result in which tensors meet element by element. Raises CaptureError where chosen rows meet
        others."""
        result: list[Value | None] = []
        for axis in range(-rank, 0):
            masks, others = set(), False
            for node in nodes:
                axes, shape = self.axes(node), self.shape(node)
                if -axis > len(shape):
                    continue
                if axes[axis] is not None:
                    masks.add(axes[axis])
                elif shape[axis] != 1:
                    others = True
            if len(masks) > 1 or (masks and others):
                raise CaptureError(TWO_MASKS)
            result.append(masks.pop() if masks else None)
        return tuple(result)

    def made(self, sizes: Any | None = None) -> Axes:
        """The masks of a result that is made with given sizes."""
        return tuple(self.table.of_size(size) for size in (self.traced.shape if sizes is None else sizes))

    def dims(self, rank: int, name: str = "dim") -> tuple[int, ...]:
        """Axes that an argument names; none given means all."""
        return self.c.dims(self.argument(name), rank)

    def refuse(self, why: str = "computes with the rows that a mask chooses, other than row by row") -> Never:
        raise CaptureError(f"{why}, whose number depends on values: {REWRITE}")


def has_unknown_size(traced: Any) -> bool:
    """Whether a traced result has an axis whose size depends on values."""
    return any(
        is_unknown(size) for leaf in tree_leaves(traced) if isinstance(leaf, torch.Tensor) for size in leaf.shape
    )
