"""An audit that follows a run under way: how soon after the run it ends, by a clock that the test turns."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from roundlog.segment_audits.audit import audit_by_segments
from roundlog.segment_audits.plan import SegmentAudit, Sharing
from roundlog.segment_audits.segment import Listing, WorkerAnswer, audit_segment

from tests.engine.segment_audits.audit_workers import source_of
from tests.engine.segment_audits.published_runs import INTERVALS, Liar, Trained

TURN = 0.1
"""Time between two looks. The trainer takes 1 for an interval."""


@dataclass
class Clock:
    """The time, and the answers that are due at one."""

    now: float = 0.0
    due: list[tuple[float, Future[WorkerAnswer], WorkerAnswer]] = field(default_factory=list)

    def turn(self) -> None:
        self.now += TURN
        for one in [one for one in self.due if one[0] <= self.now]:
            self.due.remove(one)
            one[1].set_result(one[2])


@dataclass
class Slow(Executor):
    """A worker that takes a time of its own for an interval."""

    clock: Clock
    time: float

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        answer = audit_segment(args[0])
        future: Future[Any] = Future()
        # The seconds that it tells keep it from being taken for one that hangs.
        self.clock.due.append((self.clock.now + self.time * len(args[0].segment), future, replace(answer, seconds=1e6)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


def follow(trained: Trained, whole: Listing, run_dir: Path, *, workers: int, time: float) -> tuple[SegmentAudit, float]:
    """The audit of a run that publishes an interval at each full hour, and when it ends."""
    clock = Clock()

    def look() -> Listing:
        clock.turn()
        done = min(int(clock.now + 1e-9), INTERVALS)
        states = {number: address for number, address in whole.states.items() if number <= done}
        return Listing(roots=whole.roots[:done], states=states, complete=done == INTERVALS)

    sharing = Sharing(make=lambda number: Slow(clock, time), workers=workers, common_disk=True)
    source = source_of(trained.directory / "job")
    return audit_by_segments(trained.job, look, source, run_dir, sharing, poll=0.0), clock.now


@pytest.mark.slow_but("2-1.7")
@pytest.mark.parametrize(("workers", "time"), [(1, 0.9), (2, 1.7)], ids=str)
def test_workers_that_keep_up_end_at_most_two_intervals_after_the_run(
    trained: Trained, tmp_path: Path, workers: int, time: float
) -> None:
    found, end = follow(trained, trained.listing(), tmp_path / "audit", workers=workers, time=time)
    assert found.is_whole and found.state_roots == trained.roots
    assert INTERVALS < end <= INTERVALS + 2


def test_a_wrong_interval_is_found_while_the_run_goes_on(trained: Trained, tmp_path: Path) -> None:
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(3, consistent=True)
    found, end = follow(trained, liar.listing(), tmp_path / "audit", workers=2, time=1.0)
    assert found.wrong is not None and found.wrong.interval == 3
    assert end <= 4 + 2 < INTERVALS and len(found.state_roots) < INTERVALS
    # The audit goes on in its directory once the run has ended, and then has the root that wins a game.
    after = trained.audit(tmp_path / "audit", liar.listing())
    assert after.wrong == found.wrong and after.checkpoint_root != found.checkpoint_root
    assert after.state_roots[:3] == trained.roots[:3] and after.state_roots[4:] == liar.roots[4:]
