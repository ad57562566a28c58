"""Powers and logarithms: exact where their values are numbers of FP32, and as accurate as their rules say elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.engine.capture.elementwise import evaluated, value_of

POWERS_OF_TWO = torch.tensor([2.0**k for k in range(-149, 128)])
POWERS_OF_TEN = torch.tensor([10.0**k for k in range(-37, 39)])
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


def test_log2_of_every_power_of_two_is_exact() -> None:
    value = value_of(torch.log2, POWERS_OF_TWO)
    assert torch.equal(value, torch.arange(-149.0, 128.0))
    beside = torch.nextafter(POWERS_OF_TWO[23:], torch.tensor(math.inf))
    assert bool((value_of(torch.log2, beside) >= torch.arange(-126.0, 128.0)).all())


def test_log10_of_every_power_of_ten_is_exact() -> None:
    value = value_of(torch.log10, POWERS_OF_TEN)
    assert torch.equal(value, torch.arange(-37.0, 39.0))


@pytest.mark.parametrize("function", [torch.log2, torch.log10])
def test_logarithms_are_accurate(function) -> None:
    x = positive_numbers()
    # The gradient, 1 / (x log 10), is computed like that.
    x = x[(x > 1e-37) & (x < 1e38)]
    value, (gradient,) = evaluated(function, x)
    exact = x.double().requires_grad_()
    y = function(exact)
    y.sum().backward()
    assert units(value, y.detach()) < 2.1
    assert units(gradient, exact.grad) < 2.1
    subnormal = value_of(function, torch.arange(1.0, 200.0) * 2.0**-149)
    assert units(subnormal, function(torch.arange(1.0, 200.0, dtype=torch.float64) * 2.0**-149)) < 2.1


@pytest.mark.parametrize("function", [torch.exp2, lambda x: 2**x, lambda x: 2.0**x])
def test_two_to_integers_is_exact_and_to_fractions_accurate(function) -> None:
    value = value_of(function, torch.arange(-149.0, 128.0))
    assert torch.equal(value, POWERS_OF_TWO)
    torch.manual_seed(5)
    x = torch.cat([torch.rand(COUNT) * 250 - 124, torch.randn(COUNT) * 1e-3, torch.tensor([-200.0, -1e30, 127.9999])])
    value = value_of(function, x)
    assert units(value, torch.exp2(x.double())) < 2.1


def test_whole_powers_are_exact_where_they_fit() -> None:
    base = torch.tensor([5.0, 3.0, -3.0, -3.0, 7.0, -2.0, -2.0, 2.0, 0.0, 0.0, -1.0, 10.0, -0.5, 1.5, 2.0])
    exponent = torch.tensor([2.0, 4.0, 3.0, 4.0, 1.0, -3.0, 63.0, -64.0, 0.0, 3.0, 1e6, 10.0, 5.0, 7.0, 64.0])
    exact = base.double() ** exponent.double()
    value = value_of(lambda x: x ** (exponent * 1.0), base)
    assert torch.equal(value.double(), exact)
    exponent, base = exponent[base != 0], base[base != 0]
    _, (by_base,) = evaluated(lambda x: x ** (exponent * 1.0), base)
    slope = torch.where(exponent == 0, 0.0, exponent.double() * base.double() ** (exponent.double() - 1))
    assert torch.allclose(by_base.double(), slope, rtol=5e-6)


def test_constant_exponents_are_powers_to_a_number() -> None:
    x = torch.cat([torch.arange(-9.0, 10.0), torch.randn(500)])
    value, (gradient,) = evaluated(lambda x: x ** torch.full_like(x, 2.0), x)
    assert torch.equal(value, x * x)
    assert torch.equal(gradient, 2 * x)
    value = value_of(lambda x: torch.pow(x, torch.tensor(3.0)), x)
    assert torch.equal(value, x * (x * x))


def test_powers_are_as_accurate_as_their_rule_says() -> None:
    torch.manual_seed(7)
    x = torch.exp(torch.randn(COUNT) * 8)
    y = torch.randn(COUNT) * 4
    y = torch.where(torch.rand(COUNT) < 0.3, (y * 8).round().clamp(-64, 64), y)
    kept = ((y * x.log()).abs() < 80) & ((y.abs() + 1) * x.log().abs() < 80)
    x, y = x[kept], y[kept]
    value, (by_base, by_exponent) = evaluated(torch.pow, x, y)
    a, b = x.double().requires_grad_(), y.double().requires_grad_()
    exact = a**b
    exact.sum().backward()
    exact = exact.detach()
    relative = ((value.double() - exact) / exact).abs()
    whole = y == y.floor()
    assert bool((relative[whole] <= (y[whole].abs() + 1) * 2.0**-24).all())
    assert bool((relative[~whole] <= 2.0**-23 * (1 + (y * x.log()).abs()[~whole])).all())
    assert float(((by_base.double() - a.grad) / a.grad.abs().clamp(min=1e-30)).abs().max()) < 2e-5
    assert float(((by_exponent.double() - b.grad) / b.grad.abs().clamp(min=1e-30)).abs().max()) < 2e-5
    # Whole powers of negative numbers have the sign that they should have.
    value = value_of(lambda x: x ** (y * 1.0), torch.where(whole, -x, x))
    assert torch.equal(value.sign(), torch.where(whole & (y % 2 != 0), -1.0, 1.0))
