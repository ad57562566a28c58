"""Rows that a mask chooses, traced with a size that PyTorch does not know.

PyTorch has a symbol for the number of elements that a mask chooses, and keeps it with the mask. Scripts often compute
the same mask twice (`F.cross_entropy(logits[labels >= 0], labels[labels >= 0])`): here equal masks get one symbol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from roundlog.capture.constants import node_of

_aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]

_seen: WeakKeyDictionary[fx.Graph, list[tuple[fx.Node, FakeTensor]]] = WeakKeyDictionary()
"""Graph -> the masks that have chosen in it."""


def with_one_count(table: Table) -> Table:
    """A table for `make_fx` in which equal masks choose the same number of elements."""

    def index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
        for one in indices:
            if one is not None and one.dtype == torch.bool:
                _share(one)
        known = table.get(_aten.index.Tensor)
        return NotImplemented if known is None else known(x, indices)

    def nonzero(x: torch.Tensor) -> Any:
        _share(x)
        known = table.get(_aten.nonzero.default)
        return NotImplemented if known is None else known(x)

    return {
        **table,
        _aten.index.Tensor: index,
        _aten.nonzero.default: nonzero,
        _aten.masked_select.default: _masked_select,
    }


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Elements by an index, which has their number from its mask."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    if x.shape != shape:
        x = x.expand(shape)
    return x[mask if mask.shape == shape else mask.expand(shape)]


def _share(mask: torch.Tensor) -> None:
    """Gives a mask the symbol of an equal one that has chosen before."""
    node = node_of(mask)
    if node is None or not isinstance(mask, FakeTensor):
        return
    before = _seen.setdefault(node.graph, [])
    for other, tensor in before:
        if _equal(node, other, {}):
            if mask.nonzero_memo is None and tensor.nonzero_memo is not None:
                mask.nonzero_memo = tensor.nonzero_memo
            return
    before.append((node, mask))


def _equal(one: Any, two: Any, compared: dict[tuple[fx.Node, fx.Node], bool]) -> bool:
    """Whether two arguments are the same, or nodes that compute the same of what nothing writes to."""
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(_equal(a, b, compared) for a, b in zip(one, two, strict=True))
    if not isinstance(one, fx.Node) or not isinstance(two, fx.Node):
        return type(one) is type(two) and bool(one == two)
    if (one, two) not in compared:
        same = one.op == two.op == "call_function" and one.target == two.target and _is_pure(one)
        compared[one, two] = (one is two and not _is_written(one)) or (
            one is not two
            and same
            and not _is_written(one)
            and not _is_written(two)
            and one.kwargs == two.kwargs
            and _equal(one.args, two.args, compared)
        )
    return compared[one, two]


def _is_pure(node: fx.Node) -> bool:
    """Whether a node computes the same whenever it does."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags  # type: ignore[union-attr]


def _is_written(node: fx.Node) -> bool:
    """Whether an operator has been given a node, or a view of it, to write into."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is None:
            continue
        if schema.is_mutable:
            return True
        if any(returned.alias_info is not None for returned in schema.returns) and _is_written(user):
            return True
    return False
