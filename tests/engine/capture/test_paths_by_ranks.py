"""Steps that decide by values, and that take rows by masks, by several ranks and in parts: one root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer
from torch import Tensor

from tests.engine.capture.later_steps import Net, task_of
from tests.engine.ranks.test_ranks import hold_trainings

Forward = Callable[[Net, Tensor], Tensor]


def _decides(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.b(h) * min(1.0, net.n / 4) if h.mean() > 0 else h + net.b(x) * (2 if net.n % 2 else 1)


def _chooses_rows(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.drop(h[h[:, 0] > 0]).sum() * 0.1 + net.b(x)


def _job(forward: Forward) -> Job:
    return Job.from_task(task_of(Net(forward), steps=4, interval=2))


@pytest.mark.slow_but("_decides")
@pytest.mark.parametrize("forward", [_decides, _chooses_rows])
def test_an_auditor_that_cuts_its_batches_comes_to_the_trainers_root(forward: Forward, tmp_path: Path) -> None:
    job = _job(forward)
    result = Trainer(job, tmp_path / "trainer").run()
    for count in (2, 4):
        audit = Auditor(
            job, tmp_path / f"{count}", RunOptions(micro_batches=count), log_dir=result.log_dir, verify_log=1.0
        ).run()
        assert (audit.state_roots, audit.findings, audit.unreadable) == (result.state_roots, [], [])


@pytest.mark.slow
def test_ranks_come_to_the_roots_of_one_process(tmp_path: Path) -> None:
    for forward in (_decides, _chooses_rows):
        _job(forward).write(tmp_path / forward.__name__)
    hold_trainings("run_jobs", [str(tmp_path / one.__name__) for one in (_decides, _chooses_rows)], 2)
