"""A task as data: its program, its states, its schedule, and where their values come from in the user's own step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import nn

from roundlog.capture.kernel_calls import CallTrail
from roundlog.capture.task import Task
from roundlog.program import Program
from roundlog.program.model import TRANSIENT


@dataclass(frozen=True, slots=True)
class OwnStates:
    """A task of the user's that stands where its first step begins, and its tensors that are states of a program."""

    task: Task
    tensors: dict[str, torch.Tensor]
    """State name -> the task's own tensor. Optimizer slots and large constants have none."""
    trained: dict[str, torch.Tensor]
    """Parameter name -> the task's own, of those that the optimizer changes."""
    now: Callable[[], dict[str, torch.Tensor]]
    """Gives, by state name, the tensors that stand in their places now."""
    widened: Callable[[], AbstractContextManager[None]]
    """While this is active, all FP32 tensors that the task reaches are FP64."""
    digests: Mapping[str, str]
    """State name -> digest of the elements, of those that no step stores: they lie where `Captured.states` has them."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A task as data."""

    task: Task
    """A task that the program was made of: its numbers and its data. Its steps have not been taken."""
    program: Program
    states: Mapping[str, torch.Tensor]
    """Initial state: name -> tensor, in program order."""
    schedule: torch.Tensor
    """f32[steps, columns]: what depends on the step alone (learning rates, bias corrections)."""
    origin: Origin
    begin: Callable[[], OwnStates]
    """Gives an equal task at its beginning, another one each time."""

    @property
    def own_names(self) -> list[str]:
        """Names of the states that a task has tensors of its own for."""
        return [name for name in self.states if not name.startswith(("slot/", "constant/"))]


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a program's values in the user's own step."""

    trained: tuple[str, ...]
    """Names of the parameters that the optimizer changes."""
    gradients: dict[str, int]
    """Parameter name -> the operator that gives its gradient, before clipping."""
    draws: tuple[int | None, ...] = ()
    """Operators that give the random draws, in order; None where the program has no use for one."""
    known: frozenset[str] = frozenset()
    """Names of the states whose first values are constants of the program. No step changes them."""
    trail: CallTrail = field(default_factory=CallTrail)
    """Calls of PyTorch's kernels."""

    def observed(self) -> set[int]:
        """Return the operators that draw."""
        return {place for place in self.draws if place is not None}

    def drawn(self, kept: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
        """Return the random numbers of the user's own step, in order. kept: what the operators that draw give in it."""
        return [None if place is None else kept[place] for place in self.draws]


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
