"""Layers that are one operator of PyTorch, as plain tensor arithmetic: adaptive max pooling, bags of embeddings, and
fake quantization, by which training rounds weights and activations as if they were integers already."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from roundlog.capture.errors import CaptureError

_aten = torch.ops.aten


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.adaptive_max_pool2d.default: adaptive_max_pool2d,
        _aten.adaptive_max_pool3d.default: adaptive_max_pool3d,
        _aten._embedding_bag.default: _bag,
        _aten._embedding_bag_forward_only.default: _bag,
        _aten._embedding_bag_backward.default: _bag_backward,
        _aten._embedding_bag_per_sample_weights_backward.default: _bag_weights_backward,
        _aten.fake_quantize_per_tensor_affine_cachemask.default: _by_numbers,
        _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _by_tensors,
        _aten.fake_quantize_per_channel_affine_cachemask.default: _by_channels,
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


_SUM, _MEAN, _MAX = 0, 1, 2
_LOWEST = -3.0e38
"""Lower bound of all embeddings."""


def _bags(indices: torch.Tensor, offsets: torch.Tensor, *, last: bool) -> tuple[torch.Tensor, int]:
    """(which bag every index is in, how many bags there are)."""
    count = offsets.shape[0] - last
    places = torch.arange(indices.shape[0], device=indices.device)
    return (places[:, None] >= offsets[None, :count]).sum(1) - 1, count


def _bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    if scale_grad_by_freq:
        raise CaptureError("EmbeddingBag scales gradients by frequency: make it with scale_grad_by_freq=False")
    bag, count = _bags(indices, offsets, last=include_last_offset)
    rows = weight[indices]
    used = indices != padding_idx
    sizes = torch.zeros(count, device=weight.device).index_add(0, bag, used.to(weight.dtype))
    if mode == _MAX:
        own = (bag == torch.arange(count, device=bag.device)[:, None]) & used
        candidates = torch.where(own[:, :, None], rows, _LOWEST)
        values, places = candidates.max(1)
        empty = (sizes == 0)[:, None]
        chosen = torch.where(empty, -1, indices[places])
        return torch.where(empty, 0.0, values), bag, sizes.long(), chosen
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    rows = torch.where(used[:, None], rows, 0.0)
    total = torch.zeros(count, weight.shape[1], device=weight.device).index_add(0, bag, rows)
    if mode == _MEAN:
        total = total / sizes.clamp_min(1)[:, None]
    return total, bag, sizes.long(), torch.zeros_like(offsets)


def _bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    table = torch.zeros(num_weights, grad.shape[1], device=grad.device)
    if mode == _MAX:
        empty = maximum_indices < 0
        return table.scatter_add(0, torch.where(empty, 0, maximum_indices), torch.where(empty, 0.0, grad))
    if mode == _MEAN:
        grad = grad / bag_size.clamp_min(1).to(grad.dtype)[:, None]
    rows = grad[offset2bag]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    return table.index_add(0, indices, torch.where((indices != padding_idx)[:, None], rows, 0.0))


def _bag_weights_backward(
    grad: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    mode: int,
    padding_idx: int = -1,
) -> torch.Tensor:
    products = (grad[offset2bag] * weight[indices]).sum(1)
    return torch.where(indices != padding_idx, products, 0.0)


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
