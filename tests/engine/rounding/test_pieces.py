"""Ambiguous elements are decided some at a time: how many makes no difference."""

from __future__ import annotations

import numpy as np
import pytest
import roundlog.rounding.resolve as resolve
import torch
from roundlog.log import Decision, Entries
from roundlog.operators import operator
from roundlog.rounding import Follower, LogFinding, LogFindingKind, Recorder

ELEMENTS = 200


def work() -> tuple[Entries, torch.Tensor, list[LogFinding], int]:
    """A log of sums of which most are near a boundary, the results and findings of a bent log, and how many
    entries were followed."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ELEMENTS, 3, generator=generator).double()
    # AmbiguousPart a boundary: a tie, a tie that cancellation hides (more than two candidates), and what is certain.
    x[:, 0] = 1.0
    x[:, 1] = 2.0**-24
    x[:, 2] *= 2.0**-80
    x[::5, 0], x[::5, 1], x[::5, 2] = 2.0**40, -(2.0**40), x[::5, 2] * 2.0**50
    x[::7, 1] = 0.25
    inputs, attributes, op = [x.float()], {"dims": (1,)}, operator("sum")
    recorder = Recorder(4)
    rounded = recorder.round(0, op, inputs, attributes)  # type: ignore[arg-type]
    entries = recorder.take()[0]
    decisions = entries.decisions.copy()
    decisions[::9] = np.where(decisions[::9] == Decision.VALUE, Decision.VALUE, 1 - decisions[::9])
    kept = np.ones(len(entries), dtype=bool)
    kept[[4, 50, 51]] = False
    kept &= (decisions != Decision.VALUE) | (np.arange(len(entries)) % 3 != 0)
    values = np.zeros(len(entries), dtype=np.uint32)
    values[entries.decisions == Decision.VALUE] = entries.values
    nowhere = np.setdiff1d(np.arange(ELEMENTS), entries.indices)[:4]
    order = np.argsort(np.concatenate([entries.indices[kept], nowhere]))
    bent = Entries(
        np.concatenate([entries.indices[kept], nowhere])[order],
        np.concatenate([decisions[kept], np.zeros(len(nowhere), dtype=np.uint8)])[order],
        values[kept & (decisions == Decision.VALUE)],
    )
    follower = Follower(4, 1.0, np.random.default_rng(1))
    follower.follow(3, {0: bent})
    followed = follower.round(0, op, inputs, attributes)  # type: ignore[arg-type]
    assert torch.equal(followed, rounded)
    alone = Follower.without_log(4).round(0, op, inputs, attributes)  # type: ignore[arg-type]
    assert torch.equal(alone, rounded)
    findings = sorted(follower.findings, key=lambda finding: (finding.element, finding.message))
    return entries, rounded, findings, follower.followed


@pytest.mark.parametrize("at_once", [1, 2, 7, 64])
def test_nothing_depends_on_how_many_are_decided_at_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = work()
    entries, rounded, findings, followed = whole
    assert 100 < len(entries) < ELEMENTS and len(entries.values)
    assert {finding.kind for finding in findings} == {LogFindingKind.FORGED, LogFindingKind.MISSING}
    assert "it is not near a rounding boundary" in {finding.message for finding in findings}
    monkeypatch.setattr(resolve, "AT_ONCE", at_once)
    again = work()
    assert again[0] == entries
    assert torch.equal(again[1], rounded)
    assert again[2:] == (findings, followed)
