"""Small jobs for the campaign, of which one trains in a fraction of a second."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from roundlog.capture import Task
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from torch import nn

KINDS = 3
STEPS, INTERVAL = 12, 3


def small_job(kind: int) -> Job:
    """0: a linear classifier with momentum; 1: a convolution with batch norm; 2: a classifier of rows that fit no
    transaction."""
    torch.manual_seed(5 + kind)
    if kind == 0:
        model: nn.Module = nn.Linear(4, 3)
        inputs = torch.randn(11, 4)
    elif kind == 2:
        model = nn.Linear(17_000, 3)
        inputs = torch.randn(11, 17_000)
    else:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
        inputs = torch.randn(11, 1, 4, 4)
    task = Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-5 if kind == 2 else 0.1, momentum=0.9),
        dataset={"x": inputs, "y": torch.randint(0, 3, (11,))},
        batch_size=4,
        steps=STEPS,
        interval=INTERVAL,
        seed=9,
    )
    return Job.from_task(lambda: task)


def write_jobs(directory: Path) -> None:
    """Writes all kinds below `directory`, as `job-0` and so on, and the checkpoint roots of honest runs."""
    roots = []
    for kind in range(KINDS):
        job = small_job(kind)
        job.write(directory / f"job-{kind}")
        with tempfile.TemporaryDirectory() as name:
            roots.append(Trainer(job, Path(name) / "run").run().checkpoint_root.hex())
    (directory / "roots.json").write_text(json.dumps(roots))


def read_roots(directory: Path) -> list[bytes]:
    """The checkpoint roots that `write_jobs` has found."""
    return [bytes.fromhex(root) for root in json.loads((directory / "roots.json").read_text())]
