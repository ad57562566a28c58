"""Operators that bring values together at places that tensors of indices name, as plain tensor arithmetic."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from roundlog.capture.errors import unsupported

_aten = torch.ops.aten

_LOWEST = torch.finfo(torch.float32).min

MAX_COMPARISONS = 1 << 26
"""Comparisons of all indices with all positions, above which an operator is refused."""


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.scatter_reduce.two: scatter_reduce,
        _aten.scatter_reduce_.two: lambda x, *a, **k: x.copy_(scatter_reduce(x, *a, **k)),
        _aten.index_reduce.default: index_reduce,
        _aten.index_reduce_.default: lambda x, *a, **k: x.copy_(index_reduce(x, *a, **k)),
        _aten.max_unpool2d.default: max_unpool,
        _aten.max_unpool3d.default: lambda x, index, size, stride, padding: max_unpool(x, index, size),
    }


def scatter_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Sums and means by scatter_add; products and extremes over comparisons of all indices with all positions."""
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
    if reduce == "prod":
        found = torch.where(hits, values, 1.0).prod(-1)
        after = found * own if include_self else torch.where(hits.any(-1), found, own)
    elif reduce in ("amax", "amin"):
        of_none = _LOWEST if reduce == "amax" else -_LOWEST
        masked = torch.where(hits, values, of_none)
        found = masked.amax(-1) if reduce == "amax" else masked.amin(-1)
        if include_self:
            after = torch.maximum(found, own) if reduce == "amax" else torch.minimum(found, own)
        else:
            after = torch.where(hits.any(-1), found, own)
    else:
        raise unsupported("scatter_reduce", f"by {reduce}: only sum, mean, prod, amax and amin are supported")
    return after.movedim(-1, dim)


def index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Reduction into the lines of `dim` that `index` names, by scatter_reduce with one index a line."""
    if x.ndim == 0:
        return scatter_reduce(x, dim, index, source, reduce, include_self=include_self)
    wide = index.reshape([len(index) if d == dim % x.ndim else 1 for d in range(x.ndim)]).expand(source.shape)
    return scatter_reduce(x, dim, wide, source, reduce, include_self=include_self)


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
