"""Complex tensors as pairs of real ones, and their discrete Fourier transforms as products of real matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from roundlog.capture.errors import CaptureError


def pair_of(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part, of a number or a tensor, complex or not."""
    if isinstance(x, torch.Tensor) and x.is_complex():
        real = torch.view_as_real(x)
        return real.select(-1, 0), real.select(-1, 1)
    if isinstance(x, complex):
        return x.real, x.imag
    return x, None


def join(real: Any, imaginary: Any) -> torch.Tensor:
    """The complex tensor of two parts. One may be a number; no imaginary part is zero."""
    if not isinstance(imaginary, torch.Tensor):
        imaginary = torch.full_like(real, imaginary or 0.0)
    elif not isinstance(real, torch.Tensor):
        real = torch.full_like(imaginary, real)
    real, imaginary = torch.broadcast_tensors(real, imaginary)
    return torch.view_as_complex(torch.stack([real, imaginary], dim=-1))


def axis_of(dim: int, rank: int) -> int:
    """An axis given from either end."""
    return dim % rank if rank else 0


MAX_TRANSFORMED = 1 << 11
"""The longest axis of a discrete Fourier transform: it is a product with a matrix of its square."""


def _factors(length: int, like: torch.Tensor, *, forward: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices of cosines and sines, f32[length, length], each number rounded once from FP64."""
    if length > MAX_TRANSFORMED:
        raise CaptureError(
            f"takes the Fourier transform of an axis of {length}, which is a matrix here: use at most {MAX_TRANSFORMED}"
        )
    turn = (-1 if forward else 1) * 2 * math.pi / length
    # Angles are reduced while they are integers, so that they are exact.
    places = torch.arange(length, dtype=torch.int64, device=like.device)
    angles = (torch.outer(places, places) % length).double() * turn
    return angles.cos().float(), angles.sin().float()


def _along(x: torch.Tensor, matrix: torch.Tensor, dim: int) -> torch.Tensor:
    return (x.movedim(dim, -1) @ matrix).movedim(-1, dim)


def _transformed(
    pair: tuple[torch.Tensor, torch.Tensor | None], dim: int, *, forward: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    real, imaginary = pair
    cos, sin = _factors(real.shape[dim], real, forward=forward)
    if imaginary is None:
        return _along(real, cos, dim), _along(real, sin, dim)
    return (
        _along(real, cos, dim) - _along(imaginary, sin, dim),
        _along(real, sin, dim) + _along(imaginary, cos, dim),
    )


def _scale(sizes: Sequence[int], normalization: int) -> float:
    """PyTorch's three ways: 0 as it is, 1 by the root of the size, 2 by the size."""
    total = math.prod(sizes)
    return 1.0 if normalization == 0 else 1 / math.sqrt(total) if normalization == 1 else 1 / total


def _scaled(pair: tuple[torch.Tensor, torch.Tensor], factor: float) -> torch.Tensor:
    return join(*pair) if factor == 1 else join(pair[0] * factor, pair[1] * factor)


def c2c(x: torch.Tensor, dims: Sequence[int], normalization: int, forward: bool) -> torch.Tensor:
    pair = pair_of(x)
    for dim in dims:
        pair = _transformed(pair, axis_of(dim, x.ndim), forward=forward)
    return _scaled(pair, _scale([x.shape[d] for d in dims], normalization))


def r2c(x: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> torch.Tensor:
    last = axis_of(dims[-1], x.ndim)
    pair: tuple[torch.Tensor, torch.Tensor | None] = (x, None)
    for dim in reversed(dims):
        pair = _transformed(pair, axis_of(dim, x.ndim), forward=True)
        if onesided and dim == dims[-1]:
            pair = tuple(part.narrow(last, 0, x.shape[last] // 2 + 1) for part in pair if part is not None)  # type: ignore[assignment]
    assert pair[1] is not None
    return _scaled((pair[0], pair[1]), _scale([x.shape[d] for d in dims], normalization))


def c2r(x: torch.Tensor, dims: Sequence[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    """The second half of the last axis is the first one, conjugate and reversed."""
    last = axis_of(dims[-1], x.ndim)
    pair = pair_of(x)
    for dim in dims[:-1]:
        pair = _transformed(pair, axis_of(dim, x.ndim), forward=False)
    real, imaginary = pair
    half, n = last_dim_size // 2 + 1, last_dim_size
    real, imaginary = real.narrow(last, 0, half), imaginary.narrow(last, 0, half)
    cos, sin = _factors(n, real, forward=False)
    # A frequency counts twice unless it is its own mirror image, whose imaginary part counts nothing.
    twice = torch.tensor([1.0 if k in (0, n - k) else 2.0 for k in range(half)], device=real.device)
    found = _along(real, twice[:, None] * cos[:half], last) - _along(imaginary, twice[:, None] * sin[:half], last)
    sizes = [x.shape[d] for d in dims[:-1]] + [n]
    factor = _scale(sizes, normalization)
    return found if factor == 1 else found * factor
