"""Draws that are made of uniform and normal numbers: random choices, and numbers of the gamma family (gamma, beta,
Dirichlet, chi-squared, Student's t) in a fixed number of trials."""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.multinomial.default: multinomial,
        _aten.normal.Tensor_float: normal,
        _aten.normal.Tensor_Tensor: normal,
        _aten.normal.float_Tensor: normal,
        _aten._standard_gamma.default: standard_gamma,
        _aten._sample_dirichlet.default: sample_dirichlet,
    }


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
