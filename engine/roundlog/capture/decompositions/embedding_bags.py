"""Bags of embeddings, written out as gathers and sums of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from roundlog.capture.errors import CaptureError

_SUM, _MEAN, _MAX = 0, 1, 2
_LOWEST = -3.0e38
"""Lower bound of all embeddings."""


def _bags(indices: torch.Tensor, offsets: torch.Tensor, *, last: bool) -> tuple[torch.Tensor, int]:
    """(which bag every index is in, how many bags there are)."""
    count = offsets.shape[0] - last
    places = torch.arange(indices.shape[0], device=indices.device)
    return (places[:, None] >= offsets[None, :count]).sum(1) - 1, count


def _forward(
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


def _backward(
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


def _weights_backward(
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


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For `make_fx`."""
    aten = torch.ops.aten
    return {
        aten._embedding_bag.default: _forward,
        aten._embedding_bag_forward_only.default: _forward,
        aten._embedding_bag_backward.default: _backward,
        aten._embedding_bag_per_sample_weights_backward.default: _weights_backward,
    }
