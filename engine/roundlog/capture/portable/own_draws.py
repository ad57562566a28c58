"""Operators that draw random numbers, by the distributions of this package."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from roundlog.capture.portable import distributions
from roundlog.capture.portable.distributions import drawn

Arguments = dict[str, Any]


def _kind(given: Arguments) -> tuple[tuple[int, ...], torch.dtype] | None:
    """Shape and dtype of what is drawn; None if it is no real number of floating point."""
    like = given.get("self", given.get("input"))
    dtype = given.get("dtype")
    if isinstance(like, torch.Tensor):
        shape, dtype = tuple(like.shape), dtype or like.dtype
    else:
        shape, dtype = tuple(given["size"]), dtype or torch.get_default_dtype()
    return (shape, dtype) if dtype.is_floating_point else None


def _filled(given: Arguments, fill: distributions.Fill) -> torch.Tensor | None:
    kind = _kind(given)
    if kind is None:
        return None
    numbers = drawn(*kind, given.get("generator"), fill)
    if "memory_format" not in given or not isinstance(like := given.get("self", given.get("input")), torch.Tensor):
        return numbers
    return torch.empty_like(like, dtype=kind[1], memory_format=given["memory_format"]).copy_(numbers)


def _normal(given: Arguments) -> torch.Tensor | None:
    mean, deviation = given.get("mean", 0.0), given.get("std", 1.0)
    tensors = [x for x in (mean, deviation) if isinstance(x, torch.Tensor)]
    if not all(x.is_floating_point() for x in tensors) or not bool(torch.as_tensor(deviation).ge(0.0).all()):
        return None
    if not tensors:
        return _filled(given, distributions.normal(float(mean), float(deviation)))
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    dtype = torch.result_type(mean, deviation)
    if not dtype.is_floating_point:
        return None
    standard = drawn(shape, dtype, given.get("generator"), distributions.normal(0.0, 1.0))
    return standard.mul_(deviation).add_(mean)


def _uniform(given: Arguments) -> torch.Tensor | None:
    low, high = float(given.get("from", 0.0)), float(given.get("to", 1.0))
    kind = _kind(given)
    if kind is None or not low <= high or not high - low <= torch.finfo(kind[1]).max:
        return None
    units = _filled(given, distributions.uniform(low, high))
    if units is not None and units.dtype.itemsize < 4:  # rounded once more
        units.masked_fill_(units.double() >= high, low)
    return units


def _bernoulli(given: Arguments) -> torch.Tensor | None:
    """1 where a number of [0, 1) is below the probability, in FP64."""
    like = given["self"]
    p = given.get("p")
    p = like if p is None else p
    if like.is_complex() or (isinstance(p, torch.Tensor) and not p.is_floating_point()):
        return None
    if not bool(((torch.as_tensor(p) >= 0) & (torch.as_tensor(p) <= 1)).all()):
        return None
    units = drawn(tuple(like.shape), torch.float64, given.get("generator"), distributions.uniform(0.0, 1.0))
    return (units < (p.double() if isinstance(p, torch.Tensor) else p)).to(like.dtype)


def _dropout(given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    x, p = given["input"], float(given["p"])
    if not x.is_floating_point():
        return None
    if given["train"] is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    units = drawn(tuple(x.shape), torch.float64, None, distributions.uniform(0.0, 1.0))
    kept = units < 1.0 - p
    return x * kept * (0.0 if p == 1.0 else 1.0 / (1.0 - p)), kept


def _permutation(given: Arguments) -> torch.Tensor:
    return distributions.permutation(int(given["n"]), given.get("generator")).to(given.get("dtype") or torch.int64)


def _multinomial(given: Arguments) -> torch.Tensor | None:
    if not given["self"].is_floating_point() or not 1 <= given["self"].ndim <= 2 or not given["self"].numel():
        return None
    if given["num_samples"] < 1:
        return None
    return distributions.chosen(
        given["self"], int(given["num_samples"]), bool(given["replacement"]), given.get("generator")
    )


def _of_concentration(
    make: Callable[[torch.Tensor, torch.Generator | None], torch.Tensor], given: Arguments
) -> torch.Tensor | None:
    concentration = given["self"]
    if not concentration.is_floating_point() or not bool(((concentration > 0) & concentration.isfinite()).all()):
        return None
    if not concentration.numel() or (make is distributions.dirichlet and not concentration.ndim):
        return None
    return make(concentration, given.get("generator"))


DRAWN: dict[str, Callable[[Arguments], Any]] = {
    "_sample_dirichlet": partial(_of_concentration, distributions.dirichlet),
    "_standard_gamma": partial(_of_concentration, distributions.standard_gamma),
    "bernoulli": _bernoulli,
    "cauchy": lambda given: (
        _filled(given, distributions.cauchy(given["median"], given["sigma"])) if given["sigma"] > 0 else None
    ),
    "exponential": lambda given: (
        _filled(given, distributions.exponential(given["lambd"])) if given["lambd"] > 0 else None
    ),
    "geometric": lambda given: _filled(given, distributions.geometric(given["p"])) if 0 < given["p"] < 1 else None,
    "log_normal": lambda given: (
        _filled(given, distributions.log_normal(given["mean"], given["std"])) if given["std"] > 0 else None
    ),
    "multinomial": _multinomial,
    "native_dropout": _dropout,
    "normal": _normal,
    "rand": _uniform,
    "rand_like": _uniform,
    "randn": _normal,
    "randn_like": _normal,
    "randperm": _permutation,
    "uniform": _uniform,
}
"""Name without overload and underscore -> numbers for a call's arguments, by name; None where there are none, or where
PyTorch says what is wrong with them."""
