"""One operator of PyTorch's on tensors that have values, computed as a program would: correctly rounded, or composed of
operators that are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from roundlog.capture.builder import Builder, ProgramStates, evaluated
from roundlog.capture.decompositions import decompositions
from roundlog.capture.errors import CaptureError, DefectError
from roundlog.capture.graph_lowering import GraphLowering
from roundlog.capture.rules.rule_table import storage
from roundlog.execution.stops import StoppedError
from roundlog.kernels.threads import own_threads
from roundlog.operators import StepInputs
from roundlog.program import ProgramError


def by_program(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Result of an operator that draws nothing, tensors or a tuple of them. Running statistics that it writes are
    written. Raises NotImplementedError where programs have no counterpart of it, or of a dtype."""
    leaves, form = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    inputs = [leaves[place].detach() for place in places]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        again, options = tree_unflatten(filled, form)
        return func(*again, **options)

    try:
        graph = make_fx(call, decompositions(), tracing_mode="fake")(*inputs)
        with own_threads():
            return _evaluated(graph, inputs)
    except (CaptureError, DefectError, ProgramError, StoppedError, RuntimeError, TypeError) as error:
        raise NotImplementedError(str(error)) from error


def _evaluated(graph: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Any:
    builder = Builder()
    # Programs hold complex numbers as pairs of real ones.
    pairs = [torch.view_as_real(x) if x.is_complex() else x for x in inputs]
    own = [x.to(storage(x.dtype).torch_dtype).contiguous() for x in pairs]
    states = ProgramStates(builder, {str(slot): state for slot, state in enumerate(own)})
    lowering = GraphLowering(builder, states, graph)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    before = [states.value(name) for name in states.own]
    kinds = {node: node.meta.get("val") for node in graph.graph.nodes}  # rules put those of pairs in their place
    lowering.lower(dict(zip(placeholders, before, strict=True)))
    (given_back,) = graph.graph.output_node().args
    nodes = [node for node in tree_leaves(given_back) if isinstance(node, fx.Node)]
    after = [lowering.value(node) for node in placeholders]
    values = [lowering.value(node) for node in nodes]
    given = StepInputs(
        states=list(states.initial().values()),
        data=(),
        schedule=torch.zeros(0),
        seed=0,
        step=0,
        device=torch.device("cpu"),
    )
    computed = evaluated(builder.nodes, {*values, *after}, given)
    for target, old, new in zip(pairs, before, after, strict=True):
        if new != old:
            target.copy_(computed[new])
    found = {node: _like(computed[value], kinds[node]) for value, node in zip(values, nodes, strict=True)}
    # In the form that the operator gives them: a list of one, too, and None for a gradient that nobody needs.
    return fx.node.map_arg(given_back, lambda node: found[node])


def _like(value: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
    """A copy with the dtype and the strides of PyTorch's result: these decide what is a view of it later."""
    numbers = torch.view_as_complex(value.contiguous()) if kind.is_complex() else value
    return torch.empty_strided(kind.shape, kind.stride(), dtype=kind.dtype).copy_(numbers)
