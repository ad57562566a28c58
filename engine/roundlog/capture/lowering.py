"""Lowering of a traced graph of ATen operators to a program in the project's own operator set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_leaves

from roundlog.capture.builder import MAX_LITERAL, Builder, Value, from_constants
from roundlog.capture.captured import Captured, DrawnValue, ExecutionPath, Origin, model_tensors
from roundlog.capture.constants import Constants
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError, UnknownValueError, told_from_refusals
from roundlog.capture.in_place_writes import Storages
from roundlog.capture.kernel_calls import CallPlace, calls_of, trails_of
from roundlog.capture.lines import source_of
from roundlog.capture.masked_rows import MaskedRows
from roundlog.capture.python_state import snapshot_of
from roundlog.capture.rules import AT_CAPTURE, RULES, VIEWS, Context, Rule
from roundlog.capture.rules.numbers import OF_NUMBERS, refuse_numbers
from roundlog.capture.rules.rule_table import storage
from roundlog.capture.rules.short_formats import applied, refuse_short
from roundlog.capture.task import STORED, Task
from roundlog.capture.tracing.eager import plain_model
from roundlog.capture.tracing.rehearsal import traced
from roundlog.capture.tracing.traced_step import Result, TracedStep, decisions_before, is_fork
from roundlog.capture.variants import Columns, Comparison, LoweredStep, Variants
from roundlog.data import materialized, widened
from roundlog.operators import StepInputs
from roundlog.program import Attribute, DType, Program, ProgramError, Stored, TensorType

_OF_A_FIELD = (
    "draw by torch.rand or torch.randn in the step, or draw before training, one number a row, and give the numbers as "
    "a field of the dataset"
)
_OF_A_SAMPLE = (
    "a gamma number (Beta, Dirichlet) has no gradient by its concentration here: draw it by sample() in place of "
    "rsample()"
)
_REWRITES = {
    **dict.fromkeys(("poisson", "binomial"), _OF_A_FIELD),
    **dict.fromkeys(("_standard_gamma_grad", "_dirichlet_grad"), _OF_A_SAMPLE),
}
"""Operators without a rule -> what to write instead."""

_OLDEST = "2.11"
"""PyTorch that the rules are made for. Jobs run with 2.10 as well, the last one that AArch64 has without CUDA."""


def capture(task: Task) -> Captured:
    """Turn a task into a program, its initial state and its schedule. The task's model, optimizer and loss stay as they
    are. Raises CaptureError, naming the operator and the user's source line, for what cannot be turned."""
    if TorchVersion(torch.__version__) < _OLDEST:
        raise CaptureError(
            f"PyTorch {torch.__version__} runs and audits jobs, but captures none: install PyTorch {_OLDEST} or newer, "
            "or capture on another machine"
        )
    task.check()
    tensors = model_tensors(plain_model(task.model))
    buffers = frozenset(name for name in tensors if not name.startswith("parameter/"))
    # Programs have no states of other dtypes.
    known = frozenset(name for name in buffers if tensors[name].dtype not in STORED)
    try:
        return _captured(task, known, decides=False)
    except UnknownValueError:
        pass
    # Values that are known decide nothing; what is unknown even so is followed, or named.
    return _captured(task, buffers, decides=True)


def _captured(task: Task, known: frozenset[str], *, decides: bool) -> Captured:
    """The task with these buffers as constants, as far as no step changes them. decides: whether the step may decide by
    values that it computes."""
    with snapshot_of(task) as snapshot:
        trace, attributes = traced(task, snapshot, known, decides=decides)
        lowering = Lowering(task, trace)
        try:
            program, places = lowering.run(), lowering.builder.places
        except CaptureError as error:
            raise UnknownValueError(str(error)) from error
    states = {name: tensor.detach().clone().contiguous() for name, tensor in lowering.states.items()}
    own = {**model_tensors(plain_model(task.model)), **attributes}
    origin = Origin(
        tensors={name: tensor for name, tensor in own.items() if name in states},
        trained=trace.trained,
        gradients={name: places[value] for name, value in zip(trace.gradients, lowering.gradients, strict=True)},
        paths=lowering.paths.placed(lambda value: places.get(Value(value))),
        known=trace.known,
        trails=tuple(
            trail
            for graph, values in lowering.trails
            for trail in trails_of(graph, _placed(values, places), from_constants(program.nodes))
        ),
    )
    return Captured(program=program, states=states, schedule=lowering.schedule, origin=origin)


def _placed(values: Mapping[CallPlace, Value | None], places: Mapping[Value, int]) -> dict[CallPlace, int | None]:
    """Operators of the program by the results of calls; None for what is known at capture."""
    return {call: value and places[value] for call, value in values.items() if value is None or value in places}


class Lowering(Context):
    """Lowering of one traced step."""

    def __init__(self, task: Task, traced: TracedStep) -> None:
        super().__init__(Builder())
        self.task = task
        self.traced = traced
        self.values: dict[fx.Node, Any] = {}
        """Meaning of each graph node: a value, a tuple of them, or, where it was computed at capture, the tensor
        itself, until an operator of the program needs it."""
        self.constants = Constants(traced.graph, traced.graph.graph)
        self.states: dict[str, torch.Tensor] = {}
        self.gradients: list[Value] = []
        self.paths: ExecutionPath = ExecutionPath()
        self.trails: list[tuple[fx.GraphModule, dict[CallPlace, Value | None]]] = []
        """Traced steps, and the values of the results of the kernels that they call; None for what is known."""
        self._slots: dict[str, int] = {}
        """Slots of the states that the step reads or keeps, by name."""
        self._bound: frozenset[str] = frozenset()
        self._constant_states: dict[str, torch.Tensor] = {}
        """Constants too large for a literal: states that no step changes."""
        self._known_states: dict[object, Value] = {}
        self._calls: dict[CallPlace, Value | None] = {}
        """Results of PyTorch's kernels, in the step that is being lowered."""
        self.schedule = traced.schedule
        """f32[steps, columns], with those of numbers of Python's."""
        self.module = traced.graph
        """The traced step that is being lowered."""
        self._numbers: list[Value] = []
        self._decisions: tuple[tuple[fx.Node, bool], ...] = ()
        self._counts: Value | None = None
        """bool[]: whether it is a step that is this one, where steps differ."""
        self.storages = Storages(self, self.values)
        self.masked_rows = MaskedRows(self, self.value)

    def run(self) -> Program:
        course = self.traced.course
        assert course is not None
        columns = Columns(self.builder, self.traced.schedule)
        self._numbers = [columns.value(numbers) for numbers in course.numbers.T]
        self._bound = self._bound_states(course.graphs)
        variants = Variants(self.builder, columns, course.graph_of)
        several = len(course.graphs) > 1
        lowered = [
            self._variant(graph, variants.condition(number) if several else None)
            for number, graph in enumerate(course.graphs)
        ]
        merged = [variants.one(found) for found in zip(*(one.results for one in lowered), strict=True)]
        for step, graph in course.plain:
            plain = self._variant(graph)
            comparison = Comparison(self.builder.nodes, columns, self._some_inputs(columns.row(step), step))
            comparison.confirm(merged, lowered[course.graph_of[step]], plain)
        stand = variants.standing(merged, len(lowered))
        self.paths = variants.path([one.path for one in lowered], stand)
        self.trails = [
            (graph, {call: None if value is None else Value(there(value)) for call, value in one.calls.items()})
            for graph, one, there in zip(course.graphs, lowered, stand, strict=True)
        ]
        count, conditions = 1 + len(self._slots), [Value(one) for one in self.paths.conditions()]
        self.gradients = merged[count:]
        self.states = {**{name: self.traced.states[name] for name in self._slots}, **self._constant_states}
        names, table = columns.kept([*merged, *conditions])
        self.schedule = torch.cat([self.traced.schedule, table], dim=1) if names else self.traced.schedule
        return self.builder.finish(
            merged[0],
            [*merged[1:count], *self._known_states.values()],
            states=list(self.states),
            data=list(self.task.dataset),
            schedule=[*self.traced.columns, *names],
            batch_size=self.task.batch_size,
            keep=[*self.gradients, *conditions],
        )

    def _variant(self, module: fx.GraphModule, counts: Value | None = None) -> LoweredStep:
        """One traced step. counts: bool[], whether it is the one that a step is."""
        self.module, self.values = module, {}
        self.constants = Constants(module, module.graph)
        self.storages = Storages(self, self.values)
        self.masked_rows = MaskedRows(self, self.value)
        self.builder.begin()
        self._calls = {}
        self._counts = self.builder.counts = counts
        self._decisions = ()
        self._bind_placeholders([node for node in module.graph.nodes if node.op == "placeholder"])
        self.lowered(module.graph)
        parts: list[list[Value]] = []
        results, path = self._joined(module.graph.output_node().args[0], {}, parts)
        if missing := [name for name in self._names() if name not in results]:
            raise CaptureError(f"{missing[0].partition('/')[2]} has a gradient on no path that the step can take")
        return LoweredStep([results[name] for name in self._names()], path, parts, self._calls)

    def _bound_states(self, graphs: Sequence[fx.GraphModule]) -> frozenset[str]:
        """Names of the states that a program has: not of those which nothing reads of what a former step has left."""
        found = {name for name in self.traced.states if not name.startswith("attribute/")}
        for module in graphs:
            for node, name in zip(module.graph.nodes, self.traced.states, strict=False):
                if any(user.op != "output" for user in node.users):
                    found.add(name)
        return frozenset(found)

    def _some_inputs(self, row: torch.Tensor, step: int) -> StepInputs:
        """Inputs of a step, with states near the first ones. row: f32[columns] of the schedule."""
        generator = torch.Generator().manual_seed(1)
        states = [*(self.traced.states[name] for name in self._slots), *self._constant_states.values()]
        spread = [torch.randn(state.shape, generator=generator) for state in states]
        moved = [
            (s + 0.05 * x).to(s.dtype) if s.is_floating_point() else s for s, x in zip(states, spread, strict=True)
        ]
        return StepInputs(
            states=[state.contiguous() for state in moved],
            data=[widened(field) for field in self.task.batch(torch.arange(self.task.batch_size)).values()],
            schedule=row,
            seed=self.task.seed,
            step=step,
            device=torch.device("cpu"),
        )

    def _joined(
        self, result: Result, known: Mapping[Value, bool], parts: list[list[Value]]
    ) -> tuple[dict[str, Value], ExecutionPath]:
        """Loss, next states and gradients of a result, in this order, and its paths. What paths give is chosen, element
        by element, so that nothing of a path that is not taken reaches it. known: conditions that hold, or do not,
        where it counts. Appends the conditions and what each path gives to parts."""
        if not is_fork(result):
            states = dict(zip(self.traced.states, result["states"], strict=True))
            found = {"loss": self.value(result["loss"])}
            for name in self._slots:
                if (following := self.value(states[name])) is None:
                    raise CaptureError(f"the next value of {name} is not computed")
                found[f"state/{name}"] = following
            gradients: dict[str, Any] = result["gradients"]
            own = [name for name in self.traced.gradients if name in gradients]
            found |= {f"gradient/{name}": self.value(gradients[name]) for name in own}
            drawn = (DrawnValue(self.value(node), self.masked_rows.axes(node)) for node in result["drawn"])
            parts.append(list(found.values()))
            return found, ExecutionPath(drawn=tuple(drawn), gradients=frozenset(gradients))
        condition = self.builder.convert(self._operand(result["condition"]), DType.BOOL)
        if condition in known:
            return self._joined(result["held" if known[condition] else "otherwise"], known, parts)
        parts.append([condition])
        (held, of_held), (otherwise, of_otherwise) = (
            self._joined(result[name], {**known, condition: truth}, parts)
            for name, truth in (("held", True), ("otherwise", False))
        )
        self.builder.source = "the choice between paths"
        # A gradient that only one path has is never read on the other.
        one, two = otherwise | held, held | otherwise
        names = [name for name in self._names() if name in one]
        both = {name: self.builder.chosen(condition, one[name], two[name]) for name in names}
        return both, ExecutionPath.of(condition, of_held, of_otherwise)

    def _names(self) -> list[str]:
        """Names of all results."""
        states = (f"state/{name}" for name in self._slots)
        return ["loss", *states, *(f"gradient/{name}" for name in self.traced.gradients)]

    def lowered(self, graph: fx.Graph) -> list[Any]:
        """Lowers the operators of a graph whose placeholders have values. Gives the nodes of its outputs."""
        outputs: Any = None
        for node in graph.nodes:
            self.builder.source = source_of(node)
            self._follow_path(decisions_before(node))
            if node.op == "get_attr":
                held = getattr(self.module, str(node.target))
                if not isinstance(held, torch.Tensor):  # a generator: a program has its own random numbers
                    self.values[node] = None
                else:
                    self.values[node] = held.detach() if node in self.constants else self.literal(held.detach())
            elif node.op == "call_function":
                with told_from_refusals(str(node.target), self._where()):
                    self._call(node)
                value = self.values[node]
                if isinstance(value, Value | torch.Tensor):
                    stands: Value | None = None if isinstance(value, torch.Tensor) else value
                    self._calls.update(dict.fromkeys(calls_of(node), stands))
            elif node.op == "output":
                outputs = node.args[0]
        return tree_leaves(outputs)

    def _follow_path(self, decisions: tuple[tuple[fx.Node, bool], ...]) -> None:
        """Has the builder know when what follows counts: conditions and their answers on the path that it is on."""
        if decisions is self._decisions:
            return
        self._decisions, self.builder.counts = decisions, self._counts
        for node, answer in decisions:
            condition = self.builder.convert(self._operand(node), DType.BOOL)
            holds = condition if answer else self.builder.op("logical_not", condition)
            before: Value | None = self.builder.counts
            self.builder.counts = holds if before is None else self.builder.op("logical_and", before, holds)

    def _bind_placeholders(self, placeholders: list[fx.Node]) -> None:
        states, rest = placeholders[: len(self.traced.states)], placeholders[len(self.traced.states) :]
        for node, (name, tensor) in zip(states, self.traced.states.items(), strict=True):
            if name in self._bound:
                self.bind_state(node, name, TensorType(tuple(tensor.shape), DType.of(tensor.dtype)))
        columns, rest = rest[: len(self.traced.columns)], rest[len(self.traced.columns) :]
        for slot, node in enumerate(columns):
            self.values[node] = self.builder.source_op("schedule", TensorType((), DType.F32), slot=slot)
        self.values.update(zip(rest, self._numbers, strict=False))
        rest = rest[len(self._numbers) :]
        kinds: list[tuple[str, TensorType, dict[str, Attribute]]] = []
        for slot, column in enumerate(self.task.fields().values()):
            attributes: dict[str, Attribute] = {"slot": slot}
            if column.kind.stored is not Stored.AS_READ:
                attributes["stored"] = column.kind.stored.name.lower()
            if column.kind.stride != column.kind.row.numel:
                attributes["stride"] = column.kind.stride
            shape = (self.task.batch_size, *column.kind.row.shape)
            kinds.append(("data", TensorType(shape, column.kind.row.dtype), attributes))
        for node, (op, kind, attributes) in zip(rest, kinds, strict=True):
            self.values[node] = self.builder.source_op(op, kind, **attributes)

    def bind_state(self, node: fx.Node, name: str, kind: TensorType) -> None:
        """Has a placeholder stand for a state: the next one, unless it has a slot already."""
        if name not in self._slots:
            self._slots[name] = len(self._slots)
        self.values[node] = self.builder.source_op("state", kind, slot=self._slots[name])

    @property
    def constant_states(self) -> list[torch.Tensor]:
        """States behind those that are bound: constants that are too large for a literal."""
        return list(self._constant_states.values())

    def value(self, node: fx.Node) -> Any:
        """Values of the program that a graph node stands for."""
        value = self.values[node]
        if isinstance(value, torch.Tensor):
            value = self.values[node] = self.literal(value)
        return value

    def _operand(self, node: fx.Node) -> Any:
        """Values as `value` gives them, and of numbers of chosen elements, too."""
        return self.masked_rows.number(node) if self.masked_rows.counts(node) else self.value(node)

    def literal(self, tensor: torch.Tensor) -> Value:
        """A tensor that is known at capture: written into the program, or, if it is large, a state that stays."""
        if tensor.is_meta:
            raise CaptureError(
                "the step uses a tensor on the meta device, where tensors have no numbers: load its values first"
            )
        tensor = materialized(tensor)
        if tensor.dtype == torch.float64:
            tensor = tensor.to(torch.float32)
        elif not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
            tensor = tensor.to(torch.int64)
        if tensor.numel() <= MAX_LITERAL:
            return self.builder.literal(tensor)
        tensor = tensor.cpu().contiguous()
        key = (tensor.shape, tensor.dtype, tensor.view(torch.uint8).numpy().tobytes())
        if key not in self._known_states:
            slot = len(self._slots) + len(self._constant_states)
            kind = TensorType(tuple(tensor.shape), DType.of(tensor.dtype))
            self._known_states[key] = self.builder.source_op("state", kind, slot=slot)
            self._constant_states[f"constant/{len(self._constant_states)}"] = tensor
        return self._known_states[key]

    def known(self, node: Any) -> torch.Tensor | None:
        if not isinstance(node, fx.Node) or node not in self.constants:
            return None
        value = self.constants.evaluate(node)
        return value if isinstance(value, torch.Tensor) else None

    def _call(self, node: fx.Node) -> None:
        if getattr(node.target, "__name__", "") == "getitem":
            container, position = node.args
            self.values[node] = self.values[container][position]  # type: ignore[index]
            self.masked_rows.take_item(node, container, position)  # type: ignore[arg-type]
            return
        if self.masked_rows.counts(node):
            self.values[node] = None  # computed where it is used
            return
        if node.target in OF_NUMBERS:
            args: Any = fx.node.map_arg(node.args, self._operand)
            self.values[node] = OF_NUMBERS[node.target](self, *args)
            return
        if not hasattr(node.target, "_schema"):
            name = getattr(node.target, "__name__", "an operation")
            raise CaptureError(
                f"the step computes {name} of a number that it takes out of a tensor (.item()){self._where()}: compute "
                "with the tensor itself"
            )
        if node not in self.constants:
            self._lower(node)
            return
        # An operator on a computed constant is computed, too; others are only if no rule knows them, or if many
        # operators would be needed.
        if _takes_many(node) or any(isinstance(self.values[source], torch.Tensor) for source in node.all_input_nodes):
            self.values[node] = self.constants.evaluate(node)
            return
        try:
            self._lower(node)
        except CaptureError:
            self.values[node] = self.constants.evaluate(node)

    def _lower(self, node: fx.Node) -> None:
        name = str(node.target).removeprefix("aten.")
        base, _, overload = name.partition(".")
        in_place = base.endswith("_") and not base.startswith("_")
        names = [name, base]
        if in_place:
            names += [f"{base[:-1]}.{overload}", base[:-1]]
        if any(argument.is_out for argument in getattr(getattr(node.target, "_schema", None), "arguments", ())):
            raise CaptureError(
                f"the operator aten.{name}{self._where()} writes into tensors that it is given (out=): take what it "
                "returns without them"
            )
        # Changing the shape of a tensor in place writes nothing; what follows in the graph refers to the result.
        is_view = any(known in VIEWS for known in names)
        if in_place and is_view and self._has_views(node.args[0]):
            # PyTorch traces the gradients of such views in the new shape, which is wrong.
            raise CaptureError(
                f"the operator aten.{name}{self._where()} changes the shape of a tensor in place, of which there are "
                f"views: use aten.{base[:-1]}"
            )
        rule = next((RULES[known] for known in names if known in RULES), None)
        if rule is None and not self.masked_rows.concerns(node):
            raise CaptureError(
                f"the operator aten.{name}{self._where()} has no counterpart in this program's operator set: "
                f"{_REWRITES.get(base, 'write this line with the operators that docs/operators.md lists')}"
            )
        result = self._apply(node, name, rule)
        if in_place and not is_view:
            written = node.args[0]
            assert isinstance(written, fx.Node)
            result = self._like(written, result)
            self.storages.write(written, result)
            self.storages.add_view(node, written, lambda: self.values[written])
        elif is_view:
            viewed = node.args[0]
            assert isinstance(viewed, fx.Node)
            self.storages.add_view(node, viewed, lambda: self._apply(node, name, rule))
        self._check_type(node, result)
        self.values[node] = result

    def _has_views(self, node: Any) -> bool:
        """Whether views of what a graph node stands for have been lowered by now."""
        return any(user in self.values and self.storages.is_view(user) for user in node.users)

    def _apply(self, node: fx.Node, name: str, rule: Rule | None) -> Any:
        """A rule's result on the current values of the node's arguments."""
        before = getattr(self, "node", node)
        self.node = node
        self.builder.draw = draw_of(node)
        try:
            if rule is None or self.masked_rows.concerns(node):
                refuse_short(node)
                return self.masked_rows.lowered(node, name, rule)
            # Random numbers are the program's own.
            options = {key: value for key, value in node.kwargs.items() if key != "generator"}
            refuse_numbers(node, name.partition(".")[0])
            return applied(self, name, rule, options, self.value)
        except (CaptureError, ProgramError) as error:
            raise CaptureError(f"the operator aten.{name}{self._where()} cannot be lowered: {error}") from None
        except TypeError as error:
            raise CaptureError(
                f"the operator aten.{name}{self._where()} is used with arguments that are not supported: {error}"
            ) from None
        finally:
            # A rule that writes in place has views computed again in the middle of itself.
            self.node = before

    def _like(self, target: fx.Node, value: Value) -> Value:
        """An in-place result has the shape and dtype of its target."""
        kind = self.builder.type(self.value(target))
        return self.builder.expand(self.builder.convert(value, kind.dtype), kind.shape)

    def rebind(self, target: fx.Node, value: Value) -> None:
        self.storages.write(target, self._like(target, value))

    def _where(self) -> str:
        return f" (at {self.builder.source})" if self.builder.source else ""

    def _check_type(self, node: fx.Node, result: Any) -> None:
        """Hold the lowered type against the traced one: a rule that disagrees is a defect, caught here."""
        traced = node.meta.get("val")
        if not isinstance(traced, torch.Tensor) or not isinstance(result, Value):
            return
        if traced.dtype == torch.float64:
            raise CaptureError(
                f"the operator {node.target}{self._where()} computes in float64: programs have none, use .float()"
            )
        kind = self.builder.type(result)
        expected = TensorType(tuple(int(size) for size in traced.shape), storage(traced.dtype))
        if kind != expected:
            raise CaptureError(f"the operator {node.target}{self._where()} was lowered to {kind}, traced as {expected}")


def _takes_many(node: fx.Node) -> bool:
    """Whether a constant is better computed at capture."""
    name = str(node.target).removeprefix("aten.")
    if name in AT_CAPTURE or name.partition(".")[0] in AT_CAPTURE:
        return True
    before, after = ([n.meta.get("val") for n in nodes] for nodes in (node.all_input_nodes, [node]))
    return name.startswith("_to_copy.") and any(
        isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.is_floating_point() > y.is_floating_point()
        for x in before
        for y in after
    )
