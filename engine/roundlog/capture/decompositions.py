"""Decomposition of operators while a step is traced: by PyTorch's table, except for those that have a rule here, and by
the functions of this file: choices by weight; numbers of the gamma family (gamma, beta, Dirichlet, chi-squared,
Student's t), in a fixed number of trials; losses; reductions to places that indices name; bags of embeddings; fake
quantization; mixtures of experts; and complex numbers of rotary embeddings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from roundlog.capture.constants import with_known_values
from roundlog.capture.errors import CaptureError, unsupported
from roundlog.capture.rules.reductions import MAX_COMPARISONS
from roundlog.capture.rules.short_formats import in_fp32, norms

_aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]

_BEYOND_CORE = (
    _aten.addmv,
    _aten.dist,
    _aten.hardtanh,
    _aten.leaky_relu,
)
"""Operators that PyTorch's own core table leaves whole, though it has a decomposition of them."""

_BETTER_IN_ONE = ("embedding_dense_backward", "slice_backward", "select_backward")
"""One scatter_add or pad each, where PyTorch writes into zeros."""

_MOVEMENT = (
    *("roll", "eye", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
    *(f"upsample_nearest{n}d" for n in (1, 2, 3)),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
)
"""PyTorch computes their indices in floating point, or by remainders."""

_MATRICES = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
"""Matrix products with constants."""

_OVERFLOWING = ("elu_backward", "softplus", "softplus_backward", "mish", "mish_backward", "xlogy")
"""PyTorch's decompositions overflow, or take the logarithm of zero, on a branch that `where` then discards: a program
would stop there."""

_WRONG = ("_safe_softmax", "multilabel_margin_loss_forward", "soft_margin_loss", "soft_margin_loss_backward")
"""A row of -inf alone gives zeros; what stands behind the first -1 is no target; soft margins overflow, and cancel."""

_KEPT_WHOLE = frozenset((*_BETTER_IN_ONE, *_MOVEMENT, *_MATRICES, *_OVERFLOWING, *_WRONG))


@functools.cache
def decompositions() -> dict[Any, Any]:
    """The table for `make_fx`."""
    table: dict[Any, Any] = {**core_aten_decompositions(), **get_decompositions(_BEYOND_CORE)}
    table = {op: function for op, function in table.items() if _base(op) not in _KEPT_WHOLE}
    table[_aten.split_with_sizes.default] = _split_with_sizes
    # The exponential of elu does not overflow.
    table[_aten.celu.default] = lambda x, alpha=1.0: _aten.elu(x, alpha, 1.0, 1.0 / alpha)
    table[_aten._grouped_mm.default] = _grouped_mm
    # Forward-mode derivatives begin with tensors known to be zero, whose operators PyTorch computes on another device.
    table[_aten._efficientzerotensor.default] = torch.zeros
    table = {**in_fp32({**table, **own_decompositions()}), **norms()}
    return with_known_values(with_pairs(table))


def own_decompositions() -> Table:
    """Functions of our own that take operators apart, whose docstrings are in the documentation."""
    return {
        _aten.multinomial.default: multinomial,
        _aten.normal.Tensor_float: normal,
        _aten.normal.Tensor_Tensor: normal,
        _aten.normal.float_Tensor: normal,
        _aten._standard_gamma.default: standard_gamma,
        _aten._sample_dirichlet.default: sample_dirichlet,
        _aten.binary_cross_entropy.default: binary_cross_entropy,
        _aten._embedding_bag.default: _bag,
        _aten._embedding_bag_forward_only.default: _bag,
        _aten._embedding_bag_backward.default: _bag_backward,
        _aten.fake_quantize_per_tensor_affine_cachemask.default: _by_numbers,
        _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _by_tensors,
        _aten.scatter_reduce.two: scatter_reduce,
        _aten.scatter_reduce_.two: lambda x, *a, **k: x.copy_(scatter_reduce(x, *a, **k)),
    }


def _base(op: Any) -> str:
    return str(op).removeprefix("aten.").partition(".")[0]


def multinomial(
    weights: torch.Tensor, count: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Indices drawn by weight. With replacement: the number of partial sums of the weights at or below uniform * their
    sum. Without: the largest of weight / exponential (Efraimidis and Spirakis 2006), in that order."""
    if not replacement:
        keys = weights / torch.empty_like(weights).exponential_()
        # The largest is found without comparing each with each, which a vocabulary is too long for.
        return keys.argmax(-1, keepdim=True) if count == 1 else keys.topk(count, dim=-1)[1]
    sums = weights.cumsum(-1)
    drawn = torch.rand((*weights.shape[:-1], count), device=weights.device) * sums[..., -1:]
    # The last place that has a weight is as far as a rounded product may go.
    last = weights.shape[-1] - 1 - (weights > 0).to(weights.dtype).flip(-1).argmax(-1, keepdim=True)
    found = (sums.unsqueeze(-2) <= drawn.unsqueeze(-1)).sum(-1)
    return torch.minimum(found, last)


def normal(mean: Any, deviation: Any = 1.0, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """mean + deviation * a standard normal number."""
    given = mean if isinstance(mean, torch.Tensor) else deviation
    shape = torch.broadcast_shapes(*(x.shape for x in (mean, deviation) if isinstance(x, torch.Tensor)))
    drawn: torch.Tensor = mean + deviation * torch.randn(shape, device=given.device)
    return drawn


TRIALS = 15
"""Trials of Marsaglia and Tsang for every number. The probability that a trial is rejected is at most 0.0485, the one
for a concentration of 1. So the probability that all trials are rejected is below 2^-65."""

_NEAR = 0.125
_SERIES = (-3 / 4, 3 / 5, -3 / 6, 3 / 7, -3 / 8, 3 / 9, -3 / 10)
"""(3 log(1 + t) - (1 + t)^3 + 1 + 9 t^2 / 2) / t^4 in t, lowest power first."""


def standard_gamma(concentration: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Marsaglia and Tsang 2000: d (1 + x / sqrt(9 d))^3 for the first of 15 normal numbers x that is accepted, where d
    = concentration - 1/3. A concentration below 1 takes the number of concentration + 1, times uniform^(1 /
    concentration). At least 2^-126, as PyTorch's. If no trial is accepted (see TRIALS), the first counts."""
    d, base, power = _accepted(concentration)
    return (d * (base * base * base) * torch.exp(power)).clamp(min=torch.finfo(concentration.dtype).tiny)


def sample_dirichlet(concentration: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Softmax of the logarithms of gamma numbers: the numbers of small concentrations may be zero, their logarithms
    are finite. Between 2^-126 and 1 - 2^-24, as PyTorch's."""
    d, base, power = _accepted(concentration)
    shares = torch.softmax(torch.log(d) + 3 * torch.log(base) + power, -1)
    kind = torch.finfo(concentration.dtype)
    return shares.clamp(kind.tiny, 1 - kind.eps / 2)


def _accepted(concentration: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(d, base, power), each as the concentration: a gamma number is d * base^3 * e^power."""
    is_small = concentration < 1
    d = torch.where(is_small, concentration + 1, concentration) - 1 / 3
    shape = (TRIALS, *concentration.shape)
    t = torch.randn(shape, device=concentration.device) / (3 * torch.sqrt(d))
    inside = t > -1
    t = torch.where(inside, t, 0.0)
    base = 1 + t
    # log(uniform) has to be below d (9 t^2 / 2 + 3 log(1 + t) - (1 + t)^3 + 1). Its terms cancel up to t^4, so that for
    # a small t, where d is large, a series in t takes their place: it loses no digits.
    series = torch.full_like(t, _SERIES[-1])
    for coefficient in _SERIES[-2::-1]:
        series = series * t + coefficient
    square = t * t
    whole = (4.5 * square + 3 * torch.log(base)) - t * (3 + t * (3 + t))
    rest = torch.where(t.abs() < _NEAR, square * square * series, whole)
    is_taken = inside & (-torch.empty(shape, device=concentration.device).exponential_() < d * rest)
    first = is_taken.to(t.dtype).argmax(0, keepdim=True)
    waits = torch.empty_like(d).exponential_()
    power = torch.where(is_small, -waits / concentration, 0.0)
    return d, base.gather(0, first).squeeze(0), power


def binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """PyTorch cuts logarithms off at -100, that of zero too; log(2^-149) is below that already."""
    log_x = x.clamp_min(2.0**-149).log().clamp_min(-100.0)
    sure = x == 1
    log_not_x = torch.where(sure, -100.0, torch.log1p(-torch.where(sure, 0.0, x)).clamp_min(-100.0))
    loss = -(target * log_x + (1 - target) * log_not_x)
    if weight is not None:
        loss = loss * weight
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


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
    if scale_grad_by_freq:
        raise CaptureError("EmbeddingBag scales gradients by frequency: make it with scale_grad_by_freq=False")
    if mode == _MAX:
        raise CaptureError("EmbeddingBag takes maxima: write F.embedding(words, table).amax(1)")
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
    if math.prod(index.shape) * x.shape[dim] > MAX_COMPARISONS:
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


def _split_with_sizes(x: torch.Tensor, sizes: list[int], dim: int = 0) -> list[torch.Tensor]:
    """Parts of a tensor, as slices: PyTorch's decomposition looks at the memory itself, by as_strided."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [x.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)]


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The experts of a mixture. Which rows are whose depends on values, and programs have fixed shapes: so every expert
    sees all rows, and those that are not its own come to nothing."""
    if offs is None:
        return a @ b
    if a.ndim == 3:
        raise NotImplementedError("a grouped product whose columns belong to experts")
    rows = torch.arange(a.shape[-2] if b.ndim == 3 else a.shape[-1], device=offs.device)
    starts = torch.cat([offs.new_zeros(1), offs[:-1]])
    own = (starts[:, None] <= rows) & (rows < offs[:, None])
    if b.ndim == 3:
        parts = [torch.where(own[expert][:, None], a @ b[expert], 0.0) for expert in range(len(offs))]
        return sum(parts[1:], parts[0])
    return torch.stack([torch.where(own[expert], a, 0.0) @ b for expert in range(len(offs))])


def with_pairs(table: Table) -> Table:
    """A table for `make_fx` in which these operators on complex tensors are taken apart, too."""
    return {**table, **{op: _choosing(function, table.get(op)) for op, function in _OPERATORS.items()}, **_GIVING}


def _choosing(on_pairs: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def choose(x: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and one.is_complex() for one in (x, *args)):
            return on_pairs(x, *args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(x, *args, **kwargs)

    return choose


def _pair_of(x: Any) -> tuple[Any, Any]:
    """(real part, imaginary part) of a number or a tensor; no imaginary part of a real one."""
    if isinstance(x, torch.Tensor) and x.is_complex():
        real = torch.view_as_real(x)
        return real.select(-1, 0), real.select(-1, 1)
    return (x.real, x.imag) if isinstance(x, complex) else (x, None)


def _join(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    """The complex tensor of two parts."""
    return torch.view_as_complex(torch.stack(torch.broadcast_tensors(real, imaginary), dim=-1))


def _mul(a: Any, b: Any) -> torch.Tensor:
    (p, q), (r, s) = _pair_of(a), _pair_of(b)
    if q is None or s is None:
        return _join(p * r, q * r if q is not None else p * s)
    return _join(p * r - q * s, p * s + q * r)


def _conj(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = _pair_of(x)
    return _join(real, -imaginary)


def _to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Numbers of FP64 as those of FP32."""
    if dtype not in (None, torch.complex64):
        return NotImplemented
    return torch.view_as_complex(torch.view_as_real(x).to(torch.float32, copy=True))


def _on_view(change: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """change(real view, rank of the complex tensor, ...): a view of the real tensor, which keeps the last axis."""

    def apply(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.view_as_complex(change(torch.view_as_real(x), x.ndim, *args, **kwargs))

    return apply


def _view(x: torch.Tensor, rank: int, shape: Sequence[int]) -> torch.Tensor:
    total, known = x.numel() // 2, math.prod(size for size in shape if size != -1)
    return x.reshape([*(total // known if size == -1 else size for size in shape), 2])


def _squeeze(x: torch.Tensor, rank: int, dims: Sequence[int] | int) -> torch.Tensor:
    axes = {dim % rank for dim in ([dims] if isinstance(dims, int) else dims)}
    return x.reshape([size for dim, size in enumerate(x.shape) if size != 1 or dim not in axes])


def _slice(x: torch.Tensor, rank: int, dim: int = 0, *places: int | None) -> torch.Tensor:
    part: torch.Tensor = _aten.slice.Tensor(x, dim % rank, *places)
    return part


_OPERATORS: Table = {
    _aten.mul.Tensor: _mul,
    _aten._conj.default: _conj,
    _aten._to_copy.default: _to_copy,
    _aten.view.default: _on_view(_view),
    _aten.expand.default: _on_view(lambda x, rank, shape, **_: x.expand([*shape, 2])),
    _aten.transpose.int: _on_view(lambda x, rank, a, b: x.transpose(a % rank, b % rank)),
    _aten.slice.Tensor: _on_view(_slice),
    _aten.select.int: _on_view(lambda x, rank, dim, index: x.select(dim % rank, index)),
    _aten.unsqueeze.default: _on_view(lambda x, rank, dim: x.unsqueeze(dim % (rank + 1))),
    _aten.squeeze.dim: _on_view(_squeeze),
    _aten.squeeze.dims: _on_view(_squeeze),
    _aten.index.Tensor: _on_view(lambda x, rank, indices: x[tuple(slice(None) if i is None else i for i in indices)]),
    _aten.alias.default: _on_view(lambda x, rank: x),
    _aten.detach.default: _on_view(lambda x, rank: x),
    _aten.clone.default: _on_view(lambda x, rank, **_: x.clone(memory_format=torch.contiguous_format)),
}
"""ATen operator -> what it is where an operand is complex."""

_GIVING: Table = {
    _aten.complex.default: _join,
    _aten.polar.default: lambda size, angle: _join(size * angle.cos(), size * angle.sin()),
}
"""ATen operator of real operands -> the complex numbers that it gives."""
