"""The saving by micro-batches: the memory of an auditor's step, whole and cut.

    .venv/bin/python scripts/bench_microbatch.py [--json FILE]

Every figure is measured in a process of its own: how far its resident memory rises during two steps (VmHWM, set back
before them), over what it had when the job was captured and a small one of the same kind had run, so that libraries are
loaded and loops compiled. "planned" is the upper bound that a reader's memory limit goes by. Times are CPU seconds of
the second step.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from roundlog.capture import Task
from roundlog.examples.gpt import TransformerBlock
from roundlog.examples.logistic import logistic
from roundlog.execution import Batches, Executor
from roundlog.execution.microbatch import MicrobatchExecutor, peak_bytes
from roundlog.operators import StepInputs
from roundlog.rounding import Follower
from roundlog.training.job import Job
from torch import nn
from torch.nn import functional as F


class GPT(nn.Module):
    """4 layers of width 192 on sequences of 64: activations outweigh parameters, as they do in practice."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(1000, 192), nn.Embedding(64, 192)
        self.blocks = nn.Sequential(*(TransformerBlock(192, 6, 0.1) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1000, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.token(tokens) + self.position.weight)))
        return logits


def task_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> Task:
    return Task(
        model=model,
        loss=lambda m, b: F.cross_entropy(m(b["x"]).flatten(0, -2), b["y"].flatten()),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        dataset={"x": x, "y": y},
        batch_size=batch,
        steps=2,
        interval=2,
        seed=1,
    )


def gpt(batch: int = 16) -> Task:
    return task_of(GPT(), torch.randint(0, 1000, (batch, 64)), torch.randint(0, 1000, (batch, 64)), batch)


def vgg(batch: int = 32, norm: bool = False) -> Task:
    layers: list[nn.Module] = []
    width = 3
    for wide in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(width, wide, 3, padding=1), *([nn.BatchNorm2d(wide)] if norm else []), nn.ReLU()]
            width = wide
        layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))
    return task_of(model, torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,)), batch)


TASKS: dict[str, Callable[[int], Task]] = {
    "gpt": gpt,
    "vgg": vgg,
    "vgg with batch norm": lambda batch: vgg(batch, True),
    "logistic regression": lambda batch: logistic(rows=2 * batch, steps=2, interval=2, batch_size=batch),
}
TASKS["logistic regression, large batch"] = TASKS["logistic regression"]
BATCH = {
    "gpt": 16,
    "vgg": 32,
    "vgg with batch norm": 32,
    "logistic regression": 2048,
    "logistic regression, large batch": 32768,
}


def status(name: str) -> int:
    """Bytes, of this process. Not ru_maxrss: a child begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def two_steps(job: Job, count: int) -> float:
    """CPU seconds of the second."""
    batches, rounding = Batches(job.dataset, job.spec), Follower.without_log(job.spec.log_guard)
    cpu = 0.0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        executor = MicrobatchExecutor(job.program, count, Path(directory)) if count > 1 else Executor(job.program)
        states = list(job.initial.values())
        for step in range(2):
            started = time.process_time()
            inputs = StepInputs(
                states=states,
                data=list(batches.load(step)) if count == 1 else batches.load(step),
                schedule=job.schedule[step],
                seed=job.spec.seed,
                step=step,
                device=torch.device("cpu"),
            )
            states = executor.run(inputs, rounding).states
            cpu = time.process_time() - started
    return cpu


def measure(name: str, count: int) -> dict[str, float]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    job = Job.from_task(lambda: TASKS[name](BATCH[name]))
    two_steps(Job.from_task(lambda: TASKS[name](2)), min(count, 2))
    # Memory that the small task has given back goes back to the system.
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    cpu = two_steps(job, count)
    return {"rise": status("VmHWM") - before, "planned": peak_bytes(job.program, count), "cpu": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("TASK", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    rows = []
    for name in TASKS:
        whole: dict[str, float] = {}
        for count in (1, 2, 4, 8):
            command = [sys.executable, __file__, "--one", name, str(count)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            whole = whole or found
            row = {"task": name, "micro_batches": count, "bytes": found["rise"], "planned": found["planned"]}
            row |= {f"{key} / whole": round(found[key] / whole[key], 2) for key in ("rise", "planned", "cpu")}
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
