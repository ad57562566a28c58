"""Lowering of a traced step to a program in the project's own operator set, with its states and schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx
from torch.utils._pytree import tree_leaves

from roundlog.capture.builder import Builder, ProgramStates, Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.graph_lowering import GraphLowering
from roundlog.capture.kernel_calls import CallTrail, KernelCall, Result, trail_of
from roundlog.data import Field
from roundlog.program import Attribute, DType, Program, Stored, TensorType


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A traced step. The graph's placeholders are the leaves of (states, columns, numbers, batch) in this order; its
    outputs are the loss, the next states, the gradients and what was drawn at random."""

    graph: fx.GraphModule
    states: dict[str, torch.Tensor]
    """Initial state: parameters, buffers, attributes, optimizer slots, in program order."""
    columns: tuple[str, ...]
    """Names of the schedule's columns."""
    schedule: torch.Tensor
    """f32[steps, columns]: what depends on the step alone (learning rates, bias corrections)."""
    numbers: NDArray[np.float64]
    """f64[steps, numbers]: numbers of the task that change from step to step."""
    trained: tuple[str, ...]
    """Names of the parameters that the optimizer changes."""
    gradients: tuple[str, ...]
    """Names of those that have one."""
    known: frozenset[str]
    """Names of the buffers that are constants of the graph."""
    calls: tuple[KernelCall, ...]
    """Calls of PyTorch's kernels in its losses and gradients."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A step as a program."""

    program: Program
    states: dict[str, torch.Tensor]
    """Initial state, in program order: large constants are behind those of the traced step."""
    schedule: torch.Tensor
    """f32[steps, columns], with those of the task's numbers."""
    gradients: dict[str, int]
    """Parameter name -> the operator that gives its gradient."""
    drawn: tuple[int | None, ...]
    trail: CallTrail


def lowered(traced: TracedStep, fields: Mapping[str, Field], batch_size: int) -> Lowered:
    """The program of a step. fields: the dataset. Raises CaptureError, naming the operator and the user's source line,
    for what has no counterpart in a program."""
    builder = Builder()
    numbers, columns = _numbers(builder, traced)
    builder.constant(0.0, DType.F32)  # the first operator of all programs without numbers
    states = ProgramStates(builder, _own_states(traced))
    graph = GraphLowering(builder, states, traced.graph)
    graph.lower(_inputs(builder, states, traced, numbers, fields, batch_size))
    outputs = tree_leaves(traced.graph.graph.output_node().args[0])
    loss, following, rest = outputs[0], outputs[1 : 1 + len(traced.states)], outputs[1 + len(traced.states) :]
    gradients = [graph.value(node) for node in rest[: len(traced.gradients)]]
    drawn = [graph.value(node) for node in rest[len(traced.gradients) :]]
    stores: list[Value] = []
    for name, node in zip(traced.states, following, strict=True):
        if name in states.own:
            if (value := graph.value(node)) is None:
                raise CaptureError(f"the next value of {name} is not computed")
            stores.append(value)
            graph.results[name] = value
    names = [f"number/{number}" for number in range(columns.shape[1])]
    program = builder.finish(
        graph.value(loss),
        [*stores, *states.constants()],
        states=list(states.initial()),
        data=list(fields),
        schedule=[*traced.columns, *names],
        batch_size=batch_size,
        keep=gradients,
    )
    places = builder.places
    values: dict[Result, int | None] = {}
    for one, result in graph.results.items():
        if result is None or result in places:  # what is needed for nothing has no place
            values[one] = None if result is None else places[result]
    return Lowered(
        program=program,
        states=states.initial(),
        schedule=torch.cat([traced.schedule, columns], dim=1) if names else traced.schedule,
        gradients={name: places[value] for name, value in zip(traced.gradients, gradients, strict=True)},
        drawn=tuple(places.get(value) for value in drawn),
        trail=trail_of(traced.calls, values),
    )


def _numbers(builder: Builder, traced: TracedStep) -> tuple[list[Value], torch.Tensor]:
    """Values of the task's numbers, and f32[steps, columns] of those that change. Raises CaptureError for a number that
    FP32 does not hold."""
    with np.errstate(over="ignore"):
        table = traced.numbers.astype(np.float32)
    for step, number in np.argwhere(~np.isfinite(table)):
        raise CaptureError(
            f"at step {step} a number of the task is {traced.numbers[step, number]}, and a schedule has finite numbers "
            "of FP32: keep it within them"
        )
    values: list[Value] = []
    kept: list[NDArray[np.float32]] = []
    for column in table.T:
        if (column.view(np.uint32) == column.view(np.uint32)[0]).all():
            values.append(builder.constant(float(column[0]), DType.F32))
            continue
        slot = len(traced.columns) + len(kept)
        values.append(builder.source_op("schedule", TensorType((), DType.F32), slot=slot))
        kept.append(column)
    return values, torch.from_numpy(np.stack(kept, axis=1)) if kept else torch.zeros(len(table), 0)


def _own_states(traced: TracedStep) -> dict[str, torch.Tensor]:
    """The states that a program has: not those which nothing reads of what a former step has left."""
    found = {name for name in traced.states if not name.startswith("attribute/")}
    for node, name in zip(traced.graph.graph.nodes, traced.states, strict=False):
        if any(user.op != "output" for user in node.users):
            found.add(name)
    return {name: tensor for name, tensor in traced.states.items() if name in found}


def _inputs(
    builder: Builder,
    states: ProgramStates,
    traced: TracedStep,
    numbers: Sequence[Value],
    fields: Mapping[str, Field],
    batch_size: int,
) -> dict[fx.Node, Value]:
    """Values of a graph's placeholders: states, columns of the schedule, numbers, and the batch."""
    placeholders = [node for node in traced.graph.graph.nodes if node.op == "placeholder"]
    named, rest = placeholders[: len(traced.states)], placeholders[len(traced.states) :]
    pairs = zip(named, traced.states, strict=True)
    found = {node: states.value(name) for node, name in pairs if name in states.own}
    columns, rest = rest[: len(traced.columns)], rest[len(traced.columns) :]
    for slot, node in enumerate(columns):
        found[node] = builder.source_op("schedule", TensorType((), DType.F32), slot=slot)
    found.update(zip(rest, numbers, strict=False))
    for slot, (node, column) in enumerate(zip(rest[len(numbers) :], fields.values(), strict=True)):
        attributes: dict[str, Attribute] = {"slot": slot}
        if column.kind.stored is not Stored.AS_READ:
            attributes["stored"] = column.kind.stored.name.lower()
        if column.kind.stride != column.kind.row.numel:
            attributes["stride"] = column.kind.stride
        kind = TensorType((batch_size, *column.kind.row.shape), column.kind.row.dtype)
        found[node] = builder.source_op("data", kind, **attributes)
    return found
