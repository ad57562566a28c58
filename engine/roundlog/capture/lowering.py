"""Lowering of a traced graph of ATen operators to a program in the project's own operator set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_leaves

from roundlog.capture.builder import MAX_LITERAL, Builder, Value
from roundlog.capture.constants import Constants
from roundlog.capture.defects import told_from_refusals
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError, UnknownValueError
from roundlog.capture.evaluation import evaluated
from roundlog.capture.lines import source_of
from roundlog.capture.model_tensors import model_tensors
from roundlog.capture.rules import AT_CAPTURE, RULES, VIEWS, Context, Rule
from roundlog.capture.rules.table import storage
from roundlog.capture.storage import Storages
from roundlog.capture.task import STORED, Task
from roundlog.capture.tracing.eager import plain_model
from roundlog.capture.tracing.rehearsal import surroundings, traced
from roundlog.capture.tracing.trace import TracedStep
from roundlog.capture.variants import Columns, Variants
from roundlog.data import materialized, widened
from roundlog.execution.stops import StoppedError
from roundlog.operators import StepInputs
from roundlog.program import Attribute, DType, Program, ProgramError, Stored, TensorType

_OF_A_FIELD = (
    "draw by torch.rand or torch.randn in the step, or draw before training, one number a row, and give the numbers as "
    "a field of the dataset"
)
_REWRITES = dict.fromkeys(("_sample_dirichlet", "_standard_gamma", "poisson", "binomial"), _OF_A_FIELD)
"""Operators without a rule -> what to write instead."""

_OLDEST = "2.11"
"""PyTorch that the rules are made for. Jobs run with 2.10 as well, the last one that AArch64 has without CUDA."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A task as data."""

    program: Program
    states: dict[str, torch.Tensor]
    """Initial state: name -> tensor, in program order."""
    schedule: torch.Tensor
    """f32[steps, columns]: what depends on the step alone (learning rates, bias corrections)."""
    origin: Origin


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a program's values in the user's own step."""

    tensors: dict[str, torch.Tensor]
    """State name -> the user's own tensor. Optimizer slots and large constants have none."""
    trained: dict[str, torch.Tensor]
    """Parameter name -> the user's own, of those that the optimizer changes."""
    gradients: dict[str, int]
    """Parameter name -> the operator that gives its gradient, before clipping. Parameters without one are missing."""
    draws: tuple[int | None, ...]
    """The operators that give what was drawn at random, in order; None where the program has no use for it."""
    known: frozenset[str] = frozenset()
    """Names of the states whose first values are constants of the program. No step changes them."""


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
        return _captured(task, known)
    except UnknownValueError:
        if known == buffers:
            raise
    return _captured(task, buffers)  # which names what is unknown even so


def _captured(task: Task, known: frozenset[str]) -> Captured:
    """The task with these buffers as constants, as far as no step changes them."""
    with surroundings(task) as around:
        trace, attributes = traced(task, around, known)
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
        draws=tuple(places.get(value) for value in lowering.draws),
        known=trace.known,
    )
    return Captured(program=program, states=states, schedule=lowering.schedule, origin=origin)


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
        self.draws: list[Value] = []
        self._slots: dict[str, int] = {}
        """Slots of the states that the step reads or keeps, by name."""
        self._bound: frozenset[str] = frozenset()
        self._constant_states: dict[str, torch.Tensor] = {}
        """Constants too large for a literal: states that no step changes."""
        self._known_states: dict[object, Value] = {}
        self.schedule = traced.schedule
        """f32[steps, columns], with those of numbers of Python's."""
        self.module = traced.graph
        """The traced step that is being lowered."""
        self._numbers: list[Value] = []
        self.storages = Storages(self, self.values)

    def run(self) -> Program:
        course = self.traced.course
        assert course is not None
        columns = Columns(self.builder, self.traced.schedule)
        self._numbers = [columns.value(numbers) for numbers in course.numbers.T]
        self._bound = self._bound_states(course.graphs)
        results = [self._variant(graph) for graph in course.graphs]
        if any(len(found) != len(results[0]) for found in results):
            raise CaptureError(
                "the step draws random numbers at some steps that it does not draw at others: draw them at every step, "
                "and choose by a number of Python (noise * (step > 10))"
            )
        variants = Variants(self.builder, columns, course.graph_of)
        merged = [variants.one(found) for found in zip(*results, strict=True)]
        for step, graph in course.plain:
            self._hold_against(columns, step, merged, graph)
        count, last = 1 + len(self._slots), 1 + len(self._slots) + len(self.traced.gradients)
        self.gradients, self.draws = merged[count:last], merged[last:]
        self.states = {**{name: self.traced.states[name] for name in self._slots}, **self._constant_states}
        names, table = columns.kept(merged)
        self.schedule = torch.cat([self.traced.schedule, table], dim=1) if names else self.traced.schedule
        return self.builder.finish(
            merged[0],
            [*merged[1:count], *self._known_states.values()],
            states=list(self.states),
            data=list(self.task.dataset),
            schedule=[*self.traced.columns, *names],
            batch_size=self.task.batch_size,
            keep=self.gradients,
        )

    def _variant(self, module: fx.GraphModule) -> list[Value]:
        """The loss, the next states, the gradients and the draws of one traced step."""
        self.module, self.values = module, {}
        self.constants = Constants(module, module.graph)
        self.storages = Storages(self, self.values)
        self.builder.begin()
        self._bind_placeholders([node for node in module.graph.nodes if node.op == "placeholder"])
        loss, *rest = self.lowered(module.graph)
        count = len(self.traced.states)
        following = dict(zip(self.traced.states, rest[:count], strict=True))
        for name in self._slots:
            if self.values[following[name]] is None:
                raise CaptureError(f"the next value of {name} is not computed")
        return [self.value(node) for node in (loss, *(following[name] for name in self._slots), *rest[count:])]

    def _bound_states(self, graphs: Sequence[fx.GraphModule]) -> frozenset[str]:
        """Names of the states that a program has: not of those which nothing reads of what a former step has left."""
        found = {name for name in self.traced.states if not name.startswith("attribute/")}
        for module in graphs:
            for node, name in zip(module.graph.nodes, self.traced.states, strict=False):
                if any(user.op != "output" for user in node.users):
                    found.add(name)
        return frozenset(found)

    def _hold_against(self, columns: Columns, step: int, values: Sequence[Value], graph: fx.GraphModule) -> None:
        """Raises CaptureError unless these values are at one step what a graph computes that has its numbers."""
        own = self._variant(graph)
        if len(own) != len(values) or not (columns.agree(step, values, own) or self._close(columns, step, values, own)):
            raise CaptureError(
                f"at step {step} the step computes something else with numbers of Python themselves than with what "
                "stands for them: keep what steps change in buffers that hold tensors from the start"
            )

    def _close(self, columns: Columns, step: int, values: Sequence[Value], others: Sequence[Value]) -> bool:
        """Whether values are at one step what others are but for roundings, from a state near the first one: 1 - w is
        computed by Python of a number, and by the program of a column."""
        generator = torch.Generator().manual_seed(1)
        states = [*(self.traced.states[name] for name in self._slots), *self._constant_states.values()]
        spread = [torch.randn(state.shape, generator=generator) for state in states]
        moved = [s + 0.05 * x if s.dtype == torch.float32 else s for s, x in zip(states, spread, strict=True)]
        given = StepInputs(
            states=[state.contiguous() for state in moved],
            data=[widened(field) for field in self.task.batch(torch.arange(self.task.batch_size)).values()],
            schedule=columns.row(step),
            seed=self.task.seed,
            step=step,
            device=torch.device("cpu"),
        )
        try:
            found = evaluated(self.builder.nodes, {*values, *others}, given)
        except StoppedError:
            return False
        pairs = [(found[one], found[two]) for one, two in zip(values, others, strict=True)]
        return all(one.shape == two.shape and one.dtype == two.dtype and _apart(one, two) < _NEAR for one, two in pairs)

    def lowered(self, graph: fx.Graph) -> list[Any]:
        """Lowers the operators of a graph whose placeholders have values. Gives the nodes of its outputs."""
        outputs: Any = None
        for node in graph.nodes:
            self.builder.source = source_of(node)
            if node.op == "get_attr":
                held = getattr(self.module, str(node.target))
                if not isinstance(held, torch.Tensor):  # a generator: a program has its own random numbers
                    self.values[node] = None
                else:
                    self.values[node] = held.detach() if node in self.constants else self.literal(held.detach())
            elif node.op == "call_function":
                with told_from_refusals(str(node.target), self._where()):
                    self._call(node)
            elif node.op == "output":
                outputs = node.args[0]
        return tree_leaves(outputs)

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
        for slot, field in enumerate(self.task.fields().values()):
            attributes: dict[str, Attribute] = {"slot": slot}
            if field.kind.stored is not Stored.AS_READ:
                attributes["stored"] = field.kind.stored.name.lower()
            if field.kind.stride != field.kind.row.numel:
                attributes["stride"] = field.kind.stride
            shape = (self.task.batch_size, *field.kind.row.shape)
            kinds.append(("data", TensorType(shape, field.kind.row.dtype), attributes))
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

    def literal(self, tensor: torch.Tensor) -> Value:
        """A tensor that is known at capture: written into the program, or, if it is large, a state that stays."""
        if tensor.is_meta:
            raise CaptureError(
                "the step uses a tensor on the meta device, where tensors have no numbers: load its values first"
            )
        tensor = materialized(tensor)
        if tensor.dtype.is_floating_point:
            tensor = tensor.to(torch.float32)
        elif tensor.dtype != torch.bool:
            tensor = tensor.to(torch.int64)
        if tensor.numel() <= MAX_LITERAL:
            return self.builder.literal(tensor)
        tensor = tensor.cpu().contiguous()
        key = (tensor.shape, tensor.dtype, tensor.numpy().tobytes())
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
            return
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
        self._stop_if_shape_depends_on_values(node, name)
        if rule is None:
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

    def _stop_if_shape_depends_on_values(self, node: fx.Node, name: str) -> None:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and not all(type(size) is int for size in value.shape):
                raise CaptureError(
                    f"the operator aten.{name}{self._where()} gives a tensor whose shape depends on values: "
                    "choose elements with torch.where or a mask instead"
                )

    def _apply(self, node: fx.Node, name: str, rule: Rule) -> Any:
        """A rule's result on the current values of the node's arguments."""
        before = getattr(self, "node", node)
        self.node = node
        self.builder.draw = draw_of(node)
        try:
            # Random numbers are the program's own.
            options = {key: value for key, value in node.kwargs.items() if key != "generator"}
            args, kwargs = fx.node.map_arg((node.args, options), self.value)
            return rule(self, *args, **kwargs)
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
        self.storages.write(target, value)

    def _where(self) -> str:
        return f" (at {self.builder.source})" if self.builder.source else ""

    def _check_type(self, node: fx.Node, result: Any) -> None:
        """Hold the lowered type against the traced one: a rule that disagrees is a defect, caught here."""
        traced = node.meta.get("val")
        if not isinstance(traced, torch.Tensor) or not isinstance(result, Value):
            return
        if traced.dtype == torch.float64:
            raise CaptureError(
                f"the operator {node.target}{self._where()} computes in float64: programs are FP32, use .float()"
            )
        kind = self.builder.type(result)
        expected = TensorType(tuple(int(size) for size in traced.shape), storage(traced.dtype))
        if kind != expected:
            raise CaptureError(f"the operator {node.target}{self._where()} was lowered to {kind}, traced as {expected}")


_NEAR = 1e-4
"""Distance of results, in units of the largest element, that roundings of numbers account for."""


def _apart(one: torch.Tensor, two: torch.Tensor) -> float:
    """Largest difference, in units of the largest element."""
    same = (one == two) | (one != one) & (two != two)
    if bool(same.all()):
        return 0.0
    largest = float(two[two.isfinite()].double().abs().max()) if bool(two.isfinite().any()) else 0.0
    return float((one.double() - two.double())[~same].abs().max()) / max(largest, 1e-30)


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
