"""Print what a step of logistic regression takes in memory, whole or in micro-batches: a JSON list [planned, taken],
bytes beside the state.

Taken is the process's peak of resident memory (Linux: /proc/self/status, reset by /proc/self/clear_refs)."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from roundlog.execution import Batches, Executor
from roundlog.execution.microbatch import MicrobatchExecutor, peak_bytes
from roundlog.rounding import Follower
from roundlog.training.job import Job
from torch import nn

from tests.engine.tasks import classify, small_task


def logistic(batch: int) -> Job:
    torch.manual_seed(0)
    model = nn.Linear(512, 2)
    data = {"x": torch.randn(batch, 512), "y": torch.randint(0, 2, (batch,))}
    return Job.from_task(lambda: small_task(model, classify, data, seed=3), compare=False)


def step(job: Job, count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        executor = MicrobatchExecutor(job.program, count, Path(directory)) if count > 1 else Executor(job.program)
        inputs = job.inputs(Batches(job.dataset, job.spec), 0, list(job.initial.values()))
        executor.run(inputs, Follower.without_log(job.spec.log_guard))


def taken(called: Callable[[], object]) -> int:
    """Bytes by which resident memory rises at most while this is called."""
    gc.collect()
    # Memory that has been given back does not count as there.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    called()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    (line,) = [text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(name + ":")]
    return int(line.split()[1]) << 10


def main(batch: int, count: int) -> None:
    torch.set_num_threads(1)
    small, job = logistic(16), logistic(batch)
    step(small, min(count, 2))  # loads and compiles what is needed
    print(json.dumps([peak_bytes(job.program, count), taken(lambda: step(job, count))]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
