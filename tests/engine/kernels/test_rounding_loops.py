"""The loops that decide what is in doubt give what the references in torch and numpy give, to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from roundlog.arithmetic import adjacent, round_interval
from roundlog.kernels.rounding_loops import write_down
from roundlog.log import Decision
from roundlog.operators.bounds import Ambiguous
from roundlog.rounding.resolve import TRAINER_REACH, judge

LARGEST = float(np.float32(3.4028234663852886e38))


def near_boundaries(rng: np.random.Generator, count: int) -> np.ndarray:
    """FP64 numbers of all of FP32's magnitudes, most of them at or beside a midpoint of two FP32 numbers."""
    words = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32)
    words[::7] &= 0x807FFFFF  # subnormals
    words[::11] = (words[::11] & 0x80000000) | 0x7F7FFFFF  # the largest
    words[::13] &= 0x80000000  # zeros
    x = words.view(np.float32)
    x[~np.isfinite(x)] = 1.5
    with np.errstate(over="ignore"):
        other = np.nextafter(x, np.float32(np.inf))
    upper = np.where(np.isfinite(other), other.astype(np.float64), 2.0**128)
    middle = (x.astype(np.float64) + upper) / 2
    return np.where(rng.random(count) < 0.7, middle, x) * (1 + rng.integers(-4, 5, count) * 2.0**-52)


@pytest.mark.parametrize("guard", [1, 4])
def test_elements_are_judged_as_the_references_judge_them(guard: int) -> None:
    rng = np.random.default_rng(guard)
    y = near_boundaries(rng, 20_000)
    d = np.abs(y) * 2.0 ** rng.integers(-60, -20, len(y)) * rng.choice([0.0, 1.0], len(y), p=[0.1, 0.9])
    y[:4] = [LARGEST, 2.0**128, -(2.0**128), 0.0]
    marked = Ambiguous(torch.arange(len(y)), torch.from_numpy(y), torch.from_numpy(d))
    judged = judge(marked, guard)
    assert judged is not None
    low, high = round_interval(marked.y, marked.d)
    far = round_interval(marked.y, marked.d, guard + TRAINER_REACH)
    assert np.array_equal(judged.low.view(np.int32), low.numpy().view(np.int32))
    assert np.array_equal(judged.doubtful, np.flatnonzero((low != high).numpy()))
    assert np.array_equal(judged.upper, round_interval(marked.y, marked.d, guard)[1].numpy())
    assert np.array_equal(judged.two, adjacent(*far).numpy())
    assert 1000 < judged.two.sum() < 19_000
    assert 1000 < len(judged.doubtful) < 19_000


@pytest.mark.parametrize("bits", [32, 25])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nothing_is_judged_beside_an_approximation_that_is_not_finite(bad: float, bits: int) -> None:
    y = torch.tensor([1.0, bad, 2.0], dtype=torch.float64)
    assert judge(Ambiguous(torch.arange(3), y, torch.zeros_like(y)), 4, bits) is None


def test_what_is_written_down_says_what_was_decided() -> None:
    rng = np.random.default_rng(6)
    upper = rng.standard_normal(5000).astype(np.float32)
    right = np.where(rng.random(5000) < 0.5, upper, np.nextafter(upper, np.float32(-np.inf)))
    two = rng.random(5000) < 0.7
    decisions, values = write_down(right, upper, two)
    expected = np.where(two, np.where(right == upper, Decision.UP, Decision.DOWN), Decision.VALUE)
    assert np.array_equal(decisions, expected)
    assert np.array_equal(values, right[~two].view(np.uint32))
