"""Rounding of FP64 values and intervals to a format of numbers, whole tensors at a time.

While they are computed, numbers of a format are the FP32 numbers that they are; BF16 and FP16 are kept as dtypes of
their own (`held`). Rounding is to nearest, ties to even (IEEE 754-2019, 4.3.1), once, from FP64.
"""

from __future__ import annotations

import torch

from roundlog.number_format import FLOAT32, Format
from roundlog.program import DType

_INT32_MIN = -(2**31)

_SHORT = {
    format: dtype.torch_dtype for dtype in DType if dtype.is_short and (format := dtype.number_format()) is not None
}
_SHORT_DTYPES = frozenset(_SHORT.values())


def torch_dtype(format: Format) -> torch.dtype:
    """The dtype of tensors that hold numbers of a format: FP32's, unless there is one of its own."""
    return _SHORT.get(format, torch.float32)


def format_of(dtype: torch.dtype) -> Format:
    """The format of a torch dtype. Raises ValueError where there is none."""
    for format in (FLOAT32, *_SHORT):
        if torch_dtype(format) == dtype:
            return format
    raise ValueError(f"{dtype} is no format: use float32, bfloat16 or float16")


def is_short(dtype: torch.dtype) -> bool:
    """Whether it is one of the formats of 16 bits, BF16 and FP16, so that every operator on its numbers rounds."""
    return dtype in _SHORT_DTYPES


def as_dtype(x: torch.Tensor, format: Format) -> torch.Tensor:
    """Numbers of the format, as FP32 or of its dtype -> the same numbers, of its dtype; the one NaN stays that."""
    dtype = torch_dtype(format)
    if dtype == torch.bfloat16 and x.dtype == torch.float32:
        # PyTorch's conversion makes other NaNs. All numbers are the upper halves of FP32's words.
        return (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return x if x.dtype == dtype else x.to(dtype)


def as_float32(x: torch.Tensor) -> torch.Tensor:
    """Numbers of any format -> the same numbers as FP32; integers and bool as they are."""
    return x.to(torch.float32) if is_short(x.dtype) else x


def round_to(y: torch.Tensor, format: Format) -> torch.Tensor:
    """FP64 tensor -> FP32 numbers of the format, to nearest, ties to even; overflow gives infinity, a zero +0."""
    return round_signed(y, format).add_(0.0)


def round_signed(y: torch.Tensor, format: Format) -> torch.Tensor:
    """`round_to`, but a zero keeps the sign of what was rounded, as IEEE 754 has it."""
    if format == FLOAT32:
        return y.to(torch.float32)
    # Normal numbers: the fraction of binary64 has 52 bits, and carrying into the exponent is what rounding up does.
    shift = 52 - format.fraction_bits
    words = y.contiguous().view(torch.int64)
    half = ((words >> shift) & 1) + ((1 << (shift - 1)) - 1)
    nearest = (((words + half) >> shift) << shift).view(torch.float64)
    # Subnormal numbers stand one place apart; scaling by a power of two is exact.
    place = format.least_place
    small = (y * 2.0**-place).round() * 2.0**place
    nearest = torch.where(y.abs() < 2.0**format.least_exponent, small, nearest)
    if format.limit < FLOAT32.limit:
        nearest = torch.where(nearest.abs() >= format.limit, nearest * torch.inf, nearest)
    return torch.where(y.isfinite(), nearest, y).to(torch.float32)


def ordinal(x: torch.Tensor, format: Format = FLOAT32) -> torch.Tensor:
    """FP32 numbers of the format -> int64, strictly monotone over the numbers, adjacent ones one apart, -0 and +0 both
    0."""
    words = x.contiguous().view(torch.int32).to(torch.int64)
    words = torch.where(words < 0, _INT32_MIN - words, words)
    if format.exponent_bits == FLOAT32.exponent_bits:
        return words >> _dropped(format)
    # FP32's encoding without the dropped bits is the format's, but for the bias, which narrower exponents have smaller.
    places = ((words.abs() >> _dropped(format)) - _rebias(format)).clamp_(max=format.infinity)
    small = (x.abs() * 2.0**-format.least_place).clamp_(max=1 << format.fraction_bits).to(torch.int64)
    places = torch.where(x.abs() < 2.0**format.least_exponent, small, places)
    return torch.where(words < 0, -places, places)


def neighbour(x: torch.Tensor, direction: int, format: Format) -> torch.Tensor:
    """The next number of the format above (direction 1) or below (-1) x, FP32 numbers of the format; infinity lies
    next to the largest finite one, and nothing beyond it; a zero is +0."""
    moved = (ordinal(x, format) + direction).clamp_(-format.infinity, format.infinity)
    places = moved.abs()
    words = (places + _rebias(format)) << _dropped(format)
    if format.least_exponent > FLOAT32.least_exponent:
        words = words.masked_fill_(places == format.infinity, FLOAT32.infinity)
        small = (places.to(torch.float32) * 2.0**format.least_place).view(torch.int32)
        words = torch.where(places < 1 << format.fraction_bits, small, words)
    words = torch.where(moved < 0, _INT32_MIN + words, words)
    return words.to(torch.int32).view(torch.float32)


def _dropped(format: Format) -> int:
    """Trailing FP32 bits that are zero in every normal number of the format."""
    return FLOAT32.fraction_bits - format.fraction_bits


def _rebias(format: Format) -> int:
    """Difference of the encodings of a normal number, as that of FP32 without the dropped bits and as the format's."""
    return (FLOAT32.largest_exponent - format.largest_exponent) << format.fraction_bits


def adjacent(low: torch.Tensor, high: torch.Tensor, format: Format = FLOAT32) -> torch.Tensor:
    """Whether high is the next number of the format above low, elementwise; both are of the format."""
    return ordinal(high, format) - ordinal(low, format) == 1


def in_format(x: torch.Tensor, format: Format) -> torch.Tensor:
    """Whether FP32 numbers are of the format, elementwise. None may be NaN."""
    if format.exponent_bits == FLOAT32.exponent_bits:
        return x.contiguous().view(torch.int32) & ((1 << _dropped(format)) - 1) == 0
    return round_signed(x.to(torch.float64), format) == x


UNIT_F64 = 2.0**-53
"""Unit roundoff of binary64: one correctly rounded operation errs by at most this, relatively."""


def round_interval(
    y: torch.Tensor, d: torch.Tensor, scale: float = 1.0, format: Format = FLOAT32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round both ends of [y - scale*d, y + scale*d] to a format, with d broadcastable to y, d >= 0, all FP64.

    The ends are computed outwards: the subtraction itself errs by at most u*|y -+ d|, which the added multiple
    of |y| covers. Rounding is monotone, so equal results mean that every number of the interval rounds there.
    """
    # Two operations, never one with a factor: torch may contract that to FMA, on some machines.
    reach = d * interval_factor(scale) + y.abs() * (2 * UNIT_F64)
    return round_to(y - reach, format), round_to(y + reach, format)


def interval_factor(scale: float) -> float:
    """`scale`, widened for the rounding of its product with d."""
    return scale * (1 + 2.0**-40)
