"""The engine on a device that is not the CPU, which every machine has: `foreign_device`. It takes the code paths that
CUDA takes, with kernels that err otherwise, and has to come to the same roots, with a CPU's log and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import foreign_device
import pytest
from roundlog.auditor import Auditor
from roundlog.dispute import MadeUp, trace_step
from roundlog.executor import Executor
from roundlog.job import Job
from roundlog.policies import alone
from roundlog.replay import replay_interval, replay_state
from roundlog.run import Run
from roundlog.trainer import Trainer
from tasks import TASKS

CHILD = "import sys, test_foreign_device; sys.exit(test_foreign_device.work(*sys.argv[1:]))"


def work(job_dir: str, run_dir: str, log_dir: str) -> None:
    """Train, audit three times and replay on the device, in a process of its own: PyTorch knows the device for good."""
    foreign_device.install()
    job, room = Job.read(Path(job_dir)), Path(run_dir)
    with foreign_device.foreign():
        trained = Trainer(job, room / "trained", device=foreign_device.NAME).run()
        by_log = Auditor(job, room / "by log", log_dir=Path(log_dir), verify_log=0.5, device=foreign_device.NAME).run()
        by_itself = Auditor(job, room / "alone", device=foreign_device.NAME).run()
        cut = Auditor(
            job, room / "cut", log_dir=Path(log_dir), verify_log=0.5, device=foreign_device.NAME, micro_batches=2
        ).run()
        run = Run(job, room / "trained", device=foreign_device.NAME)
        steps = replay_interval(run, 1)
        assert isinstance(run.executor, Executor)
        inputs = run.inputs(3, replay_state(run, 3))
        trace = trace_step(run.executor, inputs, alone(job.spec), MadeUp(room))
    found = [by_log.findings, by_log.unreadable, cut.findings, cut.unreadable]
    roots = [run.checkpoint_root.hex() for run in (trained, by_log, by_itself, cut)]
    replayed = [root.hex() for root in (*steps, trace.tree.root)]
    print(json.dumps({"roots": roots, "found": found, "replayed": replayed, "log": str(trained.log_dir)}))


def child(code: str, *arguments: str) -> str:
    """What a process prints that finds the modules that this one finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["conv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("linear", "gpt"))])
def test_another_device_comes_to_the_same_roots_and_its_log_is_as_good(name: str, tmp_path: Path) -> None:
    Job.from_task(TASKS[name](steps=4)).write(tmp_path / "job")
    job = Job.read(tmp_path / "job")
    here = Trainer(job, tmp_path / "here").run()
    there = json.loads(child(CHILD, str(tmp_path / "job"), str(tmp_path / "there"), str(here.log_dir)))
    assert there["roots"] == [here.checkpoint_root.hex()] * 4
    assert there["found"] == [[], [], [], []]
    # And the other way round: the CPU follows the device's log.
    audit = Auditor(job, tmp_path / "audit", log_dir=Path(there["log"]), verify_log=1.0).run()
    assert (audit.checkpoint_root, audit.findings, audit.unreadable) == (here.checkpoint_root, [], [])
    # What a dispute needs: the steps of an interval, and all that the last of them computes.
    run = Run(job, tmp_path / "here")
    assert isinstance(run.executor, Executor)
    trace = trace_step(run.executor, run.inputs(3, replay_state(run, 3)), alone(job.spec), MadeUp(tmp_path))
    assert there["replayed"] == [root.hex() for root in (*replay_interval(run, 1), trace.tree.root)]


MIXES = """
import torch, foreign_device
foreign_device.install()
with foreign_device.foreign():
    x = torch.ones(3).to("foreign")
    assert x.device.type == "foreign" and (x + 1).device.type == "foreign" and x.cpu().device.type == "cpu"
    for wrong in (lambda: x + torch.ones(3), lambda: x.numpy(), lambda: torch.from_numpy(x)):
        try:
            wrong()
        except (RuntimeError, TypeError):
            continue
        raise SystemExit("a mix was not noticed")
    a = torch.rand(50, 50, dtype=torch.float64)
    there = (a.to("foreign") @ a.to("foreign")).cpu()
    assert (there != a @ a).any() and torch.allclose(there, a @ a, rtol=1e-12)
"""


def test_the_device_notices_what_only_a_cpu_can_do_and_has_bits_of_its_own() -> None:
    child(MIXES)
