"""What the trainer's and the auditor's rounding share: marking the elements near a boundary, and resolving them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from roundlog.arithmetic import round_interval
from roundlog.arithmetic.interval import interval_factor
from roundlog.kernels.marking import mark_flat, mark_product
from roundlog.operators import Inexact
from roundlog.operators.bound import Bound, FullBound, ProductBound, RelativeBound
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


def mark(y: torch.Tensor, bound: Bound, scale: float) -> tuple[torch.Tensor, Marked]:
    """Round y (f64, any shape), and mark what lies near a boundary. Where nothing is marked, the rounding is the
    correct rounding of the exact value. NaN is always marked. Returns f32 of y's shape, in memory of its own."""
    if y.device.type == "cpu":
        rounded, indices = _mark_by_kernel(y.contiguous(), bound, scale)
    else:
        rounded, indices = mark_by_reference(y, bound, scale)
    chosen = y.reshape(-1)[indices]
    d = bound.at(indices, chosen)
    low, high = round_interval(chosen, d, scale)
    return rounded, Marked(indices=indices, y=chosen, d=d, low=low, high=high)


def mark_by_reference(y: torch.Tensor, bound: Bound, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """In plain torch, on any device: (rounded, flat indices of the marked elements)."""
    low, high = round_interval(y, bound.whole(y), scale)
    return low, (low != high).reshape(-1).nonzero().squeeze(1)


def _mark_by_kernel(y: torch.Tensor, bound: Bound, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    factor = interval_factor(scale)
    if isinstance(bound, ProductBound) and y.numel():
        rows, columns = bound.rows.numpy(), bound.columns.contiguous().numpy()
        rounded, indices = mark_product(y.reshape(len(rows), columns.shape[1]).numpy(), rows, columns, factor)
    elif isinstance(bound, RelativeBound):
        rounded, indices = mark_flat(
            y.reshape(-1).numpy(), None, factor, relative=bound.relative, absolute=bound.absolute
        )
    elif isinstance(bound, FullBound):
        rounded, indices = mark_flat(y.reshape(-1).numpy(), bound.d.contiguous().numpy(), factor)
    else:
        return mark_by_reference(y, bound, scale)
    return torch.from_numpy(rounded).reshape(y.shape), torch.from_numpy(indices)


def resolve(operator: Inexact, inputs: Tensors, attributes: Attributes, marked: Marked) -> torch.Tensor:
    """f32[n]: the correct rounding of every marked element. Only those within d itself need the exact value."""
    low, high = round_interval(marked.y, marked.d)
    ambiguous = (low != high).nonzero().squeeze(1)
    if len(ambiguous):
        low[ambiguous] = operator.exact(inputs, attributes, marked.indices[ambiguous])
    return low
