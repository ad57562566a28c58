"""Random numbers of a task before its first step: a stream of Philox a call, whose key comes from PyTorch's generator.

A key is two integers that the generator gives. Its Mersenne Twister computes with integers alone, so every machine has
the same keys after the same `torch.manual_seed`, and states of generators can be kept and put back as ever. Element i
takes word i of the stream (32 bits, or 64 for FP64) as a number of [0, 1) in FP64, and all arithmetic with it is that
of `strict_functions`, rounded once to the dtype that is asked for. The operators that draw stand in `DRAWN`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from math import pi
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit

from roundlog.capture.portable.strict_functions import CODES, exp, log, of_all, turn
from roundlog.kernels.threads import in_parts
from roundlog.randomness.philox import BLOCK

F64 = npt.NDArray[np.float64]
Fill = Callable[[F64, npt.NDArray[Any]], None]
"""fill(units, out): numbers of a distribution for numbers of [0, 1), both [n], n even."""

_RUN = 1 << 11
"""Blocks of words that are made at once, so that they stay in the cache until they are numbers."""


def key_of(generator: torch.Generator | None) -> npt.NDArray[np.uint64]:
    """The key of the next call: uint64[2]. Moves the generator on; None: that of torch."""
    return torch.empty(2, dtype=torch.int64).random_(generator=generator).numpy().astype(np.uint64)


def drawn(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator | None, fill: Fill) -> torch.Tensor:
    """A tensor of random numbers: [*shape], contiguous. dtype: any of floating point."""
    wide = dtype == torch.float64
    key, count = key_of(generator), math.prod(shape)
    each = BLOCK // 2 if wide else BLOCK
    blocks = -(-count // each)
    out = np.empty(blocks * each, np.float64 if wide else np.float32)

    def part(start: int, stop: int) -> None:
        words = np.random.Philox(key=key, counter=start)
        for begin in range(start, stop, _RUN):
            end = min(begin + _RUN, stop)
            raw = words.random_raw(BLOCK // 2 * (end - begin)).astype("<u8", copy=False)
            words_of = raw >> np.uint64(11) if wide else raw.view("<u4")
            units: F64 = words_of.astype(np.float64)
            units *= 2.0**-53 if wide else 2.0**-32
            fill(units, out[begin * each : end * each])

    in_parts(part, blocks, 16 * out.size)
    return torch.from_numpy(out[:count]).reshape(tuple(shape)).to(dtype)


def uniform(low: float, high: float) -> Fill:
    """low <= x < high, but where rounding to the dtype leaves no number between them."""
    return lambda units, out: _uniform(units, low, high, out)


def normal(mean: float, deviation: float) -> Fill:
    return lambda units, out: _normal(units, mean, deviation, out)


def log_normal(mean: float, deviation: float) -> Fill:
    def fill(units: F64, out: npt.NDArray[Any]) -> None:
        _normal(units, mean, deviation, units)
        _exponentials(units, out)

    return fill


def exponential(rate: float) -> Fill:
    return lambda units, out: _exponential(units, rate, out)


def geometric(p: float) -> Fill:
    """Trials up to the first success."""
    return lambda units, out: _geometric(units, 1.0 - p, out)


def cauchy(median: float, sigma: float) -> Fill:
    return lambda units, out: _cauchy(units, median, sigma, out)


@njit(cache=True, nogil=True, error_model="numpy")
def _uniform(units: Any, low: float, high: float, out: Any) -> None:
    for i in range(len(units)):
        out[i] = low + (high - low) * units[i]
        if not out[i] < high:
            out[i] = low


@njit(cache=True, nogil=True, error_model="numpy")
def _normal(units: Any, mean: float, deviation: float, out: Any) -> None:
    """Box and Muller 1958, both numbers of a pair."""
    for i in range(0, len(units) - 1, 2):
        radius = np.sqrt(-2.0 * log(1.0 - units[i]))
        t = 4.0 * units[i + 1]
        q = np.floor(t + 0.5)
        s, c = turn((t - q) * (pi / 2), np.int64(q))
        out[i], out[i + 1] = mean + deviation * (radius * c), mean + deviation * (radius * s)


@njit(cache=True, nogil=True, error_model="numpy")
def _exponentials(x: Any, out: Any) -> None:
    for i in range(len(x)):
        out[i] = exp(x[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _exponential(units: Any, rate: float, out: Any) -> None:
    """Above 0, as PyTorch's: what is drawn is divided by."""
    for i in range(len(units)):
        out[i] = -log(1.0 - units[i] if units[i] > 0.0 else 1.0 - 2.0**-33) / rate


@njit(cache=True, nogil=True, error_model="numpy")
def _geometric(units: Any, failure: float, out: Any) -> None:
    for i in range(len(units)):
        out[i] = max(1.0, np.ceil(log(1.0 - units[i]) / log(failure)))


@njit(cache=True, nogil=True, error_model="numpy")
def _cauchy(units: Any, median: float, sigma: float, out: Any) -> None:
    for i in range(len(units)):
        t = 2.0 * units[i]
        q = np.floor(t + 0.5)
        s, c = turn((t - q) * (pi / 2), np.int64(q))
        out[i] = median - sigma * (c / (s if s != 0.0 else 2.0**-33))


def permutation(count: int, generator: torch.Generator | None) -> torch.Tensor:
    """int64[count]: the order of as many 64-bit words."""
    words = np.random.Philox(key=key_of(generator), counter=0).random_raw(count)
    return torch.from_numpy(np.argsort(words, kind="stable"))


def chosen(weights: torch.Tensor, count: int, replacement: bool, generator: torch.Generator | None) -> torch.Tensor:
    """int64[..., count]: categories drawn with the probabilities of weights [..., categories]; each at most once
    without replacement. Raises RuntimeError as `torch.multinomial` where that cannot be."""
    rows: F64 = weights.detach().double().reshape(-1, weights.shape[-1]).numpy()
    if not np.isfinite(rows).all() or (rows < 0).any() or not (rows > 0).any(1).all():
        raise RuntimeError("probabilities have to be finite, at least 0, and not all 0")
    if not replacement and (np.count_nonzero(rows, 1) < count).any():
        raise RuntimeError(f"{count} categories cannot be drawn without replacement from fewer that have a probability")
    if replacement:
        units = drawn((len(rows), count), torch.float64, generator, uniform(0.0, 1.0)).numpy()
        # The sum so far, one addition after the other.
        totals = np.stack([np.cumsum(row) for row in rows])
        places = np.stack(
            [np.searchsorted(total, unit * total[-1], "right") for total, unit in zip(totals, units, strict=True)]
        )
        places = np.minimum(places, [[np.flatnonzero(row)[-1]] for row in rows])
    else:
        waits = drawn(rows.shape, torch.float64, generator, exponential(1.0)).numpy()
        with np.errstate(divide="ignore"):
            places = np.argsort(np.where(rows > 0, waits / rows, np.inf), axis=1, kind="stable")[:, :count]
    return torch.from_numpy(places.astype(np.int64)).reshape(*weights.shape[:-1], count)


def standard_gamma(concentration: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Numbers of the concentration's shape and dtype, at least its least normal number. concentration: above 0."""
    kind = torch.finfo(concentration.dtype)
    numbers = torch.from_numpy(_powers_of_e(_logarithms(concentration, generator)))
    return numbers.clamp_(min=kind.tiny).reshape(concentration.shape).to(concentration.dtype)


def dirichlet(concentration: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Shares along the last axis: gamma numbers by their sum, taken in order. Above 0 and below 1, as PyTorch's."""
    logarithms = _logarithms(concentration, generator).reshape(-1, concentration.shape[-1])
    parts = _powers_of_e((logarithms - logarithms.max(1, keepdims=True)).reshape(-1)).reshape(logarithms.shape)
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


def _powers_of_e(x: F64) -> F64:
    out = np.empty_like(x)
    of_all(CODES["exp"], x, out)
    return out


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


def _filled(given: Arguments, fill: Fill) -> torch.Tensor | None:
    kind = _kind(given)
    if kind is None:
        return None
    numbers = drawn(*kind, given.get("generator"), fill)
    if "memory_format" not in given or not isinstance(like := given.get("self", given.get("input")), torch.Tensor):
        return numbers
    return torch.empty_like(like, dtype=kind[1], memory_format=given["memory_format"]).copy_(numbers)


def _draw_normal(given: Arguments) -> torch.Tensor | None:
    mean, deviation = given.get("mean", 0.0), given.get("std", 1.0)
    tensors = [x for x in (mean, deviation) if isinstance(x, torch.Tensor)]
    if not all(x.is_floating_point() for x in tensors) or not bool(torch.as_tensor(deviation).ge(0.0).all()):
        return None
    if not tensors:
        return _filled(given, normal(float(mean), float(deviation)))
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    dtype = torch.result_type(mean, deviation)
    if not dtype.is_floating_point:
        return None
    standard = drawn(shape, dtype, given.get("generator"), normal(0.0, 1.0))
    return standard.mul_(deviation).add_(mean)


def _draw_uniform(given: Arguments) -> torch.Tensor | None:
    low, high = float(given.get("from", 0.0)), float(given.get("to", 1.0))
    kind = _kind(given)
    if kind is None or not low <= high or not high - low <= torch.finfo(kind[1]).max:
        return None
    units = _filled(given, uniform(low, high))
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
    units = drawn(tuple(like.shape), torch.float64, given.get("generator"), uniform(0.0, 1.0))
    return (units < (p.double() if isinstance(p, torch.Tensor) else p)).to(like.dtype)


def _dropout(given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    x, p = given["input"], float(given["p"])
    if not x.is_floating_point():
        return None
    if given["train"] is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    units = drawn(tuple(x.shape), torch.float64, None, uniform(0.0, 1.0))
    kept = units < 1.0 - p
    return x * kept * (0.0 if p == 1.0 else 1.0 / (1.0 - p)), kept


def _permutation(given: Arguments) -> torch.Tensor:
    return permutation(int(given["n"]), given.get("generator")).to(given.get("dtype") or torch.int64)


def _multinomial(given: Arguments) -> torch.Tensor | None:
    if not given["self"].is_floating_point() or not 1 <= given["self"].ndim <= 2 or not given["self"].numel():
        return None
    if given["num_samples"] < 1:
        return None
    return chosen(given["self"], int(given["num_samples"]), bool(given["replacement"]), given.get("generator"))


def _of_concentration(
    make: Callable[[torch.Tensor, torch.Generator | None], torch.Tensor], given: Arguments
) -> torch.Tensor | None:
    concentration = given["self"]
    if not concentration.is_floating_point() or not bool(((concentration > 0) & concentration.isfinite()).all()):
        return None
    if not concentration.numel() or (make is dirichlet and not concentration.ndim):
        return None
    return make(concentration, given.get("generator"))


DRAWN: dict[str, Callable[[Arguments], Any]] = {
    "_sample_dirichlet": partial(_of_concentration, dirichlet),
    "_standard_gamma": partial(_of_concentration, standard_gamma),
    "bernoulli": _bernoulli,
    "cauchy": lambda given: _filled(given, cauchy(given["median"], given["sigma"])) if given["sigma"] > 0 else None,
    "exponential": lambda given: _filled(given, exponential(given["lambd"])) if given["lambd"] > 0 else None,
    "geometric": lambda given: _filled(given, geometric(given["p"])) if 0 < given["p"] < 1 else None,
    "log_normal": lambda given: _filled(given, log_normal(given["mean"], given["std"])) if given["std"] > 0 else None,
    "multinomial": _multinomial,
    "native_dropout": _dropout,
    "normal": _draw_normal,
    "rand": _draw_uniform,
    "rand_like": _draw_uniform,
    "randn": _draw_normal,
    "randn_like": _draw_normal,
    "randperm": _permutation,
    "uniform": _draw_uniform,
}
"""Name without overload and underscore -> numbers for a call's arguments, by name; None where there are none, or where
PyTorch says what is wrong with them."""
