"""Random numbers of the gamma family (gamma, beta, Dirichlet, chi-squared, Student's t) for what precedes a first step:
Marsaglia and Tsang 2000, in FP64, with as many trials as it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit

from roundlog.capture.portable.distributions import drawn, exponential, normal
from roundlog.capture.portable.strict_functions import CODES, log, of_all

F64 = npt.NDArray[np.float64]


def standard_gamma(concentration: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Numbers of the concentration's shape and dtype, at least its least normal number. concentration: above 0."""
    kind = torch.finfo(concentration.dtype)
    numbers = torch.from_numpy(_exponentials(_logarithms(concentration, generator)))
    return numbers.clamp_(min=kind.tiny).reshape(concentration.shape).to(concentration.dtype)


def dirichlet(concentration: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Shares along the last axis: gamma numbers by their sum, taken in order. Above 0 and below 1, as PyTorch's."""
    logarithms = _logarithms(concentration, generator).reshape(-1, concentration.shape[-1])
    parts = _exponentials((logarithms - logarithms.max(1, keepdims=True)).reshape(-1)).reshape(logarithms.shape)
    shares = torch.from_numpy(parts / np.cumsum(parts, axis=1)[:, -1:])
    kind = torch.finfo(concentration.dtype)
    return shares.clamp_(kind.tiny, 1 - kind.eps / 2).reshape(concentration.shape).to(concentration.dtype)


def _logarithms(concentration: torch.Tensor, generator: torch.Generator | None) -> F64:
    """float64[n]: logarithms of gamma numbers, for the elements in C order. They have no least one, as the numbers of
    small concentrations have."""
    of: F64 = concentration.detach().double().reshape(-1).numpy()
    out, left = np.empty(len(of)), np.arange(len(of))
    waits = drawn((len(of),), torch.float64, generator, exponential(1.0)).numpy()
    while len(left):
        x = drawn((len(left),), torch.float64, generator, normal(0.0, 1.0)).numpy()
        limits = drawn((len(left),), torch.float64, generator, exponential(1.0)).numpy()
        left = left[~_tried(of, waits, left, x, limits, out)]
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _tried(of: Any, waits: Any, left: Any, x: Any, limits: Any, out: Any) -> Any:
    """bool[n]: whether a trial of the elements `left` was accepted. Their logarithms are then in out."""
    taken = np.zeros(len(left), np.bool_)
    for i in range(len(left)):
        a = of[left[i]]
        d = (a if a >= 1.0 else a + 1.0) - 1.0 / 3.0
        base = 1.0 + x[i] / np.sqrt(9.0 * d)
        if not base > 0.0:
            continue
        v = base * base * base
        if -limits[i] < 0.5 * x[i] * x[i] + d * (1.0 - v + 3.0 * log(base)):
            taken[i] = True
            out[left[i]] = log(d * v) - (waits[left[i]] / a if a < 1.0 else 0.0)
    return taken


def _exponentials(x: F64) -> F64:
    out = np.empty_like(x)
    of_all(CODES["exp"], x, out)
    return out
