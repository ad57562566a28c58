"""Calls of PyTorch's kernels by which a step computes its losses and gradients: as the trace has seen them, before they
are taken apart, and as the user's own step makes them.

Where numbers have fewer than 32 bits, a cast that only one of the two makes is an error that no comparison of losses
would find. The calls say by name and dtypes whether both compute the same, and every result of one has a place in the
program, where it can be compared by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roundlog.capture.constants import node_of

_MARK, _READ = "roundlog_calls", "roundlog_reads"

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

_ORDERS = frozenset(("sort", "topk"))


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
    """The calls of a step."""

    calls: tuple[KernelCall, ...] = ()
    places: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(call, which of its results) -> the operator of the program that gives it. What is known at capture, or needed
    for nothing, has none."""
    following: Mapping[str, int] = field(default_factory=dict)
    """State name -> the operator that gives its next value."""
    arguments: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(call, which of its tensors) -> the operator that gives what the call is given, where one does."""


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
        read = [] if func._schema.is_mutable else _tensors((args, kwargs))
        for mark, tensors in ((_MARK, given), (_READ, read)):
            for number, tensor in enumerate(tensors):
                if (node := node_of(tensor)) is not None:
                    node.meta[mark] = [*node.meta.get(mark, ()), (len(self.calls), number)]
        self.calls.append(call)


Result = tuple[int, int] | str
"""(call, which of its results), or the name of a state that the step changes."""


def calls_of(node: fx.Node, *, arguments: bool = False) -> list[tuple[int, int]]:
    """The results of calls that a graph node is; or their arguments, by their numbers among the tensors of each."""
    found: list[tuple[int, int]] = node.meta.get(_READ if arguments else _MARK, [])
    return found


def trail_of(
    calls: Sequence[KernelCall], values: Mapping[Result, int | None], arguments: Mapping[tuple[int, int], int]
) -> CallTrail:
    """The trail of a traced step. calls: in order. values: operators of the program, None for what is known at
    capture. arguments: those that give what calls are given."""
    found = {one: place for one, place in values.items() if place is not None}
    places = {one: place for one, place in found.items() if not isinstance(one, str)}
    return CallTrail(
        tuple(calls), places, {one: place for one, place in found.items() if isinstance(one, str)}, arguments
    )
