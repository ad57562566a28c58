"""The optimizer's part of a traced step.

It depends on nothing that the user's code does but on the gradients and states that this leaves, and parameters of one
shape have one update; so have those of all shapes if it computes element by element, as Adam does. So it is traced
once, apart from the step, and copied into the step's graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_leaves

from roundlog.capture.decompositions import decompositions
from roundlog.capture.lines import SourceLines
from roundlog.capture.optimizers import Update, clip_factor

Function = Callable[[Sequence[torch.Tensor]], Iterable[torch.Tensor]]


class Updating:
    """Clipping and the optimizer's step, as nodes of a graph."""

    def __init__(
        self,
        groups: Sequence[Update],
        trained: Mapping[str, tuple[int, str]],
        optimizer: str,
        max_grad_norm: float | None,
    ) -> None:
        """trained: name of a parameter -> (its group, its state). optimizer: its name, for messages."""
        self._groups, self._trained = groups, trained
        self._optimizer, self._max_grad_norm = optimizer, max_grad_norm
        self._traced: dict[object, tuple[fx.GraphModule, bool]] = {}
        """Traced functions, and whether each computes element by element."""

    def append(
        self, module: fx.GraphModule, states: Sequence[str], columns: Sequence[str], gradients: Sequence[str]
    ) -> None:
        """Go on from the outputs of a traced step (see `TracedStep`), whose states lack the optimizer's step so far."""
        graph = module.graph
        output = next(iter(reversed(graph.nodes)))
        loss, *rest = tree_leaves(output.args[0])
        following: dict[str, fx.Node] = dict(zip(states, rest, strict=False))
        kept: dict[str, fx.Node] = dict(zip(gradients, rest[len(states) :], strict=False))
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        row = dict(zip(columns, placeholders[len(states) :], strict=False))
        with graph.inserting_before(output):
            factor: list[fx.Node] = []
            norm = self._max_grad_norm
            if norm is not None:
                factor = self._copy(
                    module, "clip", "clip_grad_norm_", lambda given: [clip_factor(given, norm)], list(kept.values())
                )
            for name, gradient in kept.items():
                number, parameter = self._trained[name]
                group, prefix = self._groups[number], f"slot/{name}/"
                slots = [slot for slot in states if slot.startswith(prefix)]
                scalars = list(group.columns())
                inputs = [following[parameter], gradient, *(following[slot] for slot in slots)]
                inputs += [*(row[f"{number}/{column}"] for column in scalars), *factor]
                names = [slot.removeprefix(prefix) for slot in slots]
                update = _update_of(group, names, scalars)
                results = self._copy(module, (number, *names), self._optimizer, update, inputs)
                following.update(zip((parameter, *slots), results, strict=True))
        output.args = ([loss, *following.values(), *rest[len(states) :]],)

    def _copy(
        self, module: fx.GraphModule, key: object, place: str, function: Function, inputs: list[fx.Node]
    ) -> list[fx.Node]:
        """Nodes of what a function makes of others."""
        like = [node.meta["val"] for node in inputs]
        of, elementwise = self._traced_for(key, place, function, like)
        copies = dict(zip((node for node in of.graph.nodes if node.op == "placeholder"), inputs, strict=True))
        for node in of.graph.nodes:
            if node.op == "get_attr":
                name = f"_of_update_{len(module._buffers)}"
                module.register_buffer(name, getattr(of, str(node.target)))
                copies[node] = module.graph.get_attr(name)
                copies[node].meta = dict(node.meta)
            elif node.op == "call_function":
                copies[node] = module.graph.node_copy(node, copies.__getitem__)
                if elementwise and node.meta["val"].ndim:
                    copies[node].meta["val"] = like[0]
        return [copies[node] for node in tree_leaves(next(iter(reversed(of.graph.nodes))).args[0])]

    def _traced_for(
        self, key: object, place: str, function: Function, like: Sequence[torch.Tensor]
    ) -> tuple[fx.GraphModule, bool]:
        kinds = tuple((tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in like)
        # Where there is one shape, and scalars beside it.
        scalars = (key, tuple(() if shape else dtype for shape, _, dtype in kinds))
        is_one = like[0].ndim > 0 and len({kind for kind in kinds if kind[0]}) == 1
        found = self._traced.get((key, kinds)) or (self._traced.get(scalars) if is_one else None)
        if found is None:
            graph = _trace(function, place, like)
            found = graph, is_one and _is_elementwise(graph)
            self._traced[scalars if found[1] else (key, kinds)] = found
        return found


def _is_elementwise(graph: fx.GraphModule) -> bool:
    """Whether a traced function computes element by element, in FP32."""
    return all(
        node.op in ("placeholder", "output")
        or (
            isinstance(node.target, torch._ops.OpOverload)
            and torch.Tag.pointwise in node.target.tags
            and node.meta["val"].dtype == torch.float32
        )
        for node in graph.graph.nodes
    )


def _update_of(group: Update, slots: Sequence[str], columns: Sequence[str]) -> Function:
    """The update of a group as a function of (parameter, gradient, slots, columns, and the factor of clipping)."""

    def update(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        parameter, gradient, *rest = given
        own, rest = dict(zip(slots, rest, strict=False)), rest[len(slots) :]
        row, factor = dict(zip(columns, rest, strict=False)), rest[len(columns) :]
        following, own = group.apply(parameter, gradient * factor[0] if factor else gradient, own, row)
        return [following, *(own[slot] for slot in slots)]

    return update


def _trace(function: Function, place: str, like: Sequence[torch.Tensor]) -> fx.GraphModule:
    lines = SourceLines()

    def traced(given: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad(), lines, lines.all_from(place):
            return list(function(given))

    with preserve_node_meta(), FakeTensorMode():
        given = [torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype) for tensor in like]
        graph = make_fx(traced, decompositions())(given)
    graph.graph.eliminate_dead_code()
    return graph
