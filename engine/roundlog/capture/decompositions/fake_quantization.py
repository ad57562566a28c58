"""Weights and activations that training rounds as if they were integers already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    return {
        _aten.fake_quantize_per_tensor_affine_cachemask.default: _by_numbers,
        _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _by_tensors,
        _aten.fake_quantize_per_channel_affine_cachemask.default: _by_channels,
    }


def _by_numbers(
    x: torch.Tensor, scale: float, zero_point: int, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """round(x / scale) + zero point, held between the least and the most integer, and back; 1 / scale is rounded
    first, as PyTorch does."""
    return _rounded(x, torch.full((), scale, dtype=x.dtype, device=x.device), zero_point, least, most)


def _by_tensors(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    y, inside = _rounded(x, scale.reshape(()), zero_point.reshape(()).to(x.dtype), least, most)
    on = enabled.reshape(()) != 0
    return torch.where(on, y, x), inside | ~on


def _by_channels(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = [-1 if dim == axis else 1 for dim in range(x.ndim)]
    return _rounded(x, scale.reshape(shape), zero_point.to(x.dtype).reshape(shape), least, most)


def _rounded(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | int, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounded values, and where they were between the bounds."""
    whole = torch.round(x * (1.0 / scale)) + zero_point
    return (whole.clamp(least, most) - zero_point) * scale, (whole >= least) & (whole <= most)
