"""The loops that decide what is in doubt, and that weigh a log's entries, give what references in torch give."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from roundlog.arithmetic import adjacent, round_interval
from roundlog.kernels import rounding_loops
from roundlog.kernels.rounding_loops import write_down
from roundlog.log import Decision, Entries
from roundlog.log.payload import PayloadError
from roundlog.number_format import FLOAT32
from roundlog.operators.bounds import Ambiguous
from roundlog.rounding.follow import ElementVerdict, weigh, weigh_by_reference
from roundlog.rounding.resolve import TRAINER_REACH, ends, judge

LARGEST = float(np.float32(3.4028234663852886e38))


def near_boundaries(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """FP64 numbers of all of FP32's magnitudes, most of them at or beside a midpoint of two FP32 numbers; bounds."""
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
    y = np.where(rng.random(count) < 0.7, middle, x) * (1 + rng.integers(-4, 5, count) * 2.0**-52)
    return y, np.abs(y) * 2.0 ** rng.integers(-60, -20, count) * rng.choice([0.0, 1.0], count, p=[0.1, 0.9])


@pytest.mark.parametrize("guard", [1, 4])
def test_elements_are_judged_as_the_references_judge_them(guard: int) -> None:
    rng = np.random.default_rng(guard)
    y, d = near_boundaries(rng, 20_000)
    y[:4] = [LARGEST, 2.0**128, -(2.0**128), 0.0]
    marked = Ambiguous(torch.arange(len(y)), torch.from_numpy(y), torch.from_numpy(d))
    judged = judge(marked, guard)
    assert judged is not None
    lower, doubtful, upper, two = judged
    low, high = round_interval(marked.y, marked.d)
    far = round_interval(marked.y, marked.d, guard + TRAINER_REACH)
    assert np.array_equal(lower.view(np.int32), low.numpy().view(np.int32))
    assert np.array_equal(doubtful, np.flatnonzero((low != high).numpy()))
    assert np.array_equal(upper, round_interval(marked.y, marked.d, guard)[1].numpy())
    assert np.array_equal(two, adjacent(*far).numpy())
    assert 1000 < two.sum() < 19_000 and 1000 < len(doubtful) < 19_000


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


REACH = 8


def marked_elements(rng: np.random.Generator, count: int) -> Ambiguous:
    y, d = near_boundaries(rng, count)
    indices = np.cumsum(rng.integers(1, 5, count))
    return Ambiguous(torch.from_numpy(indices), torch.from_numpy(y), torch.from_numpy(d))


def entries_for(rng: np.random.Generator, marked: Ambiguous) -> Entries:
    """Some elements have an entry, and some that are not marked; what is said is a candidate, or next to one."""
    low, high = (end.numpy() for end in ends(marked, REACH))
    chosen = rng.random(len(low)) < 0.8
    astray = rng.integers(0, int(marked.indices[-1]) + 100, 50)
    indices = np.unique(np.concatenate([marked.indices.numpy()[chosen], astray]))
    decisions = rng.integers(0, 3, len(indices)).astype(np.uint8)
    place = np.searchsorted(marked.indices.numpy(), indices).clip(max=len(low) - 1)
    said = np.where(rng.random(len(indices)) < 0.5, low[place], high[place])
    with np.errstate(over="ignore"):
        said = np.where(rng.random(len(indices)) < 0.2, np.nextafter(said, np.float32(0)), said)
    said[np.isinf(said)] = np.float32(-0.0)
    return Entries(indices.astype(np.int64), decisions, said[decisions == Decision.VALUE].view(np.uint32))


@pytest.mark.parametrize("seed", range(2))
def test_the_loop_weighs_as_the_reference_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    marked = marked_elements(rng, 20_000)
    entries = entries_for(rng, marked)
    sampled = rng.random(20_000) < 0.3
    mine, reference = (
        weigh(marked, entries, sampled, REACH),
        weigh_by_reference(marked, entries, sampled, REACH, FLOAT32),
    )
    assert np.array_equal(mine.verdicts, reference.verdicts)
    assert np.array_equal(mine.values.view(np.int32), reference.values.view(np.int32))
    counts = np.bincount(mine.verdicts, minlength=6)
    assert (counts > 20).all(), counts


def test_without_marked_elements_or_without_entries() -> None:
    rng = np.random.default_rng(0)
    marked = marked_elements(rng, 100)
    nothing = weigh(marked, Entries.empty(), np.ones(100, np.bool_), REACH)
    assert set(nothing.verdicts.tolist()) <= {ElementVerdict.CERTAIN, ElementVerdict.MISSING}
    empty = weigh(marked.of(slice(0, 0)), entries_for(rng, marked), np.ones(0, np.bool_), REACH)
    assert len(empty.values) == len(empty.verdicts) == 0


def test_the_loop_knows_the_same_decisions_and_verdicts() -> None:
    assert (rounding_loops.UP, rounding_loops.VALUE) == (Decision.UP, Decision.VALUE)
    assert {verdict.name: int(verdict) for verdict in ElementVerdict} == {
        name: getattr(rounding_loops, name) for name in ElementVerdict.__members__
    }


@pytest.mark.parametrize("values", [0, 2])
def test_values_that_no_decision_is_for_are_refused(values: int) -> None:
    marked = marked_elements(np.random.default_rng(0), 3)
    entries = Entries(marked.indices[:1].numpy(), np.full(1, Decision.VALUE, np.uint8), np.zeros(values, np.uint32))
    with pytest.raises(PayloadError, match=f"{values} values are logged for 1 decisions"):
        weigh(marked, entries, np.zeros(3, np.bool_), REACH)
