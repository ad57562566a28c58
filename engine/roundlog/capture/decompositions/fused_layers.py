"""Operators of PyTorch that do much at once, as plain tensor arithmetic: reductions to places that indices name, bags
of embeddings, and fake quantization, by which training rounds weights as if they were integers already."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from roundlog.capture.errors import CaptureError, unsupported

_aten = torch.ops.aten


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten._embedding_bag.default: _bag,
        _aten._embedding_bag_forward_only.default: _bag,
        _aten._embedding_bag_backward.default: _bag_backward,
        _aten.fake_quantize_per_tensor_affine_cachemask.default: _by_numbers,
        _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _by_tensors,
        _aten.scatter_reduce.two: scatter_reduce,
        _aten.scatter_reduce_.two: lambda x, *a, **k: x.copy_(scatter_reduce(x, *a, **k)),
    }


_SUM, _MEAN, _MAX = 0, 1, 2


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
    if mode == _MAX or scale_grad_by_freq:
        raise CaptureError("EmbeddingBag takes maxima, or scales by frequency: write F.embedding(words, table).amax(1)")
    if per_sample_weights is not None:
        raise CaptureError(
            "EmbeddingBag weighs its words: write (weights[..., None] * F.embedding(words, table)).sum(1)"
        )
    bag, count = _bags(indices, offsets, last=include_last_offset)
    rows = weight[indices]
    used = indices != padding_idx
    sizes = torch.zeros(count, device=weight.device).index_add(0, bag, used.to(weight.dtype))
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
    if mode == _MEAN:
        grad = grad / bag_size.clamp_min(1).to(grad.dtype)[:, None]
    rows = grad[offset2bag]
    return table.index_add(0, indices, torch.where((indices != padding_idx)[:, None], rows, 0.0))


def _by_numbers(
    x: torch.Tensor, scale: float, zero_point: int, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """round(x / scale) + zero point, held between the least and the most integer, and back, and where it was between
    them; 1 / scale is rounded first, as PyTorch does."""
    return _rounded(x, torch.full((), scale, dtype=x.dtype, device=x.device), zero_point, least, most)


def _by_tensors(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by tensors of one number, where a third one says so."""
    y, inside = _rounded(x, scale.reshape(()), zero_point.reshape(()).to(x.dtype), least, most)
    on = enabled.reshape(()) != 0
    return torch.where(on, y, x), inside | ~on


def _rounded(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | int, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounded values, and where they were between the bounds."""
    whole = torch.round(x * (1.0 / scale)) + zero_point
    return (whole.clamp(least, most) - zero_point) * scale, (whole >= least) & (whole <= most)


MAX_COMPARISONS = 1 << 26
"""Comparisons of all indices with all positions, above which an operator is refused."""


def scatter_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Sums and means by scatter_add; extremes over comparisons of all indices with all positions."""
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise unsupported("scatter_reduce", f"by {reduce}: only sum, mean, amax and amin are supported")
    if not x.ndim or any(n != x.shape[d] for d, n in enumerate(index.shape) if d != dim % x.ndim):
        raise unsupported("scatter_reduce", "the index leaves a part of other axes out: take the other part first")
    dim %= x.ndim
    source = source[tuple(slice(n) for n in index.shape)]
    if reduce in ("amax", "amin"):
        return _by_comparison(x, dim, index, source, reduce, include_self)
    count = torch.zeros_like(x).scatter_add(dim, index, torch.ones_like(source))
    start = x if include_self else torch.where(count > 0, 0, x)
    total = start.scatter_add(dim, index, source)
    return total / (count + int(include_self)).clamp(min=1) if reduce == "mean" else total


def _by_comparison(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, include_self: bool
) -> torch.Tensor:
    if prod(index.shape) * x.shape[dim] > MAX_COMPARISONS:
        raise unsupported(
            "scatter_reduce", f"{reduce} takes more than {MAX_COMPARISONS} comparisons: use fewer indices"
        )
    places = torch.arange(x.shape[dim], device=x.device)
    # [..., places, indices]
    hits = index.movedim(dim, -1).unsqueeze(-2) == places[:, None]
    values = source.movedim(dim, -1).unsqueeze(-2)
    own = x.movedim(dim, -1)
    if not index.numel():
        return x.clone()
    lowest = torch.finfo(torch.float32).min
    masked = torch.where(hits, values, lowest if reduce == "amax" else -lowest)
    found = masked.amax(-1) if reduce == "amax" else masked.amin(-1)
    if not include_self:
        after = torch.where(hits.any(-1), found, own)
    else:
        after = torch.maximum(found, own) if reduce == "amax" else torch.minimum(found, own)
    return after.movedim(-1, dim)
