"""On a CUDA device, training comes to the CPU's roots, with Triton's kernels and without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from roundlog.execution import executor
from roundlog.operators import bounds
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer

from tests.engine.running import mixed_precision
from tests.engine.tasks import TASKS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("name", [*TASKS, "mixed precision"])
def test_a_device_comes_to_the_cpus_roots_and_its_log_is_as_good(
    name: str, triton: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not triton:
        for module in (executor, bounds):
            monkeypatch.setattr(module, "works", lambda device: False)
    made = Job.from_task(TASKS[name](steps=8)) if name in TASKS else mixed_precision.job(steps=8)
    made.write(tmp_path / "job")
    job = Job.read(tmp_path / "job")
    here = Trainer(job, tmp_path / "here").run()
    there = Trainer(job, tmp_path / "there", RunOptions(device="cuda")).run()
    assert there.state_roots == here.state_roots
    for device, log in (("cuda", here.log_dir), ("cpu", there.log_dir)):
        audit = Auditor(
            job, tmp_path / f"audit on {device}", RunOptions(device=device), log_dir=log, verify_log=0.5
        ).run()
        assert (audit.checkpoint_root, audit.findings, audit.unreadable) == (here.checkpoint_root, [], [])
