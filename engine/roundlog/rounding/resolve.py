"""What the trainer's and the auditor's rounding share: the ends of intervals, and the elements in doubt resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from roundlog.arithmetic import FULL_BITS, adjacent, round_interval
from roundlog.arithmetic.interval import interval_factor
from roundlog.kernels.deciding import ends as ends_by_kernel
from roundlog.kernels.deciding import judge as judge_by_kernel
from roundlog.operators import Inexact
from roundlog.operators.marking import Marked, mark_by_reference
from roundlog.operators.registry import Attributes, Tensors

AUDITOR_REACH = 4
"""An honest entry lies within guard * d of a boundary on the trainer's machine, so within (guard + 2) d on the
auditor's; what is beyond that covers that the two machines compute d itself in FP64. The auditor's reach is
(guard + AUDITOR_REACH) d."""

TRAINER_REACH = 7
"""A trainer writes up or down only where (guard + TRAINER_REACH) d holds a single boundary. That interval contains
the auditor's reach, so the auditor always knows which boundary is meant, and an entry can be wrong in one way only."""


AT_ONCE = 1 << 16
"""Marked elements that are decided at once: where hostile data mark them all, that takes little memory."""


def pieces(marked: Marked) -> list[Marked]:
    """So many at a time, in order: views."""
    return [marked.of(slice(start, start + AT_ONCE)) for start in range(0, len(marked.indices), AT_ONCE)]


class Rounding(Protocol):
    """How an executor turns the approximations of inexact operators into FP32 values."""

    def round(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes
    ) -> tuple[torch.Tensor, bool]:
        """(FP32, the correctly rounded value of every element of operator `index` of the running step; whether they
        are all finite)."""


def certify(
    operator: Inexact, inputs: Tensors, attributes: Attributes, scale: float, bits: int
) -> tuple[torch.Tensor, Marked]:
    """`Inexact.certify`, to `bits` bits: the compiled kernels know FP32 alone."""
    if bits == FULL_BITS:
        return operator.certify(inputs, attributes, scale)
    return mark_by_reference(*operator.evaluate(inputs, attributes), scale, bits)


def ends(marked: Marked, scale: float = 1.0, bits: int = FULL_BITS) -> tuple[torch.Tensor, torch.Tensor]:
    """f32[n], f32[n]: y - scale d and y + scale d of every marked element, rounded."""
    if bits != FULL_BITS:
        return round_interval(marked.y, marked.d, scale, bits)
    low, high = ends_by_kernel(marked.y.numpy(), marked.d.numpy(), interval_factor(scale))
    return torch.from_numpy(low), torch.from_numpy(high)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a trainer needs to know of every marked element, to resolve it and to write it down."""

    low: torch.Tensor
    """f32[n]: y - d, rounded."""
    doubtful: torch.Tensor
    """bool[n]: y - d and y + d round to different numbers."""
    upper: torch.Tensor
    """f32[n]: y + guard d, rounded."""
    two: torch.Tensor
    """bool[n]: (guard + TRAINER_REACH) d holds a single boundary."""


def judge(marked: Marked, guard: float, bits: int = FULL_BITS) -> Judged:
    """All of it in one loop where there is a kernel for it."""
    far = guard + TRAINER_REACH
    if bits != FULL_BITS:
        low, high = ends(marked, bits=bits)
        return Judged(low, low != high, ends(marked, guard, bits)[1], adjacent(*ends(marked, far, bits), bits))
    factors = (interval_factor(scale) for scale in (1.0, guard, far))
    parts = judge_by_kernel(marked.y.numpy(), marked.d.numpy(), *factors)
    low, upper, doubtful, two = (torch.from_numpy(part) for part in parts)
    return Judged(low, doubtful, upper, two)


def resolve(
    operator: Inexact, inputs: Tensors, attributes: Attributes, marked: Marked, bits: int = FULL_BITS
) -> torch.Tensor:
    """f32[n]: the correct rounding of every marked element. Only those within d itself need the exact value."""
    low, high = ends(marked, bits=bits)
    return resolved(operator, inputs, attributes, marked, low, low != high, bits)


def resolved(
    operator: Inexact,
    inputs: Tensors,
    attributes: Attributes,
    marked: Marked,
    low: torch.Tensor,
    doubtful: torch.Tensor,
    bits: int = FULL_BITS,
) -> torch.Tensor:
    """low, with the correct roundings in place of those that are doubtful."""
    ambiguous = doubtful.nonzero().squeeze(1)
    if len(ambiguous):
        low[ambiguous] = operator.exact(inputs, attributes, marked.indices[ambiguous], bits)
    return low


def give_up(
    operator: Inexact,
    inputs: Tensors,
    attributes: Attributes,
    rounded: torch.Tensor,
    marked: Marked,
    bits: int = FULL_BITS,
) -> bool:
    """Whether an approximation is NaN or infinite. Then there is nothing to write down; NaN is put there, and what
    comes before the first of them is made right."""
    finite = marked.y.isfinite()
    if finite.all():
        return False
    first = marked.indices[~finite][0]
    before = marked.of(marked.indices < first)
    put(rounded, before.indices, resolve(operator, inputs, attributes, before, bits))
    put(rounded, marked.indices[~finite], torch.full((1,), torch.nan))
    return True


def put(rounded: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> None:
    """Put values (f32[n] or f32[1]) at flat indices (int64[n]) of an output on any device."""
    rounded.view(-1)[indices.to(rounded.device)] = values.to(rounded.device)
