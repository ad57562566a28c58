"""Losses that PyTorch's own decompositions compute badly, or not at all, and distances, as plain tensor arithmetic."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

_aten = torch.ops.aten


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.binary_cross_entropy.default: binary_cross_entropy,
        _aten.soft_margin_loss.default: soft_margin_loss,
        _aten.soft_margin_loss_backward.default: soft_margin_loss_backward,
        _aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
        _aten.multilabel_margin_loss_forward.default: multilabel_margin_loss,
        _aten.multilabel_margin_loss_backward.default: multilabel_margin_loss_backward,
        _aten._pdist_forward.default: pdist,
        _aten._pdist_backward.default: pdist_backward,
    }


def _reduced(loss: torch.Tensor, reduction: int) -> torch.Tensor:
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


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
    return _reduced(loss, reduction)


def soft_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """log(1 + e^(-x target)), as softplus, which does not overflow."""
    return _reduced(_aten.softplus(-target * x), reduction)


def soft_margin_loss_backward(
    g: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int = 1
) -> torch.Tensor:
    """Gradient of the soft margin loss, by the sigmoid of -x target: PyTorch's decomposition subtracts 1 from the
    sigmoid of x target, and cancels."""
    slope = -target * torch.sigmoid(-target * x)
    return slope * (g / x.numel() if reduction == 1 else g)


def multi_margin_loss_backward(
    g: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    p: int,
    margin: float,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """The slopes of max(0, margin - x[target] + x[j])^p / count, j any other class."""
    rows, classes = x.reshape(-1, x.shape[-1] if x.ndim else 1), target.reshape(-1, 1)
    inside = margin - rows.gather(1, classes) + rows
    slope = torch.where(inside > 0, 1.0 if p == 1 else 2 * inside, 0.0) / rows.shape[1]
    if weight is not None:
        slope = slope * weight[classes]
    own = torch.arange(rows.shape[1], device=x.device) == classes
    slope = torch.where(own, 0.0, slope)
    slope = torch.where(own, -slope.sum(1, keepdim=True), slope)
    share = (g / len(rows) if reduction == 1 else g).reshape(-1, 1)
    return (slope * share).reshape(x.shape)


def multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of max(0, 1 - x[t] + x[j]) / count, t any target before the first -1, j any class that is none.
    PyTorch's decomposition counts what stands behind the first -1, too."""
    inside, counts, _, others = _margins(x, target)
    loss = torch.where(counts, inside.clamp(min=0), 0.0).sum((1, 2)) / inside.shape[2]
    loss = _reduced(loss, reduction)
    return (loss.reshape(()) if x.ndim < 2 else loss), (~others).to(x.dtype).reshape(x.shape)


def multilabel_margin_loss_backward(
    g: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, is_target: torch.Tensor
) -> torch.Tensor:
    """The slopes of multilabel_margin_loss."""
    inside, counts, at, _ = _margins(x, target)
    active = torch.where((inside > 0) & counts, 1.0 / inside.shape[2], 0.0)
    slope = active.sum(1).scatter_add(1, at, -active.sum(2))
    share = (g / len(inside) if reduction == 1 else g).reshape(-1, 1)
    return (slope * share).reshape(x.shape)


def _margins(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(1 - x[t] + x[j] and whether it counts, [samples, targets, classes]; the targets; which classes are none)."""
    rows = x.reshape(-1, x.shape[-1] if x.ndim else 1)
    places = target.reshape(rows.shape)
    before_end = (places < 0).long().cumsum(1) == 0
    at = torch.where(before_end, places, 0)
    classes = torch.arange(rows.shape[1], device=x.device)
    others = ~((at[:, :, None] == classes) & before_end[:, :, None]).any(1)
    inside = 1 - rows.gather(1, at)[:, :, None] + rows[:, None, :]
    return inside, others[:, None, :] & before_end[:, :, None], at, others


def _pairs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First and second rows of all pairs of rows."""
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return first, second


def pdist(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """The p-norms of the differences of all pairs of rows, each as linalg_vector_norm."""
    first, second = _pairs(x)
    norms: torch.Tensor = torch.linalg.vector_norm(x[first] - x[second], p, dim=-1)
    return norms


def pdist_backward(g: torch.Tensor, x: torch.Tensor, p: float, distance: torch.Tensor) -> torch.Tensor:
    """Gradient of pdist: that of cdist, added up by rows; zero where a distance is zero."""
    first, second = _pairs(x)
    difference = x[first] - x[second]
    g, far = g[:, None], distance[:, None]
    if p == 0:
        each = torch.zeros_like(difference)
    elif p == 1:
        each = g * difference.sign()
    elif p == inf:
        each = torch.where(difference.abs() == far, g * difference.sign(), 0.0)
    else:
        none = (far == 0) | (difference == 0)
        ratio = torch.where(none, 1.0, difference.abs()) / torch.where(far == 0, 1.0, far)
        each = torch.where(none, 0.0, g * difference.sign() * ratio ** (p - 1))
    return torch.zeros_like(x).index_add(0, first, each).index_add(0, second, -each)
