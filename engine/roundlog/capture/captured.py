"""A task as data: its program, its states, its schedule, and where their values come from in the user's own step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from roundlog.capture.kernel_calls import CallTrail
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
