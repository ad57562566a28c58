"""The same training without the engine: FP32 PyTorch as everybody writes it. It exists to show the problem.

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
from roundlog.examples.digits import digits
from roundlog.job import Job
from roundlog.randomness import batch_rows


def train_plain(task: Task, on_step: Callable[[int], None]) -> None:
    """Trains with the model, data, order, optimizer and schedule of `task`, and nothing of the engine's arithmetic."""
    schedule = torch.optim.lr_scheduler.LambdaLR(task.optimizer, task.schedule)
    for step in range(task.steps):
        rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
        task.optimizer.zero_grad()
        task.loss(task.model, {name: field[rows] for name, field in task.dataset.items()}).backward()
        task.optimizer.step()
        schedule.step()
        on_step(step)


def model_hash(task: Task) -> str:
    """SHA-256, in hex, of the bytes of all parameters and buffers, in the order of the model's state dict."""
    digest = sha256()
    for tensor in task.model.state_dict().values():
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
    print("initial", model_hash(task), flush=True)
    train_plain(task, lambda step: print("step", step, flush=True))
    print("trained", model_hash(task), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
