"""Measures of sums of FP32 numbers, by which their FP64 sums are bounded: magnitudes, and the last places of terms
(docs/numerics.md). On any device."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F

from roundlog.kernels.reducing import NO_TERM, bound_sums
from roundlog.operators.summation import Measures
from roundlog.operators.terms import BLOCK_TERMS


def reduced(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if dim in dims else size for dim, size in enumerate(shape))


NO_ZERO = 0x7FFFFFFF


def last_place(bits: torch.Tensor) -> torch.Tensor:
    """Integers -> integers: the last place that a significand with this fraction (23 bits) uses, 1 to 2^23."""
    fraction = (bits & 0x7FFFFF) | 0x800000
    return fraction & -fraction


def magnitude_bits(x: torch.Tensor) -> torch.Tensor:
    """int32 of x's shape: magnitudes as bits; the largest number for a zero."""
    bits = x.contiguous().view(torch.int32) & NO_ZERO
    return bits.masked_fill_(bits == 0, NO_ZERO)


def less_one(bits: torch.Tensor) -> torch.Tensor:
    """int32 -> int64: the least of `magnitude_bits` as `roundlog.kernels.reducing` has it."""
    return torch.where(bits == NO_ZERO, NO_TERM, bits.to(torch.int64) - 1)


def sum_by_torch(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, Measures]:
    """The sum and its measures on any device and over any axes, which are kept."""
    shape, kept = reduced(tuple(x.shape), dims), [dim for dim in range(x.ndim) if dim not in dims]
    lines = x.permute((*kept, *dims)).reshape(prod(shape), prod(x.shape[dim] for dim in dims))
    wide = lines.to(torch.float64)
    total, magnitude = _in_blocks(wide), _in_blocks(wide.abs())
    if lines.shape[1]:
        least = less_one(magnitude_bits(lines).amin(1))
        finest = last_place(lines.contiguous().view(torch.int32)).amin(1).to(torch.int64)
    else:
        least, finest = torch.full_like(total, NO_TERM, dtype=torch.int64), torch.ones_like(total, dtype=torch.int64)
    return total.reshape(shape), tuple(one.reshape(shape) for one in (magnitude, least, finest))


def _in_blocks(wide: torch.Tensor) -> torch.Tensor:
    """f64[R, K] -> f64[R]: sums in blocks, whose sums are taken in blocks again (`sum_depth`)."""
    for _ in range(2):
        if wide.shape[1] <= BLOCK_TERMS:
            break
        # Not by reshape(R, -1, ...): how many blocks there are cannot be told from no elements at all.
        wide = F.pad(wide, (0, -wide.shape[1] % BLOCK_TERMS)).unflatten(1, (-1, BLOCK_TERMS)).sum(2)
    return wide.sum(1)


def bound_of_sums(measures: Measures, factor: float | torch.Tensor) -> torch.Tensor:
    """f64[n]: `roundlog.kernels.reducing.bound_sums`, on any device."""
    magnitude, least, finest = (one.reshape(-1) for one in measures)
    if magnitude.device.type == "cpu" and not isinstance(factor, torch.Tensor):
        sizes, bits, places = (one.contiguous().numpy() for one in (magnitude, least, finest))
        return torch.from_numpy(bound_sums(sizes, bits, places, factor))
    place = ((least + 1) >> 23).clamp(min=1) - 150 + torch.frexp(finest.to(torch.float64)).exponent - 1
    # A number is below 2^k if its exponent, of a fraction below 1, is at most k.
    exact = (torch.frexp(magnitude).exponent <= place + 53) & magnitude.isfinite()
    return torch.where(exact | (least == NO_TERM), 0.0, magnitude * factor)
