"""Lowering of a traced step to a program in the project's own operator set: each node of the graph of ATen operators by
its rule, with states and schedule. Programs have no in-place operators, so a write into a tensor becomes a new value of
it and of all its views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx
from torch.utils._pytree import tree_leaves

from roundlog.capture.builder import Builder, ProgramStates, Value
from roundlog.capture.constants import Constants
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError, raising_defects, source_of
from roundlog.capture.kernel_calls import CallTrail, KernelCall, Result, calls_of, trail_of
from roundlog.capture.rules import AT_CAPTURE, RULES, VIEWS, Context
from roundlog.capture.rules.rule_table import NodeValues, base_name, is_among, storage
from roundlog.capture.rules.shapes_and_views import diagonal_scatter, places_in_base, slice_scatter
from roundlog.capture.rules.short_formats import applied
from roundlog.data import Field
from roundlog.program import Attribute, DType, Program, ProgramError, Stored, TensorType


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
        trail=trail_of(traced.calls, values, {k: places[v] for k, v in graph.arguments.items() if v in places}),
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


class Storages:
    """Graph nodes that share memory, and their meaning after a write.

    A write into a view is carried back, view by view, to the tensor that owns the memory; then every view of that
    tensor is to be computed again."""

    def __init__(self, context: Context, values: NodeValues) -> None:
        self._context = context
        self._values = values
        self._base: dict[fx.Node, fx.Node] = {}

    def add_view(self, node: fx.Node, base: fx.Node) -> None:
        """`node` is a view of `base`, or all of it."""
        self._base[node] = base

    def is_view(self, node: fx.Node) -> bool:
        return node in self._base

    def write(self, target: fx.Node, value: Value) -> list[tuple[fx.Node, fx.Node]]:
        """`value` has been written into the tensor that graph node `target` stands for. Gives the views that have other
        values now, each with its base, in the order in which to compute them. Raises CaptureError where two elements
        of the target are one place in memory."""
        writer = self._writer(target)
        node = target
        while node in self._base:
            try:
                value = self._carry_back(node, value)
            except (CaptureError, ProgramError) as error:
                raise CaptureError(f"the operator {writer}{self._where()} cannot be lowered: {error}") from None
            node = self._base[node]
        if node.op == "get_attr":
            raise CaptureError(
                f"the operator {writer}{self._where()} writes into a tensor that is no part of the state: make it a "
                "buffer of the model"
            )
        self._values[node] = value
        # Views come after their bases in the graph, and were added in that order.
        moved = {node}
        views: list[tuple[fx.Node, fx.Node]] = []
        for view, base in self._base.items():
            if base in moved:
                views.append((view, base))
                moved.add(view)
        return views

    def _writer(self, target: fx.Node) -> str:
        """The name of the operator that is being lowered: of those that use the target, the first without a value."""
        return next((str(user.target) for user in target.users if user not in self._values), str(target.target))

    def _where(self) -> str:
        source = self._context.builder.source
        return f" (at {source})" if source else ""

    def _carry_back(self, view: fx.Node, value: Value) -> Value:
        """The new value of the view's base, when `value` is the new value of the view."""
        c = self._context
        base = self._values.value(self._base[view])
        kind = base_name(view.target)
        if kind in ("alias", "detach", "lift_fresh") or _is_in_place(view) or "out" in view.kwargs:
            return value
        if kind in ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"):
            return c.builder.reshape(value, c.shape(base))
        if kind in ("permute", "transpose", "t"):
            return c.builder.permute(value, np.argsort(_permutation(view, c.rank(base))).tolist())
        if kind in ("select", "slice"):
            return self._into_part(view, kind, base, value)
        if kind == "diagonal":
            return diagonal_scatter(c, base, value, *_arguments(view)[1:])
        return self._into_places(view, base, value)

    def _into_part(self, view: fx.Node, kind: str, base: Value, value: Value) -> Value:
        c, given = self._context, _arguments(view)
        dim = c.dim(int(given[1]) if len(given) > 1 else 0, c.rank(base))
        size = c.shape(base)[dim]
        if kind == "select":
            start = int(given[2]) % size
            stop = start + 1
            value = c.builder.reshape(value, (*c.shape(base)[:dim], 1, *c.shape(base)[dim + 1 :]))
        else:
            first, last, every = [*given[2:5], None, None, None][:3]
            start, stop, step = slice(first, last, every).indices(size)
            stop = max(start, stop)
            if step != 1:
                return slice_scatter(c, base, value, dim, start, stop, step)
        parts = [value]
        if start > 0:
            parts.insert(0, c.op("slice", base, dim=dim, start=0, stop=start, step=1))
        if stop < size:
            parts.append(c.op("slice", base, dim=dim, start=stop, stop=size, step=1))
        return value if len(parts) == 1 else c.op("cat", *parts, dim=dim)

    def _into_places(self, view: fx.Node, base: Value, value: Value) -> Value:
        """Each element of the view goes to its place in the base; other places stay as they are."""
        c = self._context
        places = places_in_base(view, c.shape(base)).reshape(-1)
        count = prod(c.shape(base))
        # Where in the view each element of the base stands.
        origin = torch.full((count,), -1, dtype=torch.int64)
        origin[places] = torch.arange(len(places))
        if int((origin >= 0).sum()) != len(places):
            raise CaptureError(
                f"writes in place through {view.target}, in which several elements are one place in memory: "
                "make a copy of it with .clone()"
            )
        if not len(places):
            return base
        flat = c.op("take", c.builder.reshape(value, (len(places),)), c.literal(origin.clamp(min=0)))
        if len(places) < count:
            flat = c.op("where", c.literal(origin >= 0), flat, c.builder.reshape(base, (count,)))
        return c.builder.reshape(flat, c.shape(base))


def _arguments(view: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node. Their own type is a union of itself, over whose overloads mypy spends minutes."""
    return view.args


def _is_in_place(view: fx.Node) -> bool:
    """Whether a node is what an in-place operator gives: all of the tensor that it has written into."""
    name = str(view.target).removeprefix("aten.").partition(".")[0]
    reshapes = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_")
    return name.endswith("_") and not name.startswith("_") and name not in reshapes


def _permutation(view: fx.Node, rank: int) -> list[int]:
    kind = base_name(view.target)
    if kind == "permute":
        return [int(dim) % rank for dim in _arguments(view)[1]]
    dims = list(range(rank))
    if kind == "t" or not rank:
        return dims[::-1]
    a, b = (int(dim) % rank for dim in _arguments(view)[1:3])
    dims[a], dims[b] = dims[b], dims[a]
    return dims


_OF_A_FIELD = (
    "draw by torch.rand or torch.randn in the step, or draw before training, one number a row, and give the numbers as "
    "a field of the dataset"
)
_OF_A_SAMPLE = (
    "a gamma number (Beta, Dirichlet) has no gradient by its concentration here: draw it by sample() in place of "
    "rsample()"
)
_OF_ROWS = "keep all rows, and weigh them by a mask of zeros and ones: how many places nonzero finds depends on values"
_AS_PRODUCTS = (
    "a Fourier transform is two products with matrices of cosines and sines, made before training "
    "(`stft_by_products`, `fno_by_products` in docs/how-to/scripts.md)"
)
_BY_LOOP = (
    "torch.linalg.solve_triangular is captured; factor a small matrix column by column in a loop of your own "
    "(`cholesky_by_columns` in docs/how-to/scripts.md)"
)
_BY_STIRLING = (
    "for x > 0 write Stirling's formula at y = x + 6, less the logarithms that lead there: (y - 0.5) * y.log() - y + "
    "0.9189385 + 1 / (12 * y) - 1 / (360 * y**3) - sum((x + k).log() for k in range(6))"
)
_OF_VOLUMES = "write x.unfold(2, n, n).unfold(3, n, n).unfold(4, n, n), and its amax or mean over (-3, -2, -1)"
_FACTORS = (
    *("linalg_cholesky_ex", "cholesky", "cholesky_solve", "linalg_lu_factor_ex", "linalg_lu", "linalg_inv_ex"),
    *("_linalg_solve_ex", "_linalg_det", "_linalg_slogdet"),
)
_REWRITES = {
    **dict.fromkeys(("nonzero", "masked_select", "unique", "_unique2"), _OF_ROWS),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), _AS_PRODUCTS),
    **dict.fromkeys(_FACTORS, _BY_LOOP),
    **dict.fromkeys(("lgamma", "digamma", "polygamma"), _BY_STIRLING),
    "erfinv": "draw normal numbers by torch.randn, or compute this before training",
    "kthvalue": "take torch.sort(x, dim).values.select(dim, k - 1)",
    "median": "take torch.sort(x, dim).values.select(dim, (n - 1) // 2)",
    "tan": "write x.sin() / x.cos()",
    "cosh": "write 0.5 * (x.exp() + (-x).exp())",
    "sinh": "write 0.5 * (x.expm1() - (-x).expm1())",
    **dict.fromkeys(("atan", "atan2", "asin", "acos"), "write a polynomial in the smaller of x and 1 / x"),
    **dict.fromkeys(("avg_pool3d", "max_pool3d_with_indices"), _OF_VOLUMES),
    "hypot": "write (a * a + b * b).sqrt()",
    "acosh": "write (t + (t * (t + 2)).sqrt()).log1p(), t = x - 1",
    "atanh": "write 0.5 * (x.log1p() - (-x).log1p())",
    **dict.fromkeys(("cummax", "cummin"), "take torch.maximum or torch.minimum of one slice after another"),
    "logcumsumexp": "write (x - top).exp().cumsum(dim).log() + top, top = x.amax(dim, keepdim=True).detach()",
    **dict.fromkeys(("bucketize", "searchsorted"), "write (boundaries < x.unsqueeze(-1)).sum(-1), <= for right=True"),
    "logaddexp": "write torch.maximum(a, b) + F.softplus(-(a - b).abs())",
    "exp2": "write 2.0**x",
    "_cdist_backward": (
        "write z = x.unsqueeze(-2) - y.unsqueeze(-3), and z.abs().sum(-1) for order 1; for order 2, "
        "d = z.square().sum(-1) and torch.where(d > 0, d, 1.0).sqrt() * (d > 0)"
    ),
    "_pdist_forward": "take the pairs of torch.cdist(x, x) that torch.triu_indices names",
    "grid_sampler_2d": (
        "read the four pixels around each position by torch.gather, and add them up by their weights "
        "(`transformer_by_gather` in docs/how-to/scripts.md)"
    ),
    **dict.fromkeys(("poisson", "binomial"), _OF_A_FIELD),
    **dict.fromkeys(("_standard_gamma_grad", "_dirichlet_grad"), _OF_A_SAMPLE),
}
"""Operators without a rule -> what to write instead."""


class GraphLowering(Context):
    """Lowering of one traced graph."""

    def __init__(self, builder: Builder, states: ProgramStates, module: fx.GraphModule) -> None:
        """states: those of the program. module: the traced graph."""
        super().__init__(builder, states)
        self.results: dict[Result, Value | None] = {}
        """Results of PyTorch's kernels, None for what is known at capture, and next states."""
        self.arguments: dict[tuple[int, int], Value] = {}
        """What PyTorch's kernels are given."""
        self._module = module
        self._constants = Constants(module, module.graph)
        self._values = NodeValues(states)
        self._storages = Storages(self, self._values)

    def lower(self, inputs: Mapping[fx.Node, Value]) -> None:
        """Lower all operators. inputs: values of the placeholders; those that nothing reads may be missing."""
        self._values.update(inputs)
        reads: dict[int, list[tuple[int, fx.Node]]] = {}
        for node in self._module.graph.nodes:
            for call, number in calls_of(node, arguments=True):
                reads.setdefault(call, []).append((number, node))
            for call, _ in calls_of(node):  # arguments as they are now: later, something may be written into them
                for number, argument in reads.get(call, ()):
                    if isinstance(given := self._values.get(argument), Value):
                        self.arguments[call, number] = given
            self.builder.source = source_of(node)
            if node.op == "get_attr":
                held = getattr(self._module, str(node.target))
                if not isinstance(held, torch.Tensor):  # a generator: a program has its own random numbers
                    self._values[node] = None
                else:
                    held = held.detach()
                    self._values[node] = held if node in self._constants else self.literal(held)
            elif node.op == "call_function":
                with raising_defects(str(node.target), self._where()):
                    self._call(node)
                value = self._values[node]
                if isinstance(value, Value | torch.Tensor):
                    stands: Value | None = None if isinstance(value, torch.Tensor) else value
                    self.results.update(dict.fromkeys(calls_of(node), stands))

    def value(self, node: fx.Node) -> Any:
        """Values of the program that a graph node stands for."""
        return self._values.value(node)

    def known(self, node: Any) -> torch.Tensor | None:
        if not isinstance(node, fx.Node) or node not in self._constants:
            return None
        value = self._constants.evaluate(node)
        return value if isinstance(value, torch.Tensor) else None

    def rebind(self, target: fx.Node, value: Value) -> None:
        self._write(target, self._like(target, value))

    def _call(self, node: fx.Node) -> None:
        values = self._values
        if getattr(node.target, "__name__", "") == "getitem":
            container, position = node.args
            values[node] = values[container][position]  # type: ignore[index]
            return
        if "_local_scalar_dense" in str(node.target):
            raise CaptureError(
                f"the step takes a number out of a tensor (.item(), float(), .tolist()){self._where()}: compute with "
                "the tensor itself"
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
        if call.rule is None:
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
            assert call.rule is not None
            # Random numbers are the program's own.
            options = {key: value for key, value in node.kwargs.items() if key != "generator"}
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
    if is_among(AT_CAPTURE, node.target):
        return True
    before, after = ([n.meta.get("val") for n in nodes] for nodes in (node.all_input_nodes, [node]))
    return str(node.target).startswith("aten._to_copy.") and any(
        isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.is_floating_point() > y.is_floating_point()
        for x in before
        for y in after
    )
