"""Numbers to attack operators with, and layouts to hide them in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from math import prod
from random import Random

import torch

Shape = tuple[int, ...]


def f32(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _bits(sign: int, exponent: int, fraction: int) -> float:
    return f32(sign << 31 | exponent << 23 | fraction)


LARGEST = f32(0x7F7FFFFF)
TINIEST = f32(1)
INFINITY = float("inf")

CORNERS = [
    sign * x
    for x in (
        0.0,
        TINIEST,
        f32(3),
        f32(0x007FFFFF),  # the largest subnormal
        f32(0x00800000),  # the smallest normal
        f32(0x00800001),
        2.0**-75,
        2.0**-24,
        f32(0x3EFFFFFF),
        0.5,
        f32(0x3F7FFFFF),  # just below 1
        1.0,
        f32(0x3F800001),
        1.5,
        f32(0x40400001),
        2.0**23 + 1,
        2.0**24,
        2.0**24 + 2,
        2.0**63,
        f32(0x7EFFFFFF),
        2.0**127,
        LARGEST,
    )
    for sign in (1, -1)
]
"""Finite numbers at every edge of the format, both signs."""


def normal(rng: Random) -> float:
    return rng.gauss(0, 1)


def any_finite(rng: Random) -> float:
    return _bits(rng.getrandbits(1), rng.randrange(255), rng.getrandbits(23))


def tiny(rng: Random) -> float:
    return _bits(rng.getrandbits(1), rng.randrange(1, 30), rng.getrandbits(23))


def subnormal(rng: Random) -> float:
    return _bits(rng.getrandbits(1), 0, rng.getrandbits(23))


def huge(rng: Random) -> float:
    return _bits(rng.getrandbits(1), rng.randrange(225, 255), rng.getrandbits(23))


def moderate_huge(rng: Random) -> float:
    """Large, but sums of a few thousand products stay below FP32's overflow."""
    return _bits(rng.getrandbits(1), rng.randrange(175, 183), rng.getrandbits(23))


def corner(rng: Random) -> float:
    return rng.choice(CORNERS)


_LATTICE = [2.0**e for e in (-60, -24, -23, 0, 24, 60)] + [1 + 2.0**-23, 3.0, 0.0]


def lattice(rng: Random) -> float:
    """Few magnitudes far apart: their sums cancel, tie, and miss ties by 2^-60."""
    return rng.choice((1, -1)) * rng.choice(_LATTICE)


FINITE: list[Callable[[Random], float]] = [normal, any_finite, tiny, subnormal, huge, moderate_huge, corner, lattice]


def floats(rng: Random, shape: Shape, draw: Callable[[Random], float]) -> torch.Tensor:
    return torch.tensor([draw(rng) for _ in range(prod(shape))], dtype=torch.float32).reshape(shape)


def integers(rng: Random, shape: Shape, low: int, high: int) -> torch.Tensor:
    """int64 in [low, high)."""
    values = [rng.randrange(low, high) for _ in range(prod(shape))]
    return torch.tensor(values, dtype=torch.int64).reshape(shape)


def booleans(rng: Random, shape: Shape) -> torch.Tensor:
    return torch.tensor([rng.random() < 0.5 for _ in range(prod(shape))], dtype=torch.bool).reshape(shape)


def layouts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor's elements dense, misaligned, interleaved with other numbers, and with the axes stored backwards."""
    yield tensor
    junk = torch.ones((1,), dtype=tensor.dtype)
    yield torch.cat([junk, tensor.reshape(-1)])[1:].reshape(tensor.shape)
    yield torch.stack([tensor, torch.ones_like(tensor)], -1)[..., 0]
    backwards = tuple(range(tensor.ndim))[::-1]
    yield tensor.permute(backwards).contiguous().permute(backwards)
    if tensor.ndim == 4:
        yield tensor.contiguous(memory_format=torch.channels_last)
