"""A traced step with all paths through it, and the steps of a job that are not all the same.

Every path is traced as a whole, from the same beginning, and the graph that holds them all computes each of them. Its
result is a tree: at every decision its condition, and what follows if it holds and if it does not. What paths have in
common, all up to the first decision in which they differ, becomes the same operators of the program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx
from torch.utils._pytree import tree_leaves

from roundlog.capture.captured import KernelCall, in_call_path, note_trails
from roundlog.capture.constants import written
from roundlog.capture.draws import in_path
from roundlog.capture.tracing.decisions import MOST_PATHS, Decisions, PathDecision

NUMBERS = 48
"""Most numbers of Python's that change from step to step and that one step gives to operators of tensors."""

MOST_STEPS = 16
"""Largest number of different steps that are traced: beyond it, a step counts as another one every time."""


@dataclass(frozen=True, slots=True)
class JobSteps:
    """Steps of a job, 0, 1, ...: which of several traced steps each is, and the numbers of Python that it computes
    with."""

    graphs: tuple[fx.GraphModule, ...]
    """Traced steps, the first one first."""
    graph_of: NDArray[np.int64]
    """i64[steps]: number of the graph that a step is."""
    numbers: NDArray[np.float64]
    """f64[steps, NUMBERS]: the values of the graph's columns; zeros where it uses fewer."""
    plain: tuple[tuple[int, fx.GraphModule], ...] = ()
    """(step, its graph with the numbers of that step themselves), to be held against the others."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A traced step. The graph's placeholders are the leaves of (states, columns, numbers, batch) in this order; its
    output is the result of `merged`, whose next states are in the order of `states`."""

    graph: fx.GraphModule
    states: dict[str, torch.Tensor]
    """Initial state: parameters, buffers, attributes, optimizer slots, in program order."""
    columns: tuple[str, ...]
    """Names of the schedule's columns."""
    schedule: torch.Tensor
    """f32[steps, columns]: what depends on the step alone (learning rates, bias corrections)."""
    trained: dict[str, torch.Tensor]
    """The user's own parameters that the optimizer changes, by name."""
    gradients: tuple[str, ...]
    """Names of those that have one on some path."""
    known: frozenset[str] = frozenset()
    """Names of the buffers that are constants of the graph."""


_AFTER = "roundlog_after"

Result = Any
"""Result of a graph: a `leaf`, or a `fork` of two results."""


@dataclass(frozen=True, slots=True)
class TracedPath:
    """One path through a step. The outputs of its graph are the loss, the next states, the gradients, what was drawn at
    random, and the conditions of its decisions."""

    graph: fx.GraphModule
    gradients: tuple[str, ...]
    """Names of the parameters that have a gradient."""
    decisions: Decisions
    calls: tuple[KernelCall, ...] = ()
    """Calls of PyTorch's kernels in its losses and gradients."""


def leaf(number: int, loss: Any, states: Sequence[Any], gradients: dict[str, Any], drawn: Sequence[Any]) -> Result:
    """Result of one path, with its number."""
    return {"path": number, "loss": loss, "states": list(states), "gradients": gradients, "drawn": list(drawn)}


def fork(condition: Any, held: Result, otherwise: Result) -> Result:
    """Result that is one of two: of the paths on which a condition held, and of the others."""
    return {"condition": condition, "held": held, "otherwise": otherwise}


def is_fork(result: Result) -> bool:
    return "condition" in result


def decisions_before(node: fx.Node) -> tuple[tuple[fx.Node, bool], ...]:
    """Conditions that a path has asked before a node, with their answers there."""
    return node.meta.get(_AFTER, ())  # type: ignore[no-any-return]


def explored(trace: Callable[[Decisions], TracedPath], *, allowed: bool) -> list[TracedPath]:
    """All paths of a step, in order. trace: follows one, from the beginning. allowed: whether the step may decide by
    its values. Raises what it raises."""
    paths: list[TracedPath] = []
    before: list[PathDecision] | None = []
    while before is not None:
        paths.append(trace(Decisions(before, allowed=allowed, is_last=len(paths) == MOST_PATHS)))
        before = paths[-1].decisions.following()
    return paths


def merged(paths: Sequence[TracedPath], states: int) -> fx.GraphModule:
    """One graph of all paths, with the placeholders of each, whose output is a result. states: their number."""
    if len(paths) == 1:
        only = paths[0].graph
        note_trails(only, [paths[0].calls])
        output = only.graph.output_node()
        output.args = (_result(0, paths[0], tree_leaves(output.args[0]), states),)
        return only
    graph = fx.Graph()
    held: dict[str, Any] = {}
    placeholders = [graph.node_copy(node) for node in paths[0].graph.graph.nodes if node.op == "placeholder"]
    outputs = [_copied(graph, held, path, number, placeholders) for number, path in enumerate(paths)]
    results = [_result(number, path, outputs[number], states) for number, path in enumerate(paths)]
    conditions = [_conditions(path, found) for path, found in zip(paths, outputs, strict=True)]
    graph.output(_tree(results, conditions, [path.decisions.taken for path in paths]))
    module = fx.GraphModule(held, graph)
    note_trails(module, [path.calls for path in paths])
    return module


def _copied(
    graph: fx.Graph, held: dict[str, Any], path: TracedPath, number: int, placeholders: Sequence[fx.Node]
) -> list[Any]:
    """Copies a path into a graph of all; gives its outputs there. held: gets what the graph's attributes stand for."""
    nodes, changing = list(path.graph.graph.nodes), written(path.graph.graph)
    outputs = tree_leaves(path.graph.graph.output_node().args[0])
    answers = dict(zip(_conditions(path, outputs), (decision.answer for decision in path.decisions.taken), strict=True))
    after: tuple[tuple[fx.Node, bool], ...] = ()
    values: dict[fx.Node, fx.Node] = {}
    for node, shared in zip((node for node in nodes if node.op == "placeholder"), placeholders, strict=True):
        values[node] = _copy_of(graph, shared) if node in changing else shared
    for node in nodes:
        if node.op == "get_attr":
            name = f"{node.target}_{number}"
            held[name] = getattr(path.graph, str(node.target))
            values[node] = graph.get_attr(name)
            values[node].meta = dict(node.meta)
        elif node.op == "call_function":
            values[node] = graph.node_copy(node, values.__getitem__)
            in_path(values[node], number)
            in_call_path(values[node], number)
            values[node].meta[_AFTER] = after
            if node in answers:
                after = (*after, (values[node], answers[node]))
    return [values[one] if isinstance(one, fx.Node) else one for one in outputs]


def _conditions(path: TracedPath, outputs: Sequence[Any]) -> Sequence[Any]:
    return outputs[len(outputs) - len(path.decisions.taken) :]


def _result(number: int, path: TracedPath, outputs: Sequence[Any], states: int) -> Result:
    ends = [1, 1 + states, 1 + states + len(path.gradients), len(outputs) - len(path.decisions.taken)]
    following, gradients, drawn = (outputs[a:b] for a, b in itertools.pairwise(ends))
    return leaf(number, outputs[0], following, dict(zip(path.gradients, gradients, strict=True)), drawn)


def _copy_of(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Copy of a node, into which a path may write."""
    copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def _tree(
    results: Sequence[Result], conditions: Sequence[Sequence[Any]], taken: Sequence[Sequence[PathDecision]]
) -> Result:
    """The result of paths that are in order, and have the same decisions up to some depth."""
    depth = 0
    while len(results) > 1 and len({decisions[depth].answer for decisions in taken}) == 1:
        depth += 1
    if len(results) == 1:
        return results[0]
    first = sum(1 for decisions in taken if decisions[depth].answer)
    parts = (slice(0, first), slice(first, None))
    held, otherwise = (_tree(results[part], conditions[part], taken[part]) for part in parts)
    return fork(conditions[0][depth], held, otherwise)
