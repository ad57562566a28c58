"""Powers and logarithms: as accurate as their rules say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.engine.capture.elementwise import evaluated, value_of

COUNT = 20_000


def units(ours: Tensor, exact: Tensor) -> float:
    """The largest error, in units in the last place of the exact value."""
    last = torch.pow(2.0, torch.floor(torch.log2(exact.abs().clamp(min=2.0**-126))) - 23)
    return float(((ours.double() - exact).abs() / last).max())


def positive_numbers() -> Tensor:
    """Positive numbers of all magnitudes, subnormal ones too, and many near one."""
    torch.manual_seed(3)
    wide = torch.rand(COUNT, dtype=torch.float64) * 276 - 148
    near = torch.randn(COUNT, dtype=torch.float64) * 10 ** (-6 * torch.rand(COUNT, dtype=torch.float64))
    return torch.cat([2.0**wide, torch.exp2(near)]).float()


@pytest.mark.parametrize("function", [torch.log2, torch.log10])
def test_logarithms_are_accurate(function) -> None:
    x = positive_numbers()
    # The gradient, 1 / (x log 10), is computed like that.
    x = x[(x > 1e-37) & (x < 1e38)]
    value, (gradient,) = evaluated(function, x)
    exact = x.double().requires_grad_()
    y = function(exact)
    y.sum().backward()
    assert units(value, y.detach()) < 4
    assert units(gradient, exact.grad) < 2.1
    subnormal = value_of(function, torch.arange(1.0, 200.0) * 2.0**-149)
    assert units(subnormal, function(torch.arange(1.0, 200.0, dtype=torch.float64) * 2.0**-149)) < 4


@pytest.mark.parametrize("function", [lambda x: 2**x, lambda x: 2.0**x])
def test_powers_of_two_are_as_accurate_as_their_rule_says(function) -> None:
    torch.manual_seed(5)
    x = torch.cat([torch.rand(COUNT) * 250 - 124, torch.randn(COUNT) * 1e-3])
    exact = torch.exp2(x.double())
    relative = (value_of(function, x).double() - exact).abs() / exact
    assert bool((relative <= 2.0**-23 * (1 + (x * math.log(2)).abs())).all())
    assert value_of(function, torch.tensor([-200.0, -1e30])).tolist() == [0.0, 0.0]


def test_powers_are_as_accurate_as_their_rule_says() -> None:
    torch.manual_seed(7)
    x = torch.exp(torch.randn(COUNT) * 8)
    y = torch.randn(COUNT) * 4
    kept = ((y * x.log()).abs() < 80) & ((y.abs() + 1) * x.log().abs() < 80)
    x, y = x[kept], y[kept]
    value, (by_base, by_exponent) = evaluated(torch.pow, x, y)
    a, b = x.double().requires_grad_(), y.double().requires_grad_()
    exact = a**b
    exact.sum().backward()
    exact = exact.detach()
    relative = ((value.double() - exact) / exact).abs()
    assert bool((relative <= 2.0**-23 * (1 + (y * x.log()).abs())).all())
    assert float(((by_base.double() - a.grad) / a.grad.abs().clamp(min=1e-30)).abs().max()) < 2e-5
    assert float(((by_exponent.double() - b.grad) / b.grad.abs().clamp(min=1e-30)).abs().max()) < 2e-5


def test_zero_has_powers_and_negative_numbers_have_none() -> None:
    base, exponent = torch.tensor([0.0, 0.0, 0.0, 4.0, -2.0]), torch.tensor([2.5, 0.0, -1.0, 0.0, 3.0])
    value = value_of(lambda x: torch.where(x < 0, 7.0, x ** (exponent * 1.0).add(0 * x)).clamp(max=9), base)
    assert value.tolist() == [0.0, 1.0, 9.0, 1.0, 7.0]
