"""A task as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from roundlog.capture.ways import Way
from roundlog.program import Program


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
    """Differences from path to path through the step."""
    known: frozenset[str] = frozenset()
    """Names of the states whose first values are constants of the program. No step changes them."""

    def observed(self) -> set[int]:
        """The operators that say what a step draws: those that draw, their masks, and the conditions of its paths."""
        return self.ways.operators()

    def drawn(self, kept: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
        """Random numbers of the user's own step, in order: of rows that a mask chooses, those alone; None where the
        program has no use for it. kept: what the operators of `observed` give in it."""
        found: list[torch.Tensor | None] = []
        for one in self.ways.taken(lambda index: bool(kept[index])).drawn:
            tensor = None if one is None else kept[one.operator]
            for axis, mask in enumerate(() if one is None else one.masks):
                if tensor is not None and mask is not None:
                    tensor = tensor.index_select(axis, kept[mask].nonzero().squeeze(1))
            found.append(tensor)
        return found
