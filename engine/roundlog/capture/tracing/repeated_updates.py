"""Updates of parameters that are alike, traced once.

Models have many parameters of a few shapes, and an optimizer does the same with all of a shape. The first update is
traced; for the others its nodes are copied, which takes less time and gives the same graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, get_proxy_mode, get_proxy_slot, track_tensor
from torch.utils._python_dispatch import _disable_current_modes

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Traced:
    """An update that was traced."""

    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    """Nodes of its operators, in order."""
    outputs: tuple[fx.Node, ...]
    results: tuple[torch.Tensor, ...]


class RepeatedUpdates:
    """Updates within one trace."""

    def __init__(self) -> None:
        self._traced: dict[object, _Traced] = {}

    def apply(self, update: object, function: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """function(*inputs), while make_fx traces it: by the nodes of an earlier call, if that was given the same
        `update` (hashable) and inputs of the same kinds. The function writes into nothing, draws nothing, and depends
        on nothing that is another one for an equal `update`."""
        mode = get_proxy_mode()
        tracer = mode.tracer if mode is not None and isinstance(mode.tracer, PythonKeyTracer) else None
        places = [_node_of(x, tracer) for x in inputs]
        if tracer is None or None in places or len(set(places)) < len(places):
            return function(*inputs)
        nodes = tuple(node for node in places if node is not None)
        key = (update, *map(_kind, inputs))
        if (traced := self._traced.get(key)) is not None:
            return _copied(traced, nodes, tracer)
        graph = tracer.graph
        before = next(iter(reversed(graph.nodes)))
        results = tuple(function(*inputs))
        made: list[fx.Node] = []
        node = before.next
        while node.op != "root":
            made.append(node)
            node = node.next
        outputs = tuple(_node_of(x, tracer) for x in results)
        if all(output in made for output in outputs):
            self._traced[key] = _Traced(nodes, tuple(made), outputs, results)  # type: ignore[arg-type]
        return results


def _copied(traced: _Traced, inputs: Sequence[fx.Node], tracer: PythonKeyTracer) -> Tensors:
    new = dict(zip(traced.inputs, inputs, strict=True))

    def place(node: fx.Node) -> fx.Node:
        return new.get(node, node)

    for node in traced.nodes:
        new[node] = tracer.graph.node_copy(node, place)
    return [
        _tracked(result, new[output], tracer) for result, output in zip(traced.results, traced.outputs, strict=True)
    ]


def _tracked(like: torch.Tensor, node: fx.Node, tracer: PythonKeyTracer) -> torch.Tensor:
    """A fake tensor of this kind that stands for a node."""
    assert isinstance(like, FakeTensor)
    with _disable_current_modes(), like.fake_mode:
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    track_tensor(made, fx.Proxy(node, tracer), constant=None, tracer=tracer)
    return made


def _node_of(x: Any, tracer: PythonKeyTracer | None) -> fx.Node | None:
    if tracer is None or not isinstance(x, FakeTensor):
        return None
    found: Any = get_proxy_slot(x, tracer, None)
    return None if found is None else found.proxy.node


def _kind(x: torch.Tensor) -> tuple[object, ...]:
    """Everything about a tensor that operators may depend on, but its numbers."""
    lazy = (x.is_neg(), x.is_conj(), x._is_zerotensor())
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.device, lazy
