"""Lowering of a job's traced steps to one program in the project's own operator set, with its states and schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from roundlog.capture.builder import Builder, ProgramStates, Value, from_constants
from roundlog.capture.captured import CallTrail, DrawnValue, ExecutionPath, OnPath, trails_of
from roundlog.capture.errors import CaptureError
from roundlog.capture.graph_lowering import GraphLowering
from roundlog.capture.tracing.traced_step import JobSteps, Result, TracedStep, is_fork
from roundlog.capture.variants import Columns, Comparison, LoweredStep, Variants
from roundlog.data import Field, widened
from roundlog.operators import StepInputs
from roundlog.program import Attribute, DType, Program, Stored, TensorType


@dataclass(frozen=True, slots=True)
class Lowered:
    """Steps as a program."""

    program: Program
    states: dict[str, torch.Tensor]
    """Initial state, in program order: large constants are behind those of the traced step."""
    schedule: torch.Tensor
    """f32[steps, columns], with those of numbers of Python's."""
    gradients: dict[str, int]
    """Parameter name -> the operator that gives its gradient."""
    paths: ExecutionPath
    trails: tuple[CallTrail, ...]


def lowered(
    traced: TracedStep, job_steps: JobSteps, fields: Mapping[str, Field], batch: Mapping[str, torch.Tensor], seed: int
) -> Lowered:
    """One program of all steps. job_steps: those of the job. fields: the dataset. batch: some rows of it. seed: that of
    random numbers. Raises CaptureError, naming the operator and the user's source line, for what has no counterpart in
    a program."""
    builder = Builder()
    columns = Columns(builder, traced.schedule)
    numbers = [columns.value(column) for column in job_steps.numbers.T]
    states = ProgramStates(builder, _own_states(traced, job_steps.graphs))
    size = next(iter(batch.values())).shape[0]
    steps = _StepLowering(builder, traced, states, numbers, fields, size)
    variants = Variants(builder, columns, job_steps.graph_of)
    several = len(job_steps.graphs) > 1
    each = [
        steps.lower(graph, variants.condition(number) if several else None)
        for number, graph in enumerate(job_steps.graphs)
    ]
    merged = [variants.one(found) for found in zip(*(one.results for one in each), strict=True)]
    for step, graph in job_steps.plain:
        plain = steps.lower(graph)
        given = StepInputs(
            states=_near(states.initial().values()),
            data=[widened(field) for field in batch.values()],
            schedule=columns.row(step),
            seed=seed,
            step=step,
            device=torch.device("cpu"),
        )
        Comparison(builder.nodes, columns, given).confirm(merged, each[job_steps.graph_of[step]], plain)
    stand = variants.representatives(merged, len(each))
    path = variants.path([one.path for one in each], stand)
    conditions = [Value(one) for one in path.conditions()]
    names, table = columns.kept([*merged, *conditions])
    count = 1 + len(states.own)
    gradients = merged[count:]
    program = builder.finish(
        merged[0],
        [*merged[1:count], *states.constants()],
        states=list(states.initial()),
        data=list(fields),
        schedule=[*traced.columns, *names],
        batch_size=size,
        keep=[*gradients, *conditions],
    )
    places = builder.places
    constants, fixed = from_constants(program.nodes), from_constants(builder.nodes)

    def placed(values: Mapping[OnPath, Value | None], there: Callable[[int], int]) -> dict[OnPath, int | None]:
        """Operators by what they stand for, without those that are needed for nothing. One constant stands for all that
        has its value at a step, also for numbers that are others at other steps: it is not told whose it is now."""
        found: dict[OnPath, int | None] = {}
        for one, value in values.items():
            place = None if value is None else Value(there(value))
            if place is None or (place != value and value in fixed):
                found[one] = None
            elif place in places:
                found[one] = places[place]
        return found

    return Lowered(
        program=program,
        states=states.initial(),
        schedule=torch.cat([traced.schedule, table], dim=1) if names else traced.schedule,
        gradients={name: places[value] for name, value in zip(traced.gradients, gradients, strict=True)},
        paths=path.placed(lambda value: places.get(Value(value))),
        trails=tuple(
            trail
            for graph, one, there in zip(job_steps.graphs, each, stand, strict=True)
            for trail in trails_of(graph, placed(one.on_paths, there), constants)
        ),
    )


def _own_states(traced: TracedStep, graphs: Sequence[fx.GraphModule]) -> dict[str, torch.Tensor]:
    """The states that a program has: not those which nothing reads of what a former step has left."""
    found = {name for name in traced.states if not name.startswith("attribute/")}
    for module in graphs:
        for node, name in zip(module.graph.nodes, traced.states, strict=False):
            if any(user.op != "output" for user in node.users):
                found.add(name)
    return {name: tensor for name, tensor in traced.states.items() if name in found}


def _near(states: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """States near the first ones."""
    generator = torch.Generator().manual_seed(1)
    states = list(states)
    spread = [torch.randn(state.shape, generator=generator) for state in states]
    moved = [(s + 0.05 * x).to(s.dtype) if s.is_floating_point() else s for s, x in zip(states, spread, strict=True)]
    return [state.contiguous() for state in moved]


@dataclass(frozen=True, slots=True)
class _StepLowering:
    """Lowering of traced steps of one job, each with all its paths."""

    builder: Builder
    traced: TracedStep
    states: ProgramStates
    numbers: list[Value]
    """Numbers of Python's, each a column of the schedule."""
    fields: Mapping[str, Field]
    batch_size: int

    @property
    def names(self) -> list[str]:
        """Names of all results."""
        states = (f"state/{name}" for name in self.states.own)
        return ["loss", *states, *(f"gradient/{name}" for name in self.traced.gradients)]

    def lower(self, module: fx.GraphModule, counts: Value | None = None) -> LoweredStep:
        """One traced step. counts: bool[], whether it is the one that a step is."""
        graph = GraphLowering(self.builder, self.states, module, counts)
        graph.lower(self._inputs([node for node in module.graph.nodes if node.op == "placeholder"]))
        parts: list[list[Value]] = []
        results, path = self._joined(graph, module.graph.output_node().args[0], {}, parts)
        if missing := [name for name in self.names if name not in results]:
            raise CaptureError(f"{missing[0].partition('/')[2]} has a gradient on no path that the step can take")
        return LoweredStep([results[name] for name in self.names], path, parts, graph.on_paths)

    def _inputs(self, placeholders: Sequence[fx.Node]) -> dict[fx.Node, Value]:
        """Values of a graph's placeholders: states, columns of the schedule, numbers, and the batch."""
        builder, count = self.builder, len(self.traced.states)
        states, rest = placeholders[:count], placeholders[count:]
        named = zip(states, self.traced.states, strict=True)
        found = {node: self.states.value(name) for node, name in named if name in self.states.own}
        columns, rest = rest[: len(self.traced.columns)], rest[len(self.traced.columns) :]
        for slot, node in enumerate(columns):
            found[node] = builder.source_op("schedule", TensorType((), DType.F32), slot=slot)
        found.update(zip(rest, self.numbers, strict=False))
        rest = rest[len(self.numbers) :]
        for slot, (node, column) in enumerate(zip(rest, self.fields.values(), strict=True)):
            attributes: dict[str, Attribute] = {"slot": slot}
            if column.kind.stored is not Stored.AS_READ:
                attributes["stored"] = column.kind.stored.name.lower()
            if column.kind.stride != column.kind.row.numel:
                attributes["stride"] = column.kind.stride
            kind = TensorType((self.batch_size, *column.kind.row.shape), column.kind.row.dtype)
            found[node] = builder.source_op("data", kind, **attributes)
        return found

    def _joined(
        self, graph: GraphLowering, result: Result, known: Mapping[Value, bool], parts: list[list[Value]]
    ) -> tuple[dict[str, Value], ExecutionPath]:
        """Loss, next states and gradients of a result, in this order, and its paths. What paths give is chosen, element
        by element, so that nothing of a path that is not taken reaches it. known: conditions that hold, or do not,
        where it counts. Appends the conditions and what each path gives to parts."""
        if not is_fork(result):
            return self._of_path(graph, result, parts)
        condition = self.builder.convert(graph.operand(result["condition"]), DType.BOOL)
        if condition in known:
            return self._joined(graph, result["held" if known[condition] else "otherwise"], known, parts)
        parts.append([condition])
        (held, of_held), (otherwise, of_otherwise) = (
            self._joined(graph, result[name], {**known, condition: truth}, parts)
            for name, truth in (("held", True), ("otherwise", False))
        )
        self.builder.source = "the choice between paths"
        # A gradient that only one path has is never read on the other.
        one, two = otherwise | held, held | otherwise
        names = [name for name in self.names if name in one]
        both = {name: self.builder.chosen(condition, one[name], two[name]) for name in names}
        return both, ExecutionPath.of(condition, of_held, of_otherwise)

    def _of_path(
        self, graph: GraphLowering, result: Result, parts: list[list[Value]]
    ) -> tuple[dict[str, Value], ExecutionPath]:
        """As `_joined`, of one path."""
        states = dict(zip(self.traced.states, result["states"], strict=True))
        found = {"loss": graph.value(result["loss"])}
        for name in self.states.own:
            if (following := graph.value(states[name])) is None:
                raise CaptureError(f"the next value of {name} is not computed")
            found[f"state/{name}"] = graph.on_paths[result["path"], name] = following
        gradients: dict[str, Any] = result["gradients"]
        own = [name for name in self.traced.gradients if name in gradients]
        found |= {f"gradient/{name}": graph.value(gradients[name]) for name in own}
        drawn = (DrawnValue(graph.value(node), graph.axes(node)) for node in result["drawn"])
        parts.append(list(found.values()))
        return found, ExecutionPath(drawn=tuple(drawn), gradients=frozenset(gradients))
