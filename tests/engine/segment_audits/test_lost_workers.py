"""Audits by workers that die, hang or fail: the same verdict, at an end."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from roundlog.segment_audits.plan import Reports, SegmentAudit
from roundlog.segment_audits.segment import SegmentOrder, WorkerAnswer, audit_segment
from roundlog.segment_audits.workers import NoWorkersError, ProcessWorker

from tests.engine.segment_audits.audit_workers import Stand, named
from tests.engine.segment_audits.published_runs import INTERVALS, Liar, Trained


@pytest.mark.slow
def test_an_audit_ends_though_nobody_is_there_to_repeat_what_one_worker_answers(
    trained: Trained, tmp_path: Path
) -> None:
    """The other one answers nothing, as an actor does for which a cluster has no processor."""
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(4, consistent=True)
    orders: list[SegmentOrder] = []

    def works(order: SegmentOrder) -> WorkerAnswer:
        orders.append(order)
        assert len(orders) < 10 * INTERVALS, "the same order again and again"
        return audit_segment(order)

    for hanging in (0, 1):

        def make(number: int, hanging: int = hanging) -> Stand:
            return Stand(named(f"{number}", works), hangs=lambda order: number == hanging)

        orders.clear()
        assert trained.audit(tmp_path / f"{hanging}", make=make, repeat_share=1.0).is_whole
        found = trained.audit(tmp_path / f"wrong {hanging}", liar.listing(), make=make, repeat_share=1.0)
        assert found.wrong is not None and found.wrong.interval == 4 and found.distrusted == []


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_liar_answers_while_it_is_found_out_counts_for_nothing(
    trained: Trained, tmp_path: Path, fails: bool
) -> None:
    """The repetition of its lie and its own next answer are there at once, and the repetition is looked at first."""
    trainer = Liar(trained, tmp_path / "liar")
    trainer.lie(3, consistent=True)
    lies: list[SegmentOrder] = []

    def lying(order: SegmentOrder) -> WorkerAnswer:
        """Says of every interval what the trainer claims."""
        if lies and fails:
            raise RuntimeError("it was about to be found out")
        segment = order.segment
        if segment.first <= 3 < segment.stop:
            lies.append(order)
        claimed = tuple(trainer.roots[segment.first : segment.stop])
        return replace(audit_segment(order), roots=claimed, stopped=None)

    def make(number: int) -> Stand:
        return Stand(named("liar", lying) if number == 1 else named("honest"))

    audit_dir = tmp_path / "audit"
    found = trained.audit(audit_dir, trainer.listing(), make=make, repeat_share=1.0)
    assert found.wrong is not None and found.wrong.interval == 3 and lies
    assert len(found.distrusted) == 1 and "liar" in found.distrusted[0]
    lines = [json.loads(line) for line in (audit_dir / "facts.jsonl").read_text().split("\n") if line]
    (at,) = (number for number, line in enumerate(lines) if "liar" in line.get("distrusted", ""))
    assert not [line for line in lines[at:] if "liar" in line.get("worker", "")]


def test_what_kills_every_worker_is_told(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(NoWorkersError, match=r"10 workers in a row were lost over interval [12]: .*memory"):
        trained.audit(tmp_path / "audit", make=lambda number: Stand(lambda order: None))

    def fails(order: SegmentOrder) -> WorkerAnswer:
        raise OSError("the disk is full")

    with pytest.raises(NoWorkersError, match=r"no worker is left: worker 2.*\(OSError: the disk is full\)"):
        trained.audit(tmp_path / "audit", make=lambda number: Stand(fails))


class Stopped:
    """Workers that are processes, of which some are stopped at some moment: they answer nothing, and do not end when
    they are asked to."""

    def __init__(self) -> None:
        self.made: dict[int, ProcessWorker] = {}

    def make(self, number: int) -> ProcessWorker:
        return self.made.setdefault(number, ProcessWorker(threads=1))

    def stop(self, *numbers: int) -> None:
        for number in numbers:
            for pid in self.made[number].pids if number in self.made else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def ended(self, audit: Callable[[], SegmentAudit], seconds: float = 100) -> SegmentAudit | None:
        """The result of an audit; None if it does not end in time. The workers' processes end in any case."""
        found: list[SegmentAudit] = []
        thread = threading.Thread(target=lambda: found.append(audit()), daemon=True)
        thread.start()
        thread.join(seconds)
        has_ended = not thread.is_alive()
        for worker in self.made.values():
            for pid in worker.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return found[0] if has_ended and found else None


@pytest.fixture
def stopped() -> Stopped:
    return Stopped()


@pytest.mark.slow
def test_a_worker_whose_process_is_stopped_holds_no_audit_up(
    trained: Trained, tmp_path: Path, stopped: Stopped
) -> None:
    def progress(done: int, total: int) -> None:
        if done:
            stopped.stop(0)

    audit = partial(trained.audit, tmp_path / "audit", make=stopped.make, reports=Reports(progress=progress))
    found = stopped.ended(audit)
    assert found is not None and found.is_whole
