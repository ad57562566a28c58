"""Rounding FP64 values and intervals to FP32, or to fewer bits."""

from __future__ import annotations

import torch

from roundlog.arithmetic.bits import FULL_BITS, round_to_bits

UNIT_F64 = 2.0**-53
"""Unit roundoff of binary64: one correctly rounded operation errs by at most this, relatively."""


def round_f32(y: torch.Tensor) -> torch.Tensor:
    """FP64 tensor -> FP32, to nearest, ties to even (IEEE 754-2019, 4.3.1); a zero result is +0."""
    return y.to(torch.float32).add_(0.0)


def round_interval(
    y: torch.Tensor, d: torch.Tensor, scale: float = 1.0, bits: int = FULL_BITS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round both ends of [y - scale*d, y + scale*d] to `bits` bits, with d broadcastable to y, d >= 0, all FP64.

    The ends are computed outwards: the subtraction itself errs by at most u*|y -+ d|, which the added multiple
    of |y| covers. Rounding is monotone, so equal results mean that every number of the interval rounds there.
    """
    # Two operations, never one with a factor: torch may contract that to FMA, on some machines.
    reach = d * interval_factor(scale) + y.abs() * (2 * UNIT_F64)
    return round_to_bits(y - reach, bits), round_to_bits(y + reach, bits)


def interval_factor(scale: float) -> float:
    """`scale`, widened for the rounding of its product with d."""
    return scale * (1 + 2.0**-40)
