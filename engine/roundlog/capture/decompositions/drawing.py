"""Random choices, made of uniform numbers."""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.multinomial.default: multinomial,
        _aten.rrelu_with_noise.default: rrelu_with_noise,
        _aten.rrelu_with_noise_backward.default: rrelu_backward,
        _aten.normal.Tensor_float: normal,
        _aten.normal.Tensor_Tensor: normal,
        _aten.normal.float_Tensor: normal,
    }


def multinomial(
    weights: torch.Tensor, count: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Indices drawn by weight. With replacement: the number of partial sums of the weights at or below uniform * their
    sum. Without: the largest of weight / exponential (Efraimidis and Spirakis 2006), in that order."""
    if not replacement:
        return (weights / torch.empty_like(weights).exponential_()).topk(count, dim=-1)[1]
    sums = weights.cumsum(-1)
    drawn = torch.rand((*weights.shape[:-1], count), device=weights.device) * sums[..., -1:]
    # The last place that has a weight is as far as a rounded product may go.
    last = weights.shape[-1] - 1 - (weights > 0).to(weights.dtype).flip(-1).argmax(-1, keepdim=True)
    found = (sums.unsqueeze(-2) <= drawn.unsqueeze(-1)).sum(-1)
    return torch.minimum(found, last)


def rrelu_with_noise(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Negative numbers times a uniform one between two bounds, which the noise remembers."""
    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2))
    slope = torch.where(x > 0, 1.0, lower + (upper - lower) * torch.rand_like(x))
    noise.copy_(slope)
    return x * slope


def rrelu_backward(
    g: torch.Tensor,
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float,
    upper: float,
    training: bool,
    is_result: bool,
) -> torch.Tensor:
    """Gradient of rrelu, by the slope that the noise remembers, or by the mean one."""
    return g * noise if training else torch.where(x > 0, g, g * ((lower + upper) / 2))


def normal(mean: Any, deviation: Any = 1.0, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """mean + deviation * a standard normal number."""
    given = mean if isinstance(mean, torch.Tensor) else deviation
    shape = torch.broadcast_shapes(*(x.shape for x in (mean, deviation) if isinstance(x, torch.Tensor)))
    drawn: torch.Tensor = mean + deviation * torch.randn(shape, device=given.device)
    return drawn
