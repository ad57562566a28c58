"""What the trainer's and the auditor's rounding share: marking the elements near a boundary, and resolving them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from roundlog.arithmetic import round_interval
from roundlog.operators import Inexact
from roundlog.operators.registry import Attributes, Tensors

AUDITOR_REACH = 4
"""An honest entry lies within guard * d of a boundary on the trainer's machine, so within (guard + 2) d on the
auditor's; what is beyond that covers that the two machines compute d itself in FP64. The auditor's reach is
(guard + AUDITOR_REACH) d."""

TRAINER_REACH = 7
"""A trainer writes up or down only where (guard + TRAINER_REACH) d holds a single boundary. That interval contains
the auditor's reach, so the auditor always knows which boundary is meant, and an entry can be wrong in one way only."""


class Rounding(Protocol):
    """How an executor turns the approximations of inexact operators into FP32 values."""

    def round(self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        """FP32, the correctly rounded value of every element of operator `index` of the running step."""


@dataclass(frozen=True, slots=True)
class Marked:
    """The elements of one output whose interval [y - scale d, y + scale d] holds a rounding boundary."""

    indices: torch.Tensor
    """int64[n], ascending flat indices."""
    y: torch.Tensor
    """f64[n]: the approximation there."""
    d: torch.Tensor
    """f64[n]: its bound."""
    low: torch.Tensor
    """f32[n]: the lower end of the interval, rounded."""
    high: torch.Tensor
    """f32[n]: the upper end, rounded."""


def mark(y: torch.Tensor, d: torch.Tensor, scale: float) -> tuple[torch.Tensor, Marked]:
    """Round y (f64, any shape), and mark what lies near a boundary. Where nothing is marked, the rounding is the
    correct rounding of the exact value. NaN is always marked."""
    low, high = round_interval(y, d, scale)
    indices = (low != high).reshape(-1).nonzero().squeeze(1)
    return low, Marked(
        indices=indices,
        y=y.reshape(-1)[indices],
        d=pick(d.expand(y.shape), indices),
        low=low.reshape(-1)[indices],
        high=high.reshape(-1)[indices],
    )


def pick(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """x.reshape(-1)[indices], without making a broadcast x whole."""
    if x.ndim == 0:
        return x.reshape(1)[indices]
    return x[torch.unravel_index(indices, x.shape)]


def resolve(operator: Inexact, inputs: Tensors, attributes: Attributes, marked: Marked) -> torch.Tensor:
    """f32[n]: the correct rounding of every marked element. Only those within d itself need the exact value."""
    low, high = round_interval(marked.y, marked.d)
    ambiguous = (low != high).nonzero().squeeze(1)
    if len(ambiguous):
        low[ambiguous] = operator.exact(inputs, attributes, marked.indices[ambiguous])
    return low
