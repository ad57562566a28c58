"""Lowering of a traced graph of ATen operators to a program in the project's own operator set."""

from __future__ import annotations

from collections.abc import Mapping
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
from roundlog.capture.lines import source_of
from roundlog.capture.model_tensors import model_tensors
from roundlog.capture.rules import AT_CAPTURE, RULES, VIEWS, Context, Rule
from roundlog.capture.rules.numbers import OF_NUMBERS, refuse_numbers
from roundlog.capture.rules.table import storage
from roundlog.capture.storage import Storages
from roundlog.capture.task import STORED, Task
from roundlog.capture.tracing.eager import plain_model
from roundlog.capture.tracing.paths import Result, decisions_before, is_fork
from roundlog.capture.tracing.rehearsal import surroundings, traced
from roundlog.capture.tracing.trace import TracedStep
from roundlog.capture.ways import Way
from roundlog.data import materialized
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
    """Parameter name -> the operator that gives its gradient, before clipping. Parameters that have none on any path
    are missing."""
    ways: Way
    """What differs from path to path through the step."""
    known: frozenset[str] = frozenset()
    """Names of the states whose first values are constants of the program. No step changes them."""

    @property
    def draws(self) -> set[int]:
        """The operators that say what a step draws: those that draw, and the conditions of its paths."""
        return self.ways.operators()

    def drawn(self, kept: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
        """What a step draws at random, in order; None where the program has no use for it. kept: what the operators of
        `draws` give in it."""
        way = self.ways.taken(lambda index: bool(kept[index]))
        return [None if index is None else kept[index] for index in way.drawn]


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
    with surroundings(task) as around:
        trace, attributes = traced(task, around, known, decides=decides)
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
        ways=lowering.ways.placed(places),
        known=trace.known,
    )
    return Captured(program=program, states=states, schedule=trace.schedule, origin=origin)


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
        self.ways: Way = Way()
        self._slots: list[str] = []
        """Names of the states that the step reads or keeps."""
        self._constant_states: dict[str, torch.Tensor] = {}
        """Constants too large for a literal: states that no step changes."""
        self._known_states: dict[object, Value] = {}
        self._decisions: tuple[tuple[fx.Node, bool], ...] = ()
        self.storages = Storages(self, self.values)

    def run(self) -> Program:
        graph = self.traced.graph.graph
        self._bind_placeholders([node for node in graph.nodes if node.op == "placeholder"])
        self.lowered(graph)
        loss, following, gradients, self.ways = self._joined(graph.output_node().args[0], {})
        self.gradients = [gradients[name] for name in self.traced.gradients]
        self.states = {**{name: self.traced.states[name] for name in self._slots}, **self._constant_states}
        return self.builder.finish(
            loss,
            [*(following[name] for name in self._slots), *self._known_states.values()],
            states=list(self.states),
            data=list(self.task.dataset),
            schedule=list(self.traced.columns),
            batch_size=self.task.batch_size,
            keep=[*self.gradients, *map(Value, self.ways.conditions())],
        )

    def _joined(
        self, result: Result, known: Mapping[Value, bool]
    ) -> tuple[Value, dict[str, Value], dict[str, Value], Way]:
        """Loss, next states, gradients, and ways of a result. What paths give is chosen, element by element, so that
        nothing of a path that is not taken reaches it. known: conditions that hold, or do not, where it counts."""
        if not is_fork(result):
            states = dict(zip(self.traced.states, result["states"], strict=True))
            following = {name: self.value(states[name]) for name in self._slots}
            for name, value in following.items():
                if value is None:
                    raise CaptureError(f"the next value of {name} is not computed")
            gradients = {name: self.value(node) for name, node in result["gradients"].items()}
            way = Way(drawn=tuple(map(self.value, result["drawn"])), gradients=frozenset(gradients))
            return self.value(result["loss"]), following, gradients, way
        condition = self.builder.convert(self.value(result["condition"]), DType.BOOL)
        if condition in known:
            return self._joined(result["held" if known[condition] else "otherwise"], known)
        held, otherwise = (
            self._joined(result[name], {**known, condition: truth})
            for name, truth in (("held", True), ("otherwise", False))
        )
        self.builder.source = "the choice between paths"
        loss = self.builder.chosen(condition, held[0], otherwise[0])
        # A gradient that only one path has is never read on the other.
        following, gradients = (
            {name: self.builder.chosen(condition, (two | one)[name], (one | two)[name]) for name in one | two}
            for one, two in ((held[1], otherwise[1]), (held[2], otherwise[2]))
        )
        return loss, following, gradients, Way.of(condition, held[3], otherwise[3])

    def lowered(self, graph: fx.Graph) -> list[Any]:
        """Lowers the operators of a graph whose placeholders have values. Gives the nodes of its outputs."""
        outputs: Any = None
        for node in graph.nodes:
            self.builder.source = source_of(node)
            self._follow_path(decisions_before(node))
            if node.op == "get_attr":
                held = getattr(self.traced.graph, str(node.target))
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

    def _follow_path(self, decisions: tuple[tuple[fx.Node, bool], ...]) -> None:
        """Has the builder know when what follows counts: conditions and their answers on the path that it is on."""
        if decisions is self._decisions:
            return
        self._decisions, self.builder.counts = decisions, None
        for node, answer in decisions:
            condition = self.builder.convert(self.value(node), DType.BOOL)
            holds = condition if answer else self.builder.op("logical_not", condition)
            before: Value | None = self.builder.counts
            self.builder.counts = holds if before is None else self.builder.op("logical_and", before, holds)

    def _bind_placeholders(self, placeholders: list[fx.Node]) -> None:
        states, rest = placeholders[: len(self.traced.states)], placeholders[len(self.traced.states) :]
        for node, (name, tensor) in zip(states, self.traced.states.items(), strict=True):
            if name.startswith("attribute/") and not any(user.op != "output" for user in node.users):
                continue  # nothing reads what a former step has left there
            self.bind_state(node, name, TensorType(tuple(tensor.shape), DType.of(tensor.dtype)))
        kinds: list[tuple[str, TensorType, dict[str, Attribute]]] = []
        for slot in range(len(self.traced.columns)):
            kinds.append(("schedule", TensorType((), DType.F32), {"slot": slot}))
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
        """Has a placeholder stand for the next state."""
        self.values[node] = self.builder.source_op("state", kind, slot=len(self._slots))
        self._slots.append(name)

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
        if node.target in OF_NUMBERS:
            args: Any = fx.node.map_arg(node.args, self.value)
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
            refuse_numbers(node, name.partition(".")[0])
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
