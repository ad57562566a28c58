"""The loop that weighs a log's entries says what the reference in torch says, element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from roundlog.kernels import rounding_loops
from roundlog.log import Decision, Entries
from roundlog.log.payload import PayloadError
from roundlog.number_format import FLOAT32
from roundlog.operators.bounds import Ambiguous
from roundlog.rounding.follow import ElementVerdict, weigh, weigh_by_reference
from roundlog.rounding.resolve import ends

from tests.engine.kernels.test_rounding_loops import near_boundaries

REACH = 8


def marked_elements(rng: np.random.Generator, count: int) -> Ambiguous:
    y = near_boundaries(rng, count)
    d = np.abs(y) * 2.0 ** rng.integers(-60, -20, count) * rng.choice([0.0, 1.0], count, p=[0.1, 0.9])
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


@pytest.mark.parametrize("seed", range(6))
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
