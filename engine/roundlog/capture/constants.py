"""Parts of a traced step that depend on no parameter, no data and no random number.

Position tables, masks and interpolation weights are often made inside the step, by operators that programs do not
have (bit operations, float64), or that take many of theirs (conversions of fractions to integers, remainders). What
such a part computes is known at capture, so it is computed there, once, the same on every machine, and becomes data of
the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from roundlog.capture.draws import draws, written_arguments
from roundlog.capture.portable import paused, portable
from roundlog.capture.rules import VIEWS
from roundlog.capture.rules.rule_table import is_among

_aten = torch.ops.aten


class Constants:
    """Constant nodes of a graph, and their values."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        """module: what the graph's attributes are found in."""
        self._module = module
        self._values: dict[fx.Node, Any] = {}
        changing = written(graph)
        self._constant: set[fx.Node] = set()
        for node in graph.nodes:
            if node in changing:
                continue
            if node.op == "get_attr":
                # A generator of random numbers is an attribute, too.
                known = isinstance(getattr(module, str(node.target)), torch.Tensor)
            else:
                known = node.op == "call_function" and not _draws_or_writes(node)
                known = known and all(source in self._constant for source in node.all_input_nodes)
            if known:
                self._constant.add(node)

    def __contains__(self, node: fx.Node) -> bool:
        return node in self._constant

    def evaluate(self, node: fx.Node) -> Any:
        """A constant node's value on the CPU: a tensor, or a tuple of tensors."""
        todo = [node]
        while todo:
            current = todo[-1]
            missing = [source for source in current.all_input_nodes if source not in self._values]
            if missing:
                todo.extend(missing)
                continue
            todo.pop()
            if current not in self._values:
                self._values[current] = self._compute(current)
        return self._values[node]

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return getattr(self._module, str(node.target)).detach().cpu()
        args: Any
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: self._values[n])
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if "view_as_real" in str(node.target) and not args[0].is_complex():
            return args[0]  # complex numbers are held as real pairs
        assert callable(node.target)
        with torch.no_grad(), paused(), portable():
            value = node.target(*args, **kwargs)
        # Memory that nobody has written to holds anything: here, as in programs, zeros.
        return torch.zeros_like(value) if "empty" in str(node.target) else value


def _draws_or_writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", "") != "getitem"
    return bool(written_by(node)) or draws(node.target)


def written(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose memory an operator writes into, through whatever view: their value depends on when one looks."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        for target in tree_leaves(written_by(node)):
            while isinstance(target, fx.Node):
                found.add(target)
                target = target.args[0] if is_among(VIEWS, target.target) and target.args else None
    return found


def written_by(node: fx.Node) -> list[Any]:
    """The arguments that a node writes into."""
    # It writes running statistics, though its schema does not say so.
    if node.target is _aten.native_batch_norm.default:
        return list(node.args[3:5]) if node.args[5] else []
    schema = getattr(node.target, "_schema", None)
    return written_arguments(schema, node.args, node.kwargs) if schema is not None and schema.is_mutable else []


Table = dict[Any, Callable[..., Any]]


def node_of(x: torch.Tensor) -> fx.Node | None:
    """The graph node that a tensor stands for, while a step is traced."""
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(x, mode.tracer, None)
    return None if slot is None else slot.proxy.node


def known(x: torch.Tensor) -> torch.Tensor | None:
    """The value of a traced tensor on the CPU, if it is known."""
    node, mode = node_of(x), get_proxy_mode()
    if not isinstance(x, FakeTensor) and node is None:
        with _disable_current_modes():
            return x.detach().cpu()  # a tensor of the user's
    if node is None or mode is None:
        return None
    constants = Constants(mode.tracer.root, node.graph)  # type: ignore[union-attr]
    if node not in constants:
        return None
    with _disable_current_modes():
        value = constants.evaluate(node)
    return value if isinstance(value, torch.Tensor) else None


def with_known_values(table: Table) -> Table:
    """A table for `make_fx` in which operators whose result depends on values are computed where these are known."""
    return {**table, **{op: _trying(function, table.get(op)) for op, function in _OPERATORS.items()}}


def _trying(function: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if result is not NotImplemented:
            return result
        return NotImplemented if otherwise is None else otherwise(*args, **kwargs)

    return apply


def _item(x: torch.Tensor) -> Any:
    value = known(x)
    if value is None:
        return NotImplemented
    with _disable_current_modes():
        return value.item()


def _below(x: torch.Tensor, limit: float) -> Any:
    """Random numbers of [0, 1) are never below 0: that is what layer drop asks where it is switched off."""
    node = node_of(x) if limit <= 0 and x.ndim == 0 else None
    drawn = node is not None and node.target in (_aten.rand.default, _aten.rand_like.default)
    return torch.tensor(False, device=x.device) if drawn else NotImplemented


def _made(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A known value as a constant of the traced step."""
    with _disable_current_modes():
        items = value.tolist()
    return torch.tensor(items, dtype=value.dtype, device=like.device).reshape(value.shape)


def _places(op: Any) -> Callable[..., Any]:
    """An operator whose result are places of elements, of known values."""

    def apply(x: torch.Tensor, **_: Any) -> Any:
        value = known(x)
        if value is None:
            return NotImplemented
        with _disable_current_modes():
            places = op(value)
        return _made(places, x)

    return apply


def _without_masks(op: Any) -> Callable[..., Any]:
    """An operator on indexed elements, with the places that known masks mark instead of the masks."""

    def apply(x: torch.Tensor, indices: Sequence[torch.Tensor | None], *args: Any, **kwargs: Any) -> Any:
        places: list[torch.Tensor | None] = []
        for index in indices:
            value = known(index) if index is not None and index.dtype == torch.bool else None
            if index is None or value is None:
                places.append(index)
                continue
            with _disable_current_modes():
                columns = value.nonzero(as_tuple=True)
            places += [_made(column, index) for column in columns]
        if len(places) == len(indices) and all(a is b for a, b in zip(places, indices, strict=True)):
            return NotImplemented
        return op(x, places, *args, **kwargs)

    return apply


_OPERATORS: Table = {
    _aten._local_scalar_dense.default: _item,
    _aten.lt.Scalar: _below,
    # Writes nothing; as an operator it would make what follows look written to.
    _aten.detach_.default: lambda x: x,
    _aten.repeat_interleave.Tensor: _places(torch.repeat_interleave),
    _aten.nonzero.default: _places(torch.nonzero),
    **{op: _without_masks(op) for op in (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)},
}
"""ATen operator -> what it is where values are known; NotImplemented where they are not."""
