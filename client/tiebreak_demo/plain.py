"""The demo's training in plain FP32 PyTorch, without the engine. It shows the problem.

Run as a program, with the directory of the demo's job, in a fresh process on some machine: prints `initial HASH`,
`step N` after every step, and `trained HASH`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import torch
from roundlog.capture import Task
from roundlog.examples import PlainTraining, digits
from roundlog.randomness import batch_rows
from roundlog.training import Job
from torch import nn


def train_plain(task: Task, on_step: Callable[[int], None]) -> nn.Module:
    """Trains a copy of the model of `task`, in the order of the task's data, and returns it: nothing of the engine's
    arithmetic is used.

    on_step: called with the number of every step that is done."""
    plain = PlainTraining(task)
    for step in range(task.steps):
        rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
        plain.step(step, {name: field[rows] for name, field in task.dataset.items()})
        on_step(step)
    return plain.model


def model_hash(model: nn.Module) -> str:
    """SHA-256, in hex, of the bytes of all parameters and buffers, in the order of the model's state dict."""
    digest = sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def same_start(task: Task, job: Job) -> None:
    """Gives the task's model the parameters and buffers with which the job starts. PyTorch's own initialisation will
    not do: from one seed, it has different bits on different machines."""
    start = {name.partition("/")[2]: tensor for name, tensor in job.initial.items() if not name.startswith("slot/")}
    task.model.load_state_dict(start)


def main(directory: Path) -> None:
    """Trains the demo's task."""
    job = Job.read(directory)
    task = digits(steps=job.spec.steps)
    same_start(task, job)
    print("initial", model_hash(task.model), flush=True)
    trained = train_plain(task, lambda step: print("step", step, flush=True))
    print("trained", model_hash(trained), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
