"""Every reader of strangers' bytes, on the corpus that earlier campaigns have left (`make fuzz`) and on a few fresh
changes of it: it accepts, or it refuses with its documented error in one line, within its time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.readers import TARGETS
from tests.fuzz.targets import Find, Target, attempt, inputs, mutated


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_valid_inputs_are_accepted(target: Target) -> None:
    outcomes = [attempt(target, seed) for seed in target.seeds()]
    assert len(outcomes) - outcomes.count("accepted") == target.refused_seeds


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_what_was_found_once_is_refused_or_right(target: Target) -> None:
    files = sorted(target.corpus.glob("*"))
    assert files, f"the corpus of {target.name} is empty: run `make fuzz`"
    for path in files:
        attempt(target, path.read_bytes())


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False), changes=st.integers(1, 4))
def test_fresh_changes_are_refused_or_right(target: Target, rng: Random, changes: int) -> None:
    attempt(target, mutated(target, rng.choice(inputs(target)), rng, changes))


# That the attempts notice anything at all.


def _broken(error: Exception) -> Target:
    def read(data: bytes) -> None:
        raise error

    return Target(name="broken", seeds=lambda: [b""], read=read, refusals=(ValueError,))


@pytest.mark.parametrize(
    "error", [TypeError("x"), RecursionError(), MemoryError(), AssertionError(), ValueError(""), ValueError("a\nb")]
)
def test_anything_but_the_documented_error_in_one_line_is_a_find(error: Exception) -> None:
    with pytest.raises(Find):
        attempt(_broken(error), b"")
