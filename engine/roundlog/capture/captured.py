"""A task as data: its program, its states, its schedule, and where their values come from in the user's own step.

Also the calls of PyTorch's kernels by which a step computes its losses and gradients: as the trace has seen them,
before they are taken apart, and as the user's own step makes them. Where numbers have fewer than 32 bits, a cast that
only one of the two makes is an error that no comparison of losses would find. The calls say by name and dtypes whether
both compute the same, and every result of one has a place in the program, where it can be compared by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roundlog.capture.constants import node_of
from roundlog.program import Program
from roundlog.program.model import TRANSIENT


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """State name -> the model's own tensor, in the order of `named_parameters` and `named_buffers`, which is that of
    the program. One with several names has the first that `state_dict` holds; so does memory that several share."""
    names: dict[int, tuple[str, torch.Tensor]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in module.named_buffers(prefix, recurse=False, remove_duplicate=False):
            kept = name.rpartition(".")[2] not in module._non_persistent_buffers_set
            known = names.get(id(tensor))
            if known is None or (kept and known[0].startswith(f"{TRANSIENT}/")):
                names[id(tensor)] = (f"buffer/{name}" if kept else f"{TRANSIENT}/{name}", tensor)
    buffers = dict(names.values())
    memory = {
        tensor.untyped_storage()._cdata for name, tensor in buffers.items() if not name.startswith(f"{TRANSIENT}/")
    }
    # The first name of a memory is the one that counts.
    late = {
        name: tensor
        for name, tensor in buffers.items()
        if name.startswith(f"{TRANSIENT}/") and tensor.untyped_storage()._cdata in memory
    }
    return {
        **{f"parameter/{name}": tensor for name, tensor in model.named_parameters()},
        **{name: tensor for name, tensor in buffers.items() if name not in late},
        **late,
    }


Placed = Callable[[int], int | None]
"""Value -> the one that it is elsewhere, None if it is not there."""


@dataclass(frozen=True, slots=True)
class DrawnValue:
    """Random numbers of a call."""

    operator: int
    """The operator that gives it."""
    masks: tuple[int | None, ...] = ()
    """The operators that give the masks of its axes, where a mask chooses what is drawn."""

    def placed(self, place: Placed) -> DrawnValue | None:
        """The draw elsewhere; None if it is not there."""
        found = {one: there for one in self.operators() if (there := place(one)) is not None}
        if found.keys() != self.operators():
            return None
        return DrawnValue(found[self.operator], tuple(None if mask is None else found[mask] for mask in self.masks))

    def operators(self) -> set[int]:
        return {self.operator, *(mask for mask in self.masks if mask is not None)}


@dataclass(frozen=True, slots=True)
class ExecutionPath:
    """One path through a step, or two and the condition that chooses between them."""

    drawn: tuple[DrawnValue | None, ...] = ()
    """Random draws, in order; None where the program has no use for it."""
    gradients: frozenset[str] = frozenset()
    """Names of the parameters that have a gradient."""
    choice: tuple[int, ExecutionPath, ExecutionPath] | None = None
    """The operator, bool[], that chooses, the path where it holds, and the other one; None if this is one path."""

    @classmethod
    def of(cls, condition: int, held: ExecutionPath, otherwise: ExecutionPath) -> ExecutionPath:
        """One of two, by a condition; nothing of a path that is like the other remains."""
        return held if held == otherwise else cls(choice=(condition, held, otherwise))

    def placed(self, place: Placed) -> ExecutionPath:
        """The path in other values. Its conditions have to be there."""
        if self.choice is None:
            drawn = (None if one is None else one.placed(place) for one in self.drawn)
            return ExecutionPath(drawn=tuple(drawn), gradients=self.gradients)
        condition, held, otherwise = self.choice
        there = place(condition)
        assert there is not None
        return ExecutionPath.of(there, held.placed(place), otherwise.placed(place))

    def conditions(self) -> list[int]:
        """The operators that choose."""
        if self.choice is None:
            return []
        condition, held, otherwise = self.choice
        return [condition, *held.conditions(), *otherwise.conditions()]

    def paths(self) -> frozenset[tuple[int, frozenset[str]]]:
        """Number of draws and names of gradients of every path."""
        if self.choice is None:
            return frozenset({(len(self.drawn), self.gradients)})
        _, held, otherwise = self.choice
        return held.paths() | otherwise.paths()

    def operators(self) -> set[int]:
        """All operators that are named."""
        if self.choice is None:
            return {operator for one in self.drawn if one is not None for operator in one.operators()}
        condition, held, otherwise = self.choice
        return {condition} | held.operators() | otherwise.operators()

    def taken(self, holds: Callable[[int], bool]) -> ExecutionPath:
        """The path that a step takes. holds: what an operator gives."""
        if self.choice is None:
            return self
        condition, held, otherwise = self.choice
        return (held if holds(condition) else otherwise).taken(holds)


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
    paths: ExecutionPath
    """Differences from path to path through the step."""
    known: frozenset[str] = frozenset()
    """Names of the states whose first values are constants of the program. No step changes them."""

    trails: tuple[CallTrail, ...] = ()
    """Calls of PyTorch's kernels, one trail for every path through every step that is not like others."""

    def observed(self) -> set[int]:
        """The operators that say what a step draws: those that draw, their masks, and the conditions of its paths."""
        return self.paths.operators()

    def drawn(self, kept: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
        """Random numbers of the user's own step, in order: of rows that a mask chooses, those alone; None where the
        program has no use for it. kept: what the operators of `observed` give in it."""
        found: list[torch.Tensor | None] = []
        for one in self.paths.taken(lambda index: bool(kept[index])).drawn:
            tensor = None if one is None else kept[one.operator]
            for axis, mask in enumerate(() if one is None else one.masks):
                if tensor is not None and mask is not None:
                    tensor = tensor.index_select(axis, kept[mask].nonzero().squeeze(1))
            found.append(tensor)
        return found


_MARK = "roundlog_calls"

_PLAIN = frozenset(
    (
        *("alias", "clone", "detach", "lift_fresh", "lift_fresh_copy", "_unsafe_view", "_local_scalar_dense"),
        *("new_zeros", "slice_backward", "select_backward"),
    )
)
"""Operators that compute nothing: a trace may have others of them than a run, as gradients of a view that was written
into."""

_CONVERTING = ("_to_copy", "copy_")
"""Operators that compute nothing unless they convert."""

_ORDERS = frozenset(("sort", "topk", "kthvalue"))


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call."""

    operator: str
    """As PyTorch writes it: `aten.gelu.default`."""
    inputs: tuple[torch.dtype, ...]
    """Dtypes of the tensors that it is given, in order."""
    outputs: tuple[torch.dtype, ...]
    """Dtypes of its results."""

    @property
    def orders(self) -> bool:
        """Whether it puts numbers into an order, of equal ones as PyTorch likes: what follows depends on its choice."""
        return self.operator.split(".")[1] in _ORDERS

    def __str__(self) -> str:
        taken, given = (", ".join(str(x).removeprefix("torch.") for x in xs) for xs in (self.inputs, self.outputs))
        return f"{self.operator}({taken}) -> {given}"


@dataclass(frozen=True, slots=True)
class CallTrail:
    """The calls of one path through a step."""

    calls: tuple[KernelCall, ...]
    places: Mapping[tuple[int, int], int]
    """(call, which of its results) -> the operator of the program that gives it. What is known at capture, or needed
    for nothing, has none."""
    known: frozenset[int] = frozenset()
    """Calls that compute from constants alone. A step may leave them out: it has their results from an earlier one."""
    following: Mapping[str, int] = field(default_factory=dict)
    """State name -> the operator that gives its next value on this path."""

    @property
    def forms(self) -> tuple[tuple[KernelCall, ...], tuple[KernelCall, ...]]:
        """All calls, and those that no step leaves out."""
        return self.calls, tuple(call for number, call in enumerate(self.calls) if number not in self.known)

    def followed_by(self, calls: tuple[KernelCall, ...]) -> CallTrail | None:
        """This trail without those known calls that a step leaves out. None if the step's calls are others."""
        kept = self._kept(calls)
        if kept is None:
            return None
        numbers = {number: place for place, number in enumerate(kept)}
        places = {(numbers[call], result): at for (call, result), at in self.places.items() if call in numbers}
        return CallTrail(calls, places, following=self.following)

    def _kept(self, calls: tuple[KernelCall, ...]) -> list[int] | None:
        """Numbers of the own calls that are a step's, one by one."""
        kept: list[int] = []
        choices: list[tuple[int, int]] = []
        """Known calls that were kept, and how many were before them: they may be left out instead."""
        tried = set[tuple[int, int]]()
        number = 0
        while number < len(self.calls) or len(kept) < len(calls):
            is_new = (number, len(kept)) not in tried
            tried.add((number, len(kept)))
            if is_new and self.calls[number : number + 1] == calls[len(kept) : len(kept) + 1]:
                if number in self.known:
                    choices.append((number, len(kept)))
                kept.append(number)
            elif not is_new or number not in self.known:
                if not choices:
                    return None
                number, count = choices.pop()
                del kept[count:]
            number += 1
        return kept


Note = Callable[[KernelCall, OpOverload, tuple[Any, ...], dict[str, Any], list[torch.Tensor]], None]
"""Function that gets a call, its operator, its arguments and its results."""


class WatchedCalls(TorchDispatchMode):
    """While this is active, every call that computes with numbers is noted."""

    def __init__(self, note: Note) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = tuple(x.dtype for x in _tensors((args, kwargs)))  # before something is written into them
        result = func(*args, **kwargs)
        given = _tensors(result)
        if isinstance(func, OpOverload) and _computes(func, inputs, given):
            self._note(KernelCall(str(func), inputs, tuple(x.dtype for x in given)), func, args, kwargs, given)
        return result


def _tensors(thing: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(thing) if isinstance(leaf, torch.Tensor)]


def _computes(func: OpOverload, inputs: Sequence[torch.dtype], given: Sequence[torch.Tensor]) -> bool:
    """Whether a call is one that computes with numbers, or orders them: neither a view, a copy nor new memory."""
    home, name = str(func).split(".")[:2]
    if home == "prim" or name in _PLAIN or "empty" in name:
        return False
    if name in _CONVERTING and {*inputs} == {x.dtype for x in given}:
        return False
    if any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns):
        return False
    return name in _ORDERS or any(dtype.is_floating_point for dtype in (*inputs, *(x.dtype for x in given)))


class TracedCalls(WatchedCalls):
    """The calls of a step while it is traced: its graph nodes are marked with them."""

    def __init__(self) -> None:
        super().__init__(self._mark)
        self.calls: list[KernelCall] = []

    def _mark(self, call: KernelCall, func: OpOverload, args: Any, kwargs: Any, given: list[torch.Tensor]) -> None:
        for number, tensor in enumerate(given):
            # Rows that a mask chooses are others in a program, which has room for all of them.
            if all(type(size) is int for size in tensor.shape) and (node := node_of(tensor)) is not None:
                node.meta[_MARK] = [*node.meta.get(_MARK, ()), (0, (len(self.calls), number))]
        self.calls.append(call)


def in_call_path(node: fx.Node, number: int) -> None:
    """Has a node's calls be those of a path, by its number."""
    if _MARK in node.meta:
        node.meta[_MARK] = [(number, one) for _, one in node.meta[_MARK]]


def note_trails(graph: fx.GraphModule, paths: Sequence[Sequence[KernelCall]]) -> None:
    """Keeps the calls of all paths with the graph that computes them."""
    graph.meta[_MARK] = [tuple(calls) for calls in paths]


OnPath = tuple[int, tuple[int, int] | str]
"""(path, (call, which of its results)), or (path, name of a state that the path changes)."""


def calls_of(node: fx.Node) -> list[OnPath]:
    """The results of calls that a graph node is."""
    found: list[OnPath] = node.meta.get(_MARK, [])
    return found


def trails_of(
    graph: fx.GraphModule, values: Mapping[OnPath, int | None], constants: Collection[int]
) -> list[CallTrail]:
    """The trails of a graph's paths. values: operators of the program, None for what is known at capture. constants:
    operators that compute from constants alone."""
    trails = []
    for number, calls in enumerate(graph.meta.get(_MARK, ())):
        own = {one: place for (path, one), place in values.items() if path == number}
        results = {one: place for one, place in own.items() if not isinstance(one, str)}
        needed = {call for (call, _), place in results.items() if place is not None and place not in constants}
        places = {one: place for one, place in results.items() if place is not None}
        following = {one: place for one, place in own.items() if isinstance(one, str) and place is not None}
        trails.append(CallTrail(calls, places, frozenset(call for call, _ in results) - needed, following))
    return trails
