"""Functions that are computed by polynomials, against FP64: as accurate as is said here, over all their range."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

from tests.engine.capture.elementwise import evaluated, value_of

POSITIVE = torch.cat(
    [torch.logspace(-30, 30, 601), torch.linspace(0.01, 12, 1200), 1 + torch.linspace(-1e-3, 1e-3, 41)]
)
NEGATIVE = -torch.cat([torch.linspace(0.01, 0.99, 99) + whole for whole in range(6)])
SHARES = torch.cat([torch.linspace(-0.999, 0.999, 801), torch.logspace(-30, -1, 200), 1 - torch.logspace(-6, -1, 60)])


def error(found: Tensor, exact: Tensor, least: float = 0.0) -> float:
    return float(((found.double() - exact).abs() / exact.abs().clamp(min=max(least, 1e-37))).max())


def test_log_gamma_and_its_gradient() -> None:
    x = POSITIVE[POSITIVE < 1e30]
    value, (gradient,) = evaluated(torch.lgamma, x)
    assert error(value, torch.lgamma(x.double())) < 6e-7
    assert error(gradient, torch.digamma(x.double())) < 1e-6
    # Between the poles the reflection cancels where the value is small: the error is that of its parts.
    assert error(value_of(torch.lgamma, NEGATIVE), torch.lgamma(NEGATIVE.double()), least=1.0) < 2e-6


def test_digamma_and_its_gradient() -> None:
    x = POSITIVE[(POSITIVE < 1e15) & (POSITIVE > 1e-15)]
    value, (gradient,) = evaluated(torch.digamma, x)
    assert error(value, torch.digamma(x.double())) < 1e-6
    assert error(gradient, torch.polygamma(1, x.double())) < 1e-6
    assert error(value_of(torch.digamma, NEGATIVE), torch.digamma(NEGATIVE.double()), least=1.0) < 3e-6


def test_the_inverse_error_function_and_its_gradient() -> None:
    value, (gradient,) = evaluated(torch.erfinv, SHARES)
    exact = SHARES.double().requires_grad_()
    y = torch.erfinv(exact)
    y.sum().backward()
    assert error(value, y.detach()) < 1e-6
    # The gradient, e^(y^2), multiplies the error of y^2.
    assert error(gradient, exact.grad) < 2e-5


@pytest.mark.parametrize("scale", [1e-35, 1e-10, 1.0, 1e10, 1e37])
def test_hypotenuses_of_all_sizes(scale: float) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(500) * scale, torch.randn(500) * scale
    assert error(value_of(torch.hypot, a, b), torch.hypot(a.double(), b.double())) < 3e-7
    assert torch.equal(
        value_of(torch.hypot, torch.zeros(3), torch.tensor([0.0, -2.0, 3.0])), torch.tensor([0.0, 2.0, 3.0])
    )


def test_logarithms_of_sums_of_exponentials_far_apart() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 65) * 50
    value, (gradient,) = evaluated(lambda x: torch.logcumsumexp(x, 1), x)
    assert error(value, torch.logcumsumexp(x.double(), 1), least=1.0) < 1e-6
    wide = x.double().requires_grad_()
    torch.logcumsumexp(wide, 1).sum().backward()
    # PyTorch's formula takes logarithms of gradients, and exponentials again.
    assert float((gradient.double() - wide.grad).abs().max()) < 2e-3


def test_the_references_themselves() -> None:
    """PyTorch's functions in FP64, which the others are held against, by mpmath in 30 digits."""
    mpmath.mp.dps = 30
    for x in (1e-20, 0.3, 1.4616321, 1.9999, 7.5, 1e6, -0.5, -2.3):
        at = torch.tensor(x, dtype=torch.float64)
        assert float(torch.digamma(at)) == pytest.approx(float(mpmath.digamma(x)), rel=1e-9)
        assert float(torch.lgamma(at)) == pytest.approx(float(mpmath.log(abs(mpmath.gamma(x)))), rel=1e-9)
