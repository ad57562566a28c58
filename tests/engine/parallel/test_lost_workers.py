"""Audits by workers that die, hang or fail: the same verdict, at an end."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from audit_workers import Stand, named
from published_runs import INTERVALS, Liar, Trained, train
from roundlog.data import RemoteDataError
from roundlog.parallel import audit
from roundlog.parallel.crew import NoWorkersError
from roundlog.parallel.result import ParallelAudit, Reports
from roundlog.parallel.segment import Answer, Order, audit_segment
from roundlog.parallel.workers import ProcessWorker


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("trained"))


def test_workers_that_die_hang_and_fail_change_no_verdict(trained: Trained, tmp_path: Path) -> None:
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(6, consistent=True)
    for seed in range(10):
        chance = random.Random(seed)

        def dies(order: Order, chance: random.Random = chance) -> Answer | None:
            return None if chance.random() < 0.3 else audit_segment(order)

        def make(number: int, chance: random.Random = chance) -> Stand:
            return Stand(named(f"{number}", dies), hangs=lambda order: number == 0 and chance.random() < 0.1)

        run_dir = tmp_path / f"audit {seed}"
        if seed % 2:
            assert trained.audit(run_dir, make=make, workers=3, repeat_share=0.3).is_whole
        else:
            found = trained.audit(run_dir, liar.listing(), make=make, workers=3, repeat_share=0.3)
            assert found.wrong is not None and found.wrong.interval == 6


def test_an_audit_ends_though_nobody_is_there_to_repeat_what_one_worker_answers(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one hangs, as an actor does for which a cluster has no processor."""
    monkeypatch.setattr(audit, "_PATIENCE", 0.2)
    liar = Liar(trained, tmp_path / "liar")
    liar.lie(4, consistent=True)
    orders: list[Order] = []

    def works(order: Order) -> Answer:
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


def test_what_kills_every_worker_is_told(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(NoWorkersError, match=r"10 workers in a row were lost over interval [12]: .*memory"):
        trained.audit(tmp_path / "audit", make=lambda number: Stand(lambda order: None))

    def fails(order: Order) -> Answer:
        raise OSError("the disk is full")

    with pytest.raises(NoWorkersError, match=r"no worker is left: worker 2.*\(OSError: the disk is full\)"):
        trained.audit(tmp_path / "audit", make=lambda number: Stand(fails))


def test_what_a_worker_has_answered_before_its_data_were_lost_is_believed(trained: Trained, tmp_path: Path) -> None:
    answered: list[Order] = []

    def loses(order: Order) -> Answer:
        if answered:
            raise RemoteDataError(Path("data.safetensors"), "block 3 of the field x cannot be used")
        answered.append(order)
        return replace(audit_segment(order), fetched=7)

    with pytest.raises(NoWorkersError, match=r"no worker is left: .*RemoteDataError: data.safetensors: block 3 of the"):
        trained.audit(tmp_path / "audit", make=lambda number: Stand(loses), workers=1)
    orders: list[Order] = []

    def carries_on(order: Order) -> Answer:
        orders.append(order)
        return replace(audit_segment(order), fetched=5)

    found = trained.audit(tmp_path / "audit", make=lambda number: Stand(carries_on), workers=1)
    assert found.is_whole and found.fetched == 5 * len(orders)
    assert answered[0].segment not in [order.segment for order in orders]


def test_a_worker_whose_process_is_stopped_holds_no_audit_up(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a process answers nothing, and does not end when it is asked to."""
    monkeypatch.setattr(audit, "_PATIENCE", 0.2)
    made: dict[int, ProcessWorker] = {}

    def make(number: int) -> ProcessWorker:
        return made.setdefault(number, ProcessWorker(threads=1))

    def progress(done: int, total: int) -> None:
        for pid in made[0].pids if done and made[0].pids else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    found: list[ParallelAudit] = []

    def work() -> None:
        found.append(trained.audit(tmp_path / "audit", make=make, reports=Reports(progress=progress)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    ended = not thread.is_alive()
    for worker in made.values():
        for pid in worker.pids:
            os.kill(pid, signal.SIGKILL)
    assert ended and found[0].is_whole
