"""Complex tensors and their two parts."""

from __future__ import annotations

from typing import Any

import torch


def pair_of(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part, of a number or a tensor, complex or not."""
    if isinstance(x, torch.Tensor) and x.is_complex():
        real = torch.view_as_real(x)
        return real.select(-1, 0), real.select(-1, 1)
    if isinstance(x, complex):
        return x.real, x.imag
    return x, None


def join(real: Any, imaginary: Any) -> torch.Tensor:
    """The complex tensor of two parts, one of which may be a number; no imaginary part is zero."""
    if not isinstance(imaginary, torch.Tensor):
        imaginary = torch.full_like(real, imaginary or 0.0)
    elif not isinstance(real, torch.Tensor):
        real = torch.full_like(imaginary, real)
    real, imaginary = torch.broadcast_tensors(real, imaginary)
    return torch.view_as_complex(torch.stack([real, imaginary], dim=-1))


def axis_of(dim: int, rank: int) -> int:
    """An axis given from either end."""
    return dim % rank if rank else 0
