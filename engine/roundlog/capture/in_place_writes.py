"""In-place operators: programs have none, so a write into a tensor becomes a new value of it and of all its views."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules import Context
from roundlog.capture.rules.rule_table import NodeValues
from roundlog.capture.rules.shapes_and_views import diagonal_scatter, places_in_base, slice_scatter
from roundlog.program import ProgramError


class Storages:
    """Graph nodes that share memory, and their meaning after a write.

    A write into a view is carried back, view by view, to the tensor that owns the memory; then every view of that
    tensor is to be computed again."""

    def __init__(self, context: Context, values: NodeValues) -> None:
        self._context = context
        self._values = values
        self._base: dict[fx.Node, fx.Node] = {}

    def add_view(self, node: fx.Node, base: fx.Node) -> None:
        """`node` is a view of `base`, or all of it."""
        self._base[node] = base

    def is_view(self, node: fx.Node) -> bool:
        return node in self._base

    def write(self, target: fx.Node, value: Value) -> list[tuple[fx.Node, fx.Node]]:
        """`value` has been written into the tensor that graph node `target` stands for. Gives the views that have other
        values now, each with its base, in the order in which to compute them. Raises CaptureError where two elements
        of the target are one place in memory."""
        writer = self._writer(target)
        node = target
        while node in self._base:
            try:
                value = self._carry_back(node, value)
            except (CaptureError, ProgramError) as error:
                raise CaptureError(f"the operator {writer}{self._where()} cannot be lowered: {error}") from None
            node = self._base[node]
        if node.op == "get_attr":
            raise CaptureError(
                f"the operator {writer}{self._where()} writes into a tensor that is no part of the state: make it a "
                "buffer of the model"
            )
        self._values[node] = value
        # Views come after their bases in the graph, and were added in that order.
        moved = {node}
        views: list[tuple[fx.Node, fx.Node]] = []
        for view, base in self._base.items():
            if base in moved:
                views.append((view, base))
                moved.add(view)
        return views

    def _writer(self, target: fx.Node) -> str:
        """The name of the operator that is being lowered: of those that use the target, the first without a value."""
        return next((str(user.target) for user in target.users if user not in self._values), str(target.target))

    def _where(self) -> str:
        source = self._context.builder.source
        return f" (at {source})" if source else ""

    def _carry_back(self, view: fx.Node, value: Value) -> Value:
        """The new value of the view's base, when `value` is the new value of the view."""
        c = self._context
        base = self._values.value(self._base[view])
        kind = _kind(view)
        if kind in ("alias", "detach", "lift_fresh") or _is_in_place(view) or "out" in view.kwargs:
            return value
        if kind in ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"):
            return c.builder.reshape(value, c.shape(base))
        if kind in ("permute", "transpose", "t"):
            return c.builder.permute(value, _inverse(_permutation(view, c.rank(base))))
        if kind in ("select", "slice"):
            return self._into_part(view, kind, base, value)
        if kind == "diagonal":
            return diagonal_scatter(c, base, value, *_arguments(view)[1:])
        return self._into_places(view, base, value)

    def _into_part(self, view: fx.Node, kind: str, base: Value, value: Value) -> Value:
        c, given = self._context, _arguments(view)
        dim = c.dim(int(given[1]) if len(given) > 1 else 0, c.rank(base))
        size = c.shape(base)[dim]
        if kind == "select":
            start = int(given[2]) % size
            stop = start + 1
            value = c.builder.reshape(value, (*c.shape(base)[:dim], 1, *c.shape(base)[dim + 1 :]))
        else:
            first, last, every = [*given[2:5], None, None, None][:3]
            start, stop, step = slice(first, last, every).indices(size)
            stop = max(start, stop)
            if step != 1:
                return slice_scatter(c, base, value, dim, start, stop, step)
        parts = [value]
        if start > 0:
            parts.insert(0, c.op("slice", base, dim=dim, start=0, stop=start, step=1))
        if stop < size:
            parts.append(c.op("slice", base, dim=dim, start=stop, stop=size, step=1))
        return value if len(parts) == 1 else c.op("cat", *parts, dim=dim)

    def _into_places(self, view: fx.Node, base: Value, value: Value) -> Value:
        """Each element of the view goes to its place in the base; other places stay as they are."""
        c = self._context
        places = places_in_base(view, c.shape(base)).reshape(-1)
        count = prod(c.shape(base))
        # Where in the view each element of the base stands.
        origin = torch.full((count,), -1, dtype=torch.int64)
        origin[places] = torch.arange(len(places))
        if int((origin >= 0).sum()) != len(places):
            raise CaptureError(
                f"writes in place through {view.target}, in which several elements are one place in memory: "
                "make a copy of it with .clone()"
            )
        if not len(places):
            return base
        flat = c.op("take", c.builder.reshape(value, (len(places),)), c.literal(origin.clamp(min=0)))
        if len(places) < count:
            flat = c.op("where", c.literal(origin >= 0), flat, c.builder.reshape(base, (count,)))
        return c.builder.reshape(flat, c.shape(base))


def _arguments(view: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node. Their own type is a union of itself, over whose overloads mypy spends minutes."""
    return view.args


def _kind(view: fx.Node) -> str:
    """The name of a view's operator, whether or not it is the in-place form."""
    name = str(view.target).removeprefix("aten.").partition(".")[0]
    return name if name.startswith("_") else name.removesuffix("_")


def _is_in_place(view: fx.Node) -> bool:
    """Whether a node is what an in-place operator gives: all of the tensor that it has written into."""
    name = str(view.target).removeprefix("aten.").partition(".")[0]
    reshapes = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_")
    return name.endswith("_") and not name.startswith("_") and name not in reshapes


def _permutation(view: fx.Node, rank: int) -> list[int]:
    kind = _kind(view)
    if kind == "permute":
        return [int(dim) % rank for dim in _arguments(view)[1]]
    dims = list(range(rank))
    if kind == "t" or not rank:
        return dims[::-1]
    a, b = (int(dim) % rank for dim in _arguments(view)[1:3])
    dims[a], dims[b] = dims[b], dims[a]
    return dims


def _inverse(dims: list[int]) -> list[int]:
    return [dims.index(axis) for axis in range(len(dims))]
