"""Course of a job whose steps are not all the same: which of several traced steps each is, and the numbers of Python
that it computes with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import fx

NUMBERS = 48
"""Most numbers of Python's that change from step to step and that one step gives to operators of tensors."""

MOST_STEPS = 16
"""Largest number of different steps that are traced: beyond it, a step counts as another one every time."""


@dataclass(frozen=True, slots=True)
class Course:
    """Steps of a job, 0, 1, ..., in terms of those that were traced."""

    graphs: tuple[fx.GraphModule, ...]
    """Traced steps, the first one first."""
    graph_of: NDArray[np.int64]
    """i64[steps]: number of the graph that a step is."""
    numbers: NDArray[np.float64]
    """f64[steps, NUMBERS]: the values of the graph's columns; zeros where it uses fewer."""
    plain: tuple[tuple[int, fx.GraphModule], ...] = ()
    """(step, its graph with the numbers of that step themselves), to be held against the others."""
