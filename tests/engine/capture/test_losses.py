"""Losses and activations where formulas cancel or overflow: as accurate as PyTorch's in FP32, over all magnitudes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.capture.elementwise import evaluated

MAGNITUDES = torch.logspace(-30, 4, 103, dtype=torch.float64)
NUMBERS = torch.cat([-MAGNITUDES.flip(0), MAGNITUDES, torch.linspace(-20, 20, 201, dtype=torch.float64)]).float()
SHARES = torch.cat([torch.logspace(-30, -0.01, 90, dtype=torch.float64), 1 - torch.logspace(-6, -0.3, 30)]).float()
NEIGHBOURS = 17

Function = Callable[[Tensor], Tensor]


def both(x: Tensor) -> Tensor:
    """Ones for the first half of the samples, zeros for the second: each number comes with each."""
    return (torch.arange(len(x)) < len(x) // 2).to(x.dtype)


def pair(x: Tensor) -> Tensor:
    return torch.stack([x, torch.zeros_like(x)], -1)


FUNCTIONS: dict[str, tuple[Function, Tensor]] = {
    "bce": (lambda x: F.binary_cross_entropy(x, both(x), reduction="none"), SHARES),
    "bce, soft": (lambda x: F.binary_cross_entropy(x, both(x) / 2 + 0.25, reduction="none"), SHARES),
    "bce of logits": (lambda x: F.binary_cross_entropy_with_logits(x, both(x), reduction="none"), NUMBERS),
    "multilabel": (lambda x: F.multilabel_soft_margin_loss(x[:, None], both(x)[:, None], reduction="none"), NUMBERS),
    "cross_entropy": (lambda x: F.cross_entropy(pair(x), both(x).long(), reduction="none"), NUMBERS),
    "smoothing": (lambda x: F.cross_entropy(pair(x), both(x).long(), reduction="none", label_smoothing=0.1), NUMBERS),
    "celu": (lambda x: F.celu(x, 0.7), NUMBERS),
    "elu": (F.elu, NUMBERS),
    "selu": (F.selu, NUMBERS),
    "silu": (F.silu, NUMBERS),
    "mish": (F.mish, NUMBERS),
    "gelu": (F.gelu, NUMBERS),
    "softplus": (F.softplus, NUMBERS),
    "logsigmoid": (F.logsigmoid, NUMBERS),
    "softsign": (F.softsign, NUMBERS),
    "tanhshrink": (F.tanhshrink, NUMBERS),
    "sigmoid": (torch.sigmoid, NUMBERS),
    "huber": (lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=0.3), NUMBERS),
}


def by_pytorch(function: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x).reshape(-1)
    y.sum().backward()
    assert x.grad is not None
    return y.detach().double(), x.grad.double()


def relative(found: Tensor, exact: Tensor) -> Tensor:
    return (found.double() - exact).abs() / exact.abs().clamp(min=1e-36)


@pytest.mark.slow_but("smoothing", "bce", "gelu")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_not_less_accurate_than_pytorch(name: str) -> None:
    function, x = FUNCTIONS[name]
    x = torch.cat([x, x])
    value, (gradient,) = evaluated(lambda x: function(x).reshape(-1), x)
    exact, plain = by_pytorch(function, x.double()), by_pytorch(function, x)
    assert bool(value.isfinite().all()) and bool(gradient.isfinite().all())
    order = torch.argsort(x)
    for ours, theirs, right in zip((value, gradient), plain, exact, strict=True):
        # PyTorch may be lucky at a number, hardly with its neighbours too.
        # Where its formula overflows, it says nothing.
        near = F.max_pool1d(
            relative(theirs, right).nan_to_num(nan=torch.inf)[order][None], NEIGHBOURS, 1, NEIGHBOURS // 2
        )[0]
        worse = relative(ours, right).nan_to_num(nan=0.0)[order] - 4 * near - 3e-6
        place = int(worse.argmax())
        assert worse[place] <= 0, (float(x[order][place]), float(ours[order][place]), float(right[order][place]))
