"""Print what a step of logistic regression takes in memory, whole or in micro-batches: a JSON list [planned, taken],
bytes beside the state.

Taken is the process's peak of resident memory (Linux: /proc/self/status, reset by /proc/self/clear_refs)."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import tempfile
from pathlib import Path

import torch
from roundlog.capture import Task
from roundlog.execution import Batches, Executor
from roundlog.execution.microbatch import MicrobatchExecutor, peak_bytes
from roundlog.operators import StepInputs
from roundlog.rounding import Follower
from roundlog.training.job import Job
from torch import nn


def logistic(batch: int) -> Job:
    torch.manual_seed(0)
    model = nn.Linear(512, 2)
    task = Task(
        model=model,
        loss=lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(batch, 512), "y": torch.randint(0, 2, (batch,))},
        batch_size=batch,
        steps=1,
        interval=1,
        seed=3,
    )
    return Job.from_task(task)


def step(job: Job, count: int) -> None:
    batches = Batches(job.dataset, job.spec)
    cpu = torch.device("cpu")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        executor = MicrobatchExecutor(job.program, count, Path(directory)) if count > 1 else Executor(job.program)
        inputs = StepInputs(
            states=list(job.initial.values()),
            data=batches.load(0) if count > 1 else list(batches.load(0)),
            schedule=job.schedule[0],
            seed=job.spec.seed,
            step=0,
            device=cpu,
        )
        executor.run(inputs, Follower.without_log(job.spec.log_guard))


def _status(name: str) -> int:
    (line,) = [text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(name + ":")]
    return int(line.split()[1]) << 10


def main(batch: int, count: int) -> None:
    torch.set_num_threads(1)
    small, job = logistic(16), logistic(batch)
    step(small, min(count, 2))  # loads and compiles what is needed
    gc.collect()
    # Memory that has been given back does not count as there.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    step(job, count)
    print(json.dumps([peak_bytes(job.program, count), _status("VmHWM") - before]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
