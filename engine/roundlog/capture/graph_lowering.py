"""Lowering of one traced graph of ATen operators: node by node, each by its rule, to operators of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from roundlog.capture.builder import Builder, ProgramStates, Value
from roundlog.capture.constants import Constants
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError, told_from_refusals
from roundlog.capture.in_place_writes import Storages
from roundlog.capture.kernel_calls import CallPlace, calls_of
from roundlog.capture.lines import source_of
from roundlog.capture.masked_rows import Axes, MaskedRows
from roundlog.capture.rules import AT_CAPTURE, RULES, VIEWS, Context
from roundlog.capture.rules.numbers import OF_NUMBERS, refuse_numbers
from roundlog.capture.rules.rule_table import NodeValues, storage
from roundlog.capture.rules.short_formats import applied, refuse_short
from roundlog.capture.tracing.traced_step import decisions_before
from roundlog.program import DType, ProgramError, TensorType

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


class GraphLowering(Context):
    """Lowering of one traced graph."""

    def __init__(
        self, builder: Builder, states: ProgramStates, module: fx.GraphModule, counts: Value | None = None
    ) -> None:
        """states: those of the program. module: the traced graph. counts: bool[], whether a step is this one, where
        steps differ."""
        super().__init__(builder, states)
        self.calls: dict[CallPlace, Value | None] = {}
        """Results of PyTorch's kernels; None for what is known at capture."""
        self.following: dict[tuple[int, str], Value] = {}
        """(path, state name) -> its next value there."""
        self._module = module
        self._constants = Constants(module, module.graph)
        self._values = NodeValues(states)
        self._storages = Storages(self, self._values)
        self._masked_rows = MaskedRows(self, self._values)
        self._counts = counts
        self._decisions: tuple[tuple[fx.Node, bool], ...] = ()

    def lower(self, inputs: Mapping[fx.Node, Value]) -> None:
        """Lower all operators. inputs: values of the placeholders; those that nothing reads may be missing."""
        self.builder.begin()
        self.builder.counts = self._counts
        self._values.update(inputs)
        for node in self._module.graph.nodes:
            self.builder.source = source_of(node)
            self._follow_path(decisions_before(node))
            if node.op == "get_attr":
                held = getattr(self._module, str(node.target))
                if not isinstance(held, torch.Tensor):  # a generator: a program has its own random numbers
                    self._values[node] = None
                else:
                    held = held.detach()
                    self._values[node] = held if node in self._constants else self.literal(held)
            elif node.op == "call_function":
                with told_from_refusals(str(node.target), self._where()):
                    self._call(node)
                value = self._values[node]
                if isinstance(value, Value | torch.Tensor):
                    stands: Value | None = None if isinstance(value, torch.Tensor) else value
                    self.calls.update(dict.fromkeys(calls_of(node), stands))

    def value(self, node: fx.Node) -> Any:
        """Values of the program that a graph node stands for."""
        return self._values.value(node)

    def operand(self, node: fx.Node) -> Any:
        """Values as `value` gives them, and of numbers of chosen elements, too."""
        return self._masked_rows.number(node) if self._masked_rows.counts(node) else self.value(node)

    def axes(self, node: fx.Node) -> Axes:
        """The masks of a tensor's axes; nothing, of one that has nothing to do with chosen rows."""
        return self._masked_rows.axes(node)

    def known(self, node: Any) -> torch.Tensor | None:
        if not isinstance(node, fx.Node) or node not in self._constants:
            return None
        value = self._constants.evaluate(node)
        return value if isinstance(value, torch.Tensor) else None

    def rebind(self, target: fx.Node, value: Value) -> None:
        self._write(target, self._like(target, value))

    def _follow_path(self, decisions: tuple[tuple[fx.Node, bool], ...]) -> None:
        """Has the builder know when what follows counts: conditions and their answers on the path that it is on."""
        if decisions is self._decisions:
            return
        self._decisions, self.builder.counts = decisions, self._counts
        for node, answer in decisions:
            condition = self.builder.convert(self.operand(node), DType.BOOL)
            holds = condition if answer else self.builder.op("logical_not", condition)
            before: Value | None = self.builder.counts
            self.builder.counts = holds if before is None else self.builder.op("logical_and", before, holds)

    def _call(self, node: fx.Node) -> None:
        values = self._values
        if getattr(node.target, "__name__", "") == "getitem":
            container, position = node.args
            values[node] = values[container][position]  # type: ignore[index]
            self._masked_rows.take_item(node, container, position)  # type: ignore[arg-type]
            return
        if self._masked_rows.counts(node):
            values[node] = None  # computed where it is used
            return
        if node.target in OF_NUMBERS:
            args: Any = fx.node.map_arg(node.args, self.operand)
            values[node] = OF_NUMBERS[node.target](self, *args)
            return
        if not hasattr(node.target, "_schema"):
            name = getattr(node.target, "__name__", "an operation")
            raise CaptureError(
                f"the step computes {name} of a number that it takes out of a tensor (.item()){self._where()}: compute "
                "with the tensor itself"
            )
        if node not in self._constants:
            self._lower(node)
            return
        # An operator on a computed constant is computed, too; others are only if no rule knows them, or if many
        # operators would be needed.
        if _takes_many(node) or any(isinstance(values[source], torch.Tensor) for source in node.all_input_nodes):
            values[node] = self._constants.evaluate(node)
            return
        try:
            self._lower(node)
        except CaptureError:
            values[node] = self._constants.evaluate(node)

    def _lower(self, node: fx.Node) -> None:
        call = _Named(node)
        if any(argument.is_out for argument in getattr(getattr(node.target, "_schema", None), "arguments", ())):
            raise CaptureError(
                f"the operator aten.{call.name}{self._where()} writes into tensors that it is given (out=): take what "
                "it returns without them"
            )
        if call.in_place and call.is_view and self._has_views(node.args[0]):
            # PyTorch traces the gradients of such views in the new shape, which is wrong.
            raise CaptureError(
                f"the operator aten.{call.name}{self._where()} changes the shape of a tensor in place, and the "
                f"tensor has views: use aten.{call.base[:-1]}"
            )
        if call.rule is None and not self._masked_rows.concerns(node):
            raise CaptureError(
                f"the operator aten.{call.name}{self._where()} has no counterpart in this program's operator set: "
                f"{_REWRITES.get(call.base, 'write this line with the operators that docs/operators.md lists')}"
            )
        result = self._apply(call)
        if call.in_place or call.is_view:
            first = node.args[0]
            assert isinstance(first, fx.Node)
            if not call.is_view:
                result = self._like(first, result)
                self._write(first, result)
            self._storages.add_view(node, first)
        self._check_type(node, result)
        self._values[node] = result

    def _has_views(self, node: Any) -> bool:
        """Whether views of what a graph node stands for have been lowered by now."""
        return any(user in self._values and self._storages.is_view(user) for user in node.users)

    def _apply(self, call: _Named) -> Any:
        """A rule's result on the current values of the node's arguments."""
        node = call.node
        before = getattr(self, "node", node)
        self.node = node
        self.builder.draw = draw_of(node)
        try:
            if call.rule is None or self._masked_rows.concerns(node):
                refuse_short(node)
                return self._masked_rows.lowered(node, call.name, call.rule)
            # Random numbers are the program's own.
            options = {key: value for key, value in node.kwargs.items() if key != "generator"}
            refuse_numbers(node, call.base)
            return applied(self, call.name, call.rule, options, self.value)
        except (CaptureError, ProgramError) as error:
            raise CaptureError(f"the operator aten.{call.name}{self._where()} cannot be lowered: {error}") from None
        except TypeError as error:
            raise CaptureError(
                f"the operator aten.{call.name}{self._where()} is used with arguments that are not supported: {error}"
            ) from None
        finally:
            # A rule that writes in place has views computed again in the middle of itself.
            self.node = before

    def _write(self, target: fx.Node, value: Value) -> None:
        """A value into the tensor that a graph node stands for, and into all that are views of the same memory."""
        for view, base in self._storages.write(target, value):
            call = _Named(view)
            self._values[view] = self._apply(call) if call.is_view else self._values[base]

    def _like(self, target: fx.Node, value: Value) -> Value:
        """An in-place result has the shape and dtype of its target."""
        kind = self.builder.type(self.value(target))
        return self.builder.expand(self.builder.convert(value, kind.dtype), kind.shape)

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


class _Named:
    """A call of an ATen operator: its names, and the rule that these have."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        self.name = str(node.target).removeprefix("aten.")
        self.base, _, overload = self.name.partition(".")
        self.in_place = self.base.endswith("_") and not self.base.startswith("_")
        names = [self.name, self.base]
        if self.in_place:
            names += [f"{self.base[:-1]}.{overload}", self.base[:-1]]
        self.is_view = any(known in VIEWS for known in names)
        """Whether its result shares memory with its first argument. Changing the shape of a tensor in place writes
        nothing; what follows in the graph refers to the result."""
        self.rule = next((RULES[known] for known in names if known in RULES), None)


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
