"""Rounding FP64 values and intervals to FP32."""

from __future__ import annotations

import torch

UNIT_F64 = 2.0**-53
"""Unit roundoff of binary64: one correctly rounded operation errs by at most this, relatively."""

_INT32_MIN = -(2**31)


def round_f32(y: torch.Tensor) -> torch.Tensor:
    """FP64 tensor -> FP32, to nearest, ties to even (IEEE 754-2019, 4.3.1); a zero result is +0."""
    return y.to(torch.float32).add_(0.0)


def round_interval(y: torch.Tensor, d: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Round both ends of [y - scale*d, y + scale*d] to FP32, with d broadcastable to y, d >= 0, all FP64.

    The ends are computed outwards: the subtraction itself errs by at most u*|y -+ d|, which the added multiple
    of |y| covers. Rounding is monotone, so equal results mean that every number of the interval rounds there.
    """
    # Two operations, never one with a factor: torch may contract that to FMA, on some machines.
    reach = d * interval_factor(scale) + y.abs() * (2 * UNIT_F64)
    return round_f32(y - reach), round_f32(y + reach)


def interval_factor(scale: float) -> float:
    """`scale`, widened for the rounding of its product with d."""
    return scale * (1 + 2.0**-40)


def ordinal(x: torch.Tensor) -> torch.Tensor:
    """FP32 -> int64, strictly monotone over the finite numbers, adjacent numbers one apart, -0 and +0 both 0."""
    bits = x.view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, _INT32_MIN - bits, bits)


def adjacent(lo: torch.Tensor, hi: torch.Tensor) -> torch.Tensor:
    """Whether hi is the next FP32 number above lo, elementwise."""
    return ordinal(hi) - ordinal(lo) == 1
