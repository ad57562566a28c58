"""The loops that decide what is in doubt give what the references in torch and numpy give, to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from roundlog.arithmetic import adjacent, round_interval, sums
from roundlog.arithmetic.interval import UNIT_F64
from roundlog.kernels.deciding import round_pairs
from roundlog.operators.marking import Marked
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


@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_rounded_as_the_reference_rounds_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    high = near_boundaries(rng, 20_000)
    unit = np.abs(high) * 2.0**-53
    low = unit * rng.uniform(-1, 1, len(high)) * rng.choice([0.0, 1.0, 2.0**-20], len(high))
    error = unit * rng.choice([0.0, 2.0**-60, 2.0**-20, 1.0, 2.0**20], len(high))
    high[:3], low[3:6] = [math.inf, -math.inf, math.nan], [math.inf, 0.0, math.nan]
    expected, in_doubt = sums.round_double_double(high, low, error)
    rounded, undecided = round_pairs(high, low, error, UNIT_F64)
    assert np.array_equal(undecided, in_doubt)
    assert np.array_equal(rounded[~undecided].view(np.int32), expected[~undecided].view(np.int32))
    assert 1000 < undecided.sum() < 19_000


@pytest.mark.parametrize("guard", [1, 4])
def test_elements_are_judged_as_the_references_judge_them(guard: int) -> None:
    rng = np.random.default_rng(guard)
    y = near_boundaries(rng, 20_000)
    d = np.abs(y) * 2.0 ** rng.integers(-60, -20, len(y)) * rng.choice([0.0, 1.0], len(y), p=[0.1, 0.9])
    y[:4] = [LARGEST, 2.0**128, -(2.0**128), 0.0]
    marked = Marked(torch.arange(len(y)), torch.from_numpy(y), torch.from_numpy(d))
    judged = judge(marked, guard)
    low, high = round_interval(marked.y, marked.d)
    far = round_interval(marked.y, marked.d, guard + TRAINER_REACH)
    assert torch.equal(judged.low.view(torch.int32), low.view(torch.int32))
    assert torch.equal(judged.doubtful, low != high)
    assert torch.equal(judged.upper, round_interval(marked.y, marked.d, guard)[1])
    assert torch.equal(judged.two, adjacent(*far))
    assert 1000 < int(judged.two.sum()) < 19_000
    assert 1000 < int(judged.doubtful.sum()) < 19_000
