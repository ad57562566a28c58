"""A traced step, and the course of a job whose steps are not all the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

NUMBERS = 48
"""Most numbers of Python's that change from step to step and that one step gives to operators of tensors."""

MOST_STEPS = 16
"""Largest number of different steps that are traced: beyond it, a step counts as another one every time."""


@dataclass(frozen=True, slots=True)
class Course:
    """Steps of a job, 0, 1, ...: which of several traced steps each is, and the numbers of Python that it computes
    with."""

    graphs: tuple[fx.GraphModule, ...]
    """Traced steps, the first one first."""
    graph_of: NDArray[np.int64]
    """i64[steps]: number of the graph that a step is."""
    numbers: NDArray[np.float64]
    """f64[steps, NUMBERS]: the values of the graph's columns; zeros where it uses fewer."""
    plain: tuple[tuple[int, fx.GraphModule], ...] = ()
    """(step, its graph with the numbers of that step themselves), to be held against the others."""


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
