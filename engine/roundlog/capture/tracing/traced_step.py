"""A traced step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from roundlog.capture.tracing.course import Course


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A traced step. The graph's placeholders are the leaves of (states, columns, numbers, batch) in this order; its
    output is the result of `paths.merged`, whose next states are in the order of `states`."""

    graph: fx.GraphModule
    states: dict[str, torch.Tensor]
    """Initial state: parameters, buffers, attributes, optimizer slots, in program order."""
    columns: tuple[str, ...]
    """Names of the schedule's columns."""
    schedule: torch.Tensor
    """f32[steps, columns]: what depends on the step alone (learning rates, bias corrections)."""
    trained: dict[str, torch.Tensor]
    """The user's own parameters that the optimizer changes, by name."""
    gradients: tuple[str, ...]
    """Names of those that have one on some path."""
    known: frozenset[str] = frozenset()
    """Names of the buffers that are constants of the graph."""
    course: Course | None = None
    """The steps of the job, if they are not all this one."""
