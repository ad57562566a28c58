"""Operators of PyTorch that do much at once, as plain tensor arithmetic: adaptive max pooling and its inverse,
reductions to places that indices name, bags of embeddings, and fake quantization, by which training rounds weights
and activations as if they were integers already."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from roundlog.capture.errors import CaptureError, unsupported

_aten = torch.ops.aten


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.adaptive_max_pool2d.default: adaptive_max_pool,
        _aten.adaptive_max_pool3d.default: adaptive_max_pool,
        _aten._embedding_bag.default: _bag,
        _aten._embedding_bag_forward_only.default: _bag,
        _aten._embedding_bag_backward.default: _bag_backward,
        _aten.fake_quantize_per_tensor_affine_cachemask.default: _by_numbers,
        _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _by_tensors,
        _aten.scatter_reduce.two: scatter_reduce,
        _aten.scatter_reduce_.two: lambda x, *a, **k: x.copy_(scatter_reduce(x, *a, **k)),
        _aten.max_unpool2d.default: max_unpool,
        _aten.max_unpool3d.default: lambda x, index, size, stride, padding: max_unpool(x, index, size),
    }


def adaptive_max_pool(x: torch.Tensor, sizes: Sequence[int]) -> Any:
    """Every window is filled up to the widest with its own last elements. Planes whose windows have one size have a
    rule."""
    if len(sizes) == 2 and all(size % count == 0 for size, count in zip(x.shape[-2:], sizes, strict=True)):
        return NotImplemented
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
    if per_sample_weights is not None:
        raise CaptureError(
            "EmbeddingBag weighs its words: write (weights[..., None] * F.embedding(words, table)).sum(1)"
        )
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
    if x.ndim == 0:
        one = scatter_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self)
        return one.reshape(())
    dim %= x.ndim
    sizes = [x.shape[d] if d == dim else n for d, n in enumerate(index.shape)]
    source = _corner(source, index.shape)
    before = _corner(x, sizes)
    if reduce in ("sum", "mean"):
        count = torch.zeros_like(before).scatter_add(dim, index, torch.ones_like(source))
        start = before if include_self else torch.where(count > 0, 0, before)
        after = start.scatter_add(dim, index, source)
        if reduce == "mean":
            after = after / (count + int(include_self)).clamp(min=1)
    else:
        after = _by_comparison(before, dim, index, source, reduce, include_self)
    if list(x.shape) == sizes:
        return after
    whole = x.clone()
    _corner(whole, sizes).copy_(after)
    return whole


def _corner(x: torch.Tensor, sizes: Any) -> torch.Tensor:
    """The first elements along every axis."""
    for dim, size in enumerate(sizes):
        x = x.narrow(dim, 0, size)
    return x


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
    if reduce in ("amax", "amin"):
        lowest = torch.finfo(torch.float32).min
        of_none = lowest if reduce == "amax" else -lowest
        masked = torch.where(hits, values, of_none)
        found = masked.amax(-1) if reduce == "amax" else masked.amin(-1)
        if include_self:
            after = torch.maximum(found, own) if reduce == "amax" else torch.minimum(found, own)
        else:
            after = torch.where(hits.any(-1), found, own)
    else:
        raise unsupported("scatter_reduce", f"by {reduce}: only sum, mean, amax and amin are supported")
    return after.movedim(-1, dim)


def max_unpool(x: torch.Tensor, index: torch.Tensor, output_size: Any) -> torch.Tensor:
    """Inverse of max pooling, by scatter_add. Where windows overlap and chose the same element, the mean of what comes
    there, which is one number as often as it comes."""
    axes = len(output_size)
    outer, size = tuple(x.shape[:-axes]), prod(output_size)
    flat, places = x.reshape(*outer, -1), index.reshape(*outer, -1)
    zeros = flat.new_zeros((*outer, size))
    count = zeros.scatter_add(-1, places, torch.ones_like(flat))
    values = zeros.scatter_add(-1, places, flat) / count.clamp(min=1)
    return values.reshape(*outer, *output_size)
