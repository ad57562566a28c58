"""Largest elements of windows of different sizes, as plain tensor arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

_aten = torch.ops.aten


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.adaptive_max_pool2d.default: adaptive_max_pool2d,
        _aten.adaptive_max_pool3d.default: adaptive_max_pool3d,
    }


def adaptive_max_pool2d(x: torch.Tensor, sizes: Sequence[int]) -> Any:
    """Every window is filled up to the widest with its own last elements. Windows of one size have a rule."""
    if all(size % count == 0 for size, count in zip(x.shape[-2:], sizes, strict=True)):
        return NotImplemented
    return _largest(x, sizes)


def adaptive_max_pool3d(x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest elements of uneven windows: every window is filled up to the widest with its own last elements."""
    return _largest(x, sizes)


def _largest(x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(largest elements, where in the plane or volume the first of them stands)."""
    axes = len(sizes)
    whole = x.shape[-axes:]
    place: Any = torch.zeros((), dtype=torch.int64)
    for axis, (size, count) in enumerate(zip(whole, sizes, strict=True)):
        starts = [i * size // count for i in range(count)]
        stops = [-(-(i + 1) * size // count) for i in range(count)]
        width = max(stop - start for start, stop in zip(starts, stops, strict=True))
        rows = [[min(start + k, stop - 1) for k in range(width)] for start, stop in zip(starts, stops, strict=True)]
        # [count of the first axis, of the second, ..., width of the first, ...]
        shape = [1] * (2 * axes)
        shape[axis], shape[axes + axis] = count, width
        place = place * size + torch.tensor(rows, device=x.device).reshape(shape)
    windows = place.reshape(*sizes, -1)
    outer = x.shape[:-axes]
    values = x.reshape(*outer, prod(whole))[..., windows]
    best = values.argmax(-1, keepdim=True)
    index = windows.expand(values.shape).gather(-1, best).squeeze(-1)
    return values.gather(-1, best).squeeze(-1), index
