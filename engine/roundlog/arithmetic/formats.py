"""Formats of fewer than 32 bits inside FP32 (8 bits of exponent and b_r - 9 of fraction, b_r = 23 .. 32), and the
rounding of FP64 values and intervals to them.

The numbers of the format are the FP32 numbers whose last 32 - b_r bits are zero, subnormal ones among them. Rounding is
to nearest, ties to even (IEEE 754-2019, 4.3.1), once, from FP64.
"""

from __future__ import annotations

import torch

FULL_BITS = 32
MIN_BITS = 23

_INT32_MIN = -(2**31)
_INFINITY = 0x7F800000


def dropped(bits: int) -> int:
    """Trailing FP32 bits that are zero in every number of the format."""
    return FULL_BITS - bits


def round_to_bits(y: torch.Tensor, bits: int) -> torch.Tensor:
    """FP64 tensor -> FP32 numbers of the format, to nearest, ties to even; overflow gives infinity, a zero +0."""
    return round_signed(y, bits).add_(0.0)


def round_signed(y: torch.Tensor, bits: int) -> torch.Tensor:
    """`round_to_bits`, but a zero keeps the sign of what was rounded, as IEEE 754 has it."""
    if bits == FULL_BITS:
        return y.to(torch.float32)
    # Normal numbers: the fraction of binary64 has 52 bits, and carrying into the exponent is what rounding up does.
    shift = 52 - (bits - 9)
    words = y.contiguous().view(torch.int64)
    half = ((words >> shift) & 1) + ((1 << (shift - 1)) - 1)
    nearest = (((words + half) >> shift) << shift).view(torch.float64)
    # Below 2^-126 the numbers of the format stand 2^(dropped - 149) apart; scaling by a power of two is exact.
    place = 149 - dropped(bits)
    small = (y * 2.0**place).round() * 2.0**-place
    nearest = torch.where(y.abs() < 2.0**-126, small, nearest)
    return torch.where(y.isfinite(), nearest, y).to(torch.float32)


def ordinal(x: torch.Tensor) -> torch.Tensor:
    """FP32 -> int64, strictly monotone over the numbers, adjacent FP32 numbers one apart, -0 and +0 both 0."""
    words = x.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(words < 0, _INT32_MIN - words, words)


def neighbour(x: torch.Tensor, direction: int, bits: int) -> torch.Tensor:
    """The next number of the format above (direction 1) or below (-1) x, FP32 numbers of the format; infinity lies
    next to the largest finite one, and nothing beyond it; a zero is +0."""
    moved = (ordinal(x) + direction * (1 << dropped(bits))).clamp_(-_INFINITY, _INFINITY)
    words = torch.where(moved < 0, _INT32_MIN - moved, moved)
    return words.to(torch.int32).view(torch.float32)


def adjacent(low: torch.Tensor, high: torch.Tensor, bits: int = FULL_BITS) -> torch.Tensor:
    """Whether high is the next number of the format above low, elementwise; both are of the format."""
    return ordinal(high) - ordinal(low) == 1 << dropped(bits)


def in_format(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Whether FP32 numbers are of the format, elementwise."""
    return (x.contiguous().view(torch.int32) & ((1 << dropped(bits)) - 1)) == 0


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
