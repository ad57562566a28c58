"""PyTorch's own samples of its operators: each is captured as PyTorch computes it, or refused in one sentence."""

from __future__ import annotations

import collections

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("expecttest", reason="PyTorch's table of operators needs it")

PARTS = 24
"""Parts of the table, each of which takes less than a minute."""


def check(each: int, part: int, parts: int) -> collections.Counter[str]:
    """Hold samples against PyTorch. Gives how many came to what."""
    # PyTorch's table takes seconds to load, which collection of the quick tests would wait for.
    from tests.engine.capture.opinfo_samples import outcome, samples

    counts: collections.Counter[str] = collections.Counter()
    bad = []
    for name, op, sample in samples(each, part, parts):
        found = outcome(op, sample)
        counts[found.kind] += 1
        if found.kind in ("wrong", "failed"):
            bad.append((name, found))
    assert not bad, bad
    return counts


def test_samples_of_some_operators_are_captured_or_refused() -> None:
    counts = check(each=1, part=5, parts=40)
    assert counts["close"] >= 5, counts


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_samples_of_all_operators_are_captured_or_refused(part: int) -> None:
    counts = check(each=4, part=part, parts=PARTS)
    assert counts["close"] > counts["stopped"], counts
