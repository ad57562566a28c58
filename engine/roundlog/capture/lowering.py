"""Lowering of a traced graph of ATen operators to a program in the project's own operator set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_leaves

from roundlog.capture.builder import MAX_LITERAL, Builder, Value
from roundlog.capture.chosen import ChosenRows, is_number
from roundlog.capture.constants import Constants
from roundlog.capture.defects import told_from_refusals
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError, UnknownValueError
from roundlog.capture.lines import source_of
from roundlog.capture.model_tensors import model_tensors
from roundlog.capture.rules import AT_CAPTURE, RULES, VIEWS, Context, Rule
from roundlog.capture.rules.table import storage
from roundlog.capture.storage import Storages
from roundlog.capture.task import STORED, Task
from roundlog.capture.tracing.eager import plain_model
from roundlog.capture.tracing.rehearsal import surroundings, traced
from roundlog.capture.tracing.trace import TracedStep
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
    """Parameter name -> the operator that gives its gradient, before clipping. Parameters without one are missing."""
    draws: tuple[int | None, ...]
    """The operators that give what was drawn at random, in order; None where the program has no use for it."""
    chosen: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Such an operator -> the operators that give the masks of its axes, where a mask chooses what is drawn."""
    known: frozenset[str] = frozenset()
    """Names of the states whose first values are constants of the program. No step changes them."""

    def observed(self) -> frozenset[int]:
        """The operators whose results `drawn` needs."""
        found = {*self.draws, *(mask for masks in self.chosen.values() for mask in masks)}
        return frozenset(index for index in found if index is not None)

    def drawn(self, results: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
        """Random numbers for the user's own step where the program has these results, in order: of rows that a mask
        chooses, those alone."""
        found: list[torch.Tensor | None] = []
        for index in self.draws:
            tensor = None if index is None else results[index]
            for axis, mask in enumerate(() if index is None else self.chosen.get(index, ())):
                if tensor is not None and mask is not None:
                    tensor = tensor.index_select(axis, results[mask].nonzero().squeeze(1))
            found.append(tensor)
        return found


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
        chosen={
            places[value]: tuple(None if mask is None else places[mask] for mask in masks)
            for value, masks in zip(lowering.draws, lowering.draw_masks, strict=True)
            if value in places and any(masks) and all(mask is None or mask in places for mask in masks)
        },
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
        self.draws: list[Value] = []
        self.draw_masks: list[tuple[Value | None, ...]] = []
        """The masks of the axes of each draw."""
        self._slots: list[str] = []
        """Names of the states that the step reads or keeps."""
        self._constant_states: dict[str, torch.Tensor] = {}
        """Constants too large for a literal: states that no step changes."""
        self._known_states: dict[object, Value] = {}
        self.storages = Storages(self, self.values)
        self.chosen = ChosenRows(self, self.value)

    def run(self) -> Program:
        graph = self.traced.graph.graph
        self._bind_placeholders([node for node in graph.nodes if node.op == "placeholder"])
        loss, *rest = self.lowered(graph)
        count, last = len(self.traced.states), len(self.traced.states) + len(self.traced.gradients)
        stores, gradients, draws = rest[:count], rest[count:last], rest[last:]
        following = dict(zip(self.traced.states, stores, strict=True))
        for name in self._slots:
            if self.values[following[name]] is None:
                raise CaptureError(f"the next value of {name} is not computed")
        self.gradients = [self.value(node) for node in gradients]
        self.draws = [self.value(node) for node in draws]
        self.draw_masks = [self.chosen.axes(node) for node in draws]
        self.states = {**{name: self.traced.states[name] for name in self._slots}, **self._constant_states}
        return self.builder.finish(
            self.value(loss),
            [*(self.value(following[name]) for name in self._slots), *self._known_states.values()],
            states=list(self.states),
            data=list(self.task.dataset),
            schedule=list(self.traced.columns),
            batch_size=self.task.batch_size,
            keep=self.gradients,
        )

    def lowered(self, graph: fx.Graph) -> list[Any]:
        """Lowers the operators of a graph whose placeholders have values. Gives the nodes of its outputs."""
        outputs: Any = None
        for node in graph.nodes:
            self.builder.source = source_of(node)
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

    def _bind_placeholders(self, placeholders: list[fx.Node]) -> None:
        states, rest = placeholders[: len(self.traced.states)], placeholders[len(self.traced.states) :]
        for node, (name, tensor) in zip(states, self.traced.states.items(), strict=True):
            if name.startswith("attribute/") and not any(user.op != "output" for user in node.users):
                continue  # nothing reads what a former step has left there
            self.bind_state(node, name, TensorType(tuple(tensor.shape), DType.of(tensor.dtype)))
        kinds: list[tuple[str, TensorType, dict[str, Attribute]]] = []
        for slot in range(len(self.traced.columns)):
            kinds.append(("schedule", TensorType((), DType.F32), {"slot": slot}))
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
            self.chosen.take_item(node, container, position)  # type: ignore[arg-type]
            return
        if is_number(node) and self.chosen.concerns(node):
            self.values[node] = None  # computed where it is used
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
        if rule is None and not self.chosen.concerns(node):
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
            if rule is None or self.chosen.concerns(node):
                return self.chosen.lowered(node, name, rule)
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
