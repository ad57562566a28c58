"""Special functions; and draws that are made of uniform numbers: random choices, and numbers of the gamma family
(gamma, beta, Dirichlet, chi-squared, Student's t) in a fixed number of trials."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi
from typing import Any

import torch

from roundlog.arithmetic import is_short
from roundlog.capture.errors import CaptureError, unsupported

_aten = torch.ops.aten

_LOG_GAMMA = (
    *(0.42278432846069336, -0.10031727701425552, 0.03296498954296112, -0.012384943664073944, 0.0049989959225058556),
    *(-0.0021022423170506954, 0.000912594492547214, -0.00042515413952060044, 0.00019173968757968396),
    *(-5.2839735872112215e-05, 2.3881606466602534e-05, -3.858047421090305e-05, 1.8091512174578384e-05),
)
"""log gamma(x) / ((x - 1) (x - 2)) in x - 2, 1 <= x <= 3."""

_LOG_GAMMA_FAR = (0.0833333358168602, -0.0027777638752013445, 0.0007926112739369273, -0.0005671813851222396)
"""Coefficients of the rest of Stirling's formula, times x, in x^-2, 3 <= x."""

_DIGAMMA = (
    *(0.7853075265884399, -0.26073864102363586, 0.10899975150823593, -0.04956010356545448, 0.02345184236764908),
    *(-0.01126748975366354, 0.005516797304153442, -0.0029728510417044163, 0.0014747317181900144),
    *(-0.0003152554272674024, 0.00015648386033717543, -0.00041253643576055765, 0.0002060768019873649),
)
"""digamma(x) / (x - x0) in x - 2, 1 <= x <= 3, x0 = 1.4616... its zero."""

_ZERO_HIGH, _ZERO_LOW = 1.4616321325302124, 1.2438149938918909e-08

_DIGAMMA_FAR = (0.0833333358168602, -0.008333195000886917, 0.003957962617278099, -0.0038856694009155035)
"""x^2 (log x - 1 / (2 x) - digamma(x)) in x^-2, 3 <= x."""

_TRIGAMMA_FAR = (
    *(0.1666666716337204, -0.03333315998315811, 0.023790812119841576, -0.03255971148610115),
    *(0.06023131310939789, -0.08311092108488083),
)
"""x^3 (trigamma(x) - 1 / x - 1 / (2 x^2)) in x^-2, 3 <= x."""

_ERFINV_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164),
    *(0.246640727, 1.50140941),
)
_ERFINV_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047),
    *(1.00167406, 2.83297682),
)
"""Polynomials of Giles 2012, highest power first."""


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.lgamma.default: log_gamma,
        _aten.digamma.default: digamma,
        _aten.digamma_.default: lambda x: x.copy_(digamma(x)),
        _aten.lgamma_.default: lambda x: x.copy_(log_gamma(x)),
        _aten.polygamma.default: polygamma,
        _aten.erfinv.default: erfinv,
        _aten.hypot.default: hypot,
        _aten.logcumsumexp.default: logcumsumexp,
        _aten.multinomial.default: multinomial,
        _aten.rrelu_with_noise.default: rrelu_with_noise,
        _aten.rrelu_with_noise_backward.default: rrelu_backward,
        _aten.normal.Tensor_float: normal,
        _aten.normal.Tensor_Tensor: normal,
        _aten.normal.float_Tensor: normal,
        _aten._standard_gamma.default: standard_gamma,
        _aten._sample_dirichlet.default: sample_dirichlet,
    }


def _polynomial(coefficients: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    """Lowest power first."""
    result = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * x + coefficient
    return result


def _floating(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.float()


def log_gamma(x: torch.Tensor) -> torch.Tensor:
    """Below 1 by one step of the recurrence, from 3 on Stirling's formula, of negative numbers by reflection."""
    x = _floating(x)
    negative = x < 0
    positive = torch.where(negative, 1 - x, x)
    small, large = positive < 1, positive >= 3
    # Distance of the polynomial's argument from 2; exact near the zeros at 1 and 2.
    apart = torch.where(large, 0.0, torch.where(small, positive - 1, positive - 2))
    other = torch.where(small, positive, positive - 1)
    near = other * apart * _polynomial(_LOG_GAMMA, apart)
    near = near - torch.where(small, torch.log(torch.where(small, positive, 1.0)), 0.0)
    y = torch.where(large, positive, 3.0)
    one_by = 1 / y
    rest = 0.5 * log(2 * pi) - 0.5 + _polynomial(_LOG_GAMMA_FAR, one_by * one_by) * one_by
    value = torch.where(large, (y - 0.5) * (torch.log(y) - 1) + rest, near)
    sine = torch.sin(pi * (x - torch.round(x))).abs()
    return torch.where(negative, log(pi) - torch.log(torch.where(negative, sine, 1.0)) - value, value)


def digamma(x: torch.Tensor) -> torch.Tensor:
    """Below 1 by one step of the recurrence, from 3 on the asymptotic series, of negative numbers by reflection."""
    x = _floating(x)
    negative = x < 0
    positive = torch.where(negative, 1 - x, x)
    small, large = positive < 1, positive >= 3
    apart = torch.where(large, 0.0, torch.where(small, positive - 1, positive - 2))
    from_zero = (torch.where(large, 2.0, positive) - torch.where(small, _ZERO_HIGH - 1, _ZERO_HIGH)) - _ZERO_LOW
    near = from_zero * _polynomial(_DIGAMMA, apart)
    near = near - torch.where(small, 1 / torch.where(small, positive, 1.0), 0.0)
    y = torch.where(large, positive, 3.0)
    one_by = 1 / y
    square = one_by * one_by
    far = torch.log(y) - 0.5 * one_by - square * _polynomial(_DIGAMMA_FAR, square)
    value = torch.where(large, far, near)
    turn = pi * (x - torch.round(x))
    slope = pi * torch.cos(turn) / torch.where(negative, torch.sin(turn), 1.0)
    return torch.where(negative, value - slope, value)


def polygamma(order: int, x: torch.Tensor) -> torch.Tensor:
    """Order 1, the gradient of digamma: three steps of the recurrence, then the asymptotic series; of negative numbers
    by reflection. Order 0 is digamma; others are not supported."""
    if order == 0:
        return digamma(x)
    if order != 1:
        raise unsupported("polygamma", f"derivative {order} of digamma: only the first is supported")
    x = _floating(x)
    negative = x < 0
    y = torch.where(negative, 1 - x, x)
    # From 3 on no step is needed, but harmless.
    steps = 1 / (y * y) + 1 / ((y + 1) * (y + 1)) + 1 / ((y + 2) * (y + 2))
    one_by = 1 / (y + 3)
    square = one_by * one_by
    value = steps + (one_by + 0.5 * square + square * one_by * _polynomial(_TRIGAMMA_FAR, square))
    sine = torch.where(negative, torch.sin(pi * (x - torch.round(x))), 1.0)
    return torch.where(negative, (pi / sine) * (pi / sine) - value, value)


def erfinv(x: torch.Tensor) -> torch.Tensor:
    """Two polynomials in the logarithm of 1 - x^2 (Giles 2012), within some units in the last place; infinite at 1."""
    x = _floating(x)
    w = -torch.log((1 - x) * (1 + x))
    near = w < 5
    p = _polynomial(_ERFINV_NEAR[::-1], torch.where(near, w, 2.5) - 2.5)
    q = _polynomial(_ERFINV_FAR[::-1], torch.sqrt(torch.where(near, 5.0, w)) - 3)
    # Infinite where the logarithm is.
    value = torch.where(near, p, q) * x
    return torch.where(w == torch.inf, w * x, value)


def hypot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The longer leg times sqrt(1 + the square of the quotient), which does not overflow."""
    a, b = torch.broadcast_tensors(a.abs(), b.abs())
    longer, shorter = torch.maximum(a, b), torch.minimum(a, b)
    ratio = shorter / torch.where(longer == 0, 1.0, longer)
    return longer * torch.sqrt(1 + ratio * ratio)


def logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Running logarithm of a sum of exponentials, by doubling: log2(n) rounds of log(e^a + e^b)."""
    if x.ndim == 0:
        return x.clone()
    step, size = 1, x.shape[dim]
    while step < size:
        rest = size - step
        x = torch.cat([x.narrow(dim, 0, step), torch.logaddexp(x.narrow(dim, step, rest), x.narrow(dim, 0, rest))], dim)
        step *= 2
    return x.clone()


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
    if is_short(x.dtype):
        dtype = str(x.dtype).removeprefix("torch.")
        raise CaptureError(f"aten.rrelu_with_noise on numbers of {dtype} draws them in {dtype}: use .float() before")
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
