"""The engine on a device that is not the CPU, which every machine has: `foreign_device`. It takes the code paths that
CUDA takes, with kernels that err otherwise, and has to come to the same roots, with a CPU's log and without."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from roundlog.commitments import state_root
from roundlog.dispute import FabricatedValues, trace_step
from roundlog.execution import Executor, StoppedError
from roundlog.rounding import Recorder
from roundlog.rounding.policies import without_log
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.repetition import replay_interval, replay_state
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer

from tests.engine.kept_jobs import KEPT_JOBS, kept_job
from tests.engine.running import foreign_device
from tests.engine.tasks import TASKS

pytestmark = pytest.mark.slow

IMPORTED = "import sys; from tests.engine.running import test_foreign_device as here"
CHILD = f"{IMPORTED}; sys.exit(here.work(*sys.argv[1:]))"


def work(job_dir: str, run_dir: str, log_dir: str) -> None:
    """Train, audit three times and replay on the device, in a process of its own: PyTorch knows the device for good."""
    foreign_device.install()
    job, room = Job.read(Path(job_dir)), Path(run_dir)
    with foreign_device.foreign():
        trained = Trainer(job, room / "trained", RunOptions(device=foreign_device.NAME)).run()
        by_log = Auditor(
            job, room / "by log", RunOptions(device=foreign_device.NAME), log_dir=Path(log_dir), verify_log=0.5
        ).run()
        by_itself = Auditor(job, room / "alone", RunOptions(device=foreign_device.NAME)).run()
        cut = Auditor(
            job,
            room / "cut",
            RunOptions(device=foreign_device.NAME, micro_batches=2),
            log_dir=Path(log_dir),
            verify_log=0.5,
        ).run()
        run = Run(job, room / "trained", RunOptions(device=foreign_device.NAME))
        steps = replay_interval(run, 1)
        inputs = run.inputs(3, replay_state(run, 3))
        trace = trace_step(run.executor, inputs, without_log(job.spec), FabricatedValues(room))
    found = [by_log.findings, by_log.unreadable, cut.findings, cut.unreadable]
    roots = [run.checkpoint_root.hex() for run in (trained, by_log, by_itself, cut)]
    replayed = [root.hex() for root in (*steps, trace.tree.root)]
    print(json.dumps({"roots": roots, "found": found, "replayed": replayed, "log": str(trained.log_dir)}))


def child(code: str, *arguments: str) -> str:
    """Output of a process that finds the modules that this one finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["convolution", "gpt_bf16"])
def test_another_device_comes_to_the_same_roots_and_its_log_is_as_good(name: str, tmp_path: Path) -> None:
    job = kept_job(name)
    here = Trainer(job, tmp_path / "here").run()
    there = json.loads(child(CHILD, str(KEPT_JOBS / name), str(tmp_path / "there"), str(here.log_dir)))
    assert there["roots"] == [here.checkpoint_root.hex()] * 4
    assert there["found"] == [[], [], [], []]
    # And the other way round: the CPU follows the device's log.
    audit = Auditor(job, tmp_path / "audit", log_dir=Path(there["log"]), verify_log=1.0).run()
    assert (audit.checkpoint_root, audit.findings, audit.unreadable) == (here.checkpoint_root, [], [])
    # A dispute needs the steps of an interval, and all that the last of them computes.
    run = Run(job, tmp_path / "here")
    trace = trace_step(
        run.executor, run.inputs(3, replay_state(run, 3)), without_log(job.spec), FabricatedValues(tmp_path)
    )
    assert there["replayed"] == [root.hex() for root in (*replay_interval(run, 1), trace.tree.root)]


def stop(job_dir: str) -> None:
    """Run the step after each state that has one slot filled with something huge, and tell how it ends."""
    foreign_device.install()
    job = Job.read(Path(job_dir))
    with foreign_device.foreign():
        run = Run(job, Path(job_dir) / "run", RunOptions(device=foreign_device.NAME))
        print(json.dumps(ends(run)))


def ends(run: Run) -> list[str]:
    executor, found = run.executor, []
    assert isinstance(executor, Executor)
    initial = list(run.job.initial.values())
    for slot, state in enumerate(initial[:9]):  # what comes after is read by updates alone, as the last of these
        if state.dtype != torch.float32:
            continue
        for value in (3e38, 1e25, torch.nan):
            states = [*initial[:slot], torch.full_like(state, value), *initial[slot + 1 :]]
            inputs = run.inputs(0, [x.to(run.device) for x in states])
            try:
                result = executor.run(inputs, Recorder(run.job.spec.log_guard))
            except StoppedError as error:
                found.append(f"{slot} {value}: {error}")
            else:
                found.append(f"{slot} {value}: {state_root(result.states).hex()}")
    return found


def test_what_stops_a_step_is_named_as_on_the_cpu(tmp_path: Path) -> None:
    job = Job.from_task(lambda: TASKS["conv"](steps=4), compare=False)
    job.write(tmp_path / "job")
    here = ends(Run(Job.read(tmp_path / "job"), tmp_path / "run"))
    code = (
        "import sys; from tests.engine.running import test_foreign_device as here; sys.exit(here.stop(*sys.argv[1:]))"
    )
    assert json.loads(child(code, str(tmp_path / "job"))) == here
    # By exact operators, by inexact ones, by the state itself; and not at all.
    for how in (r"\(mul, .* gives inf", r"\((conv2d|sum), .* gives -?inf", r"\(state\) has nan", r"^1 1e\+25: \w{64}$"):
        assert any(re.search(how, end) for end in here), how
