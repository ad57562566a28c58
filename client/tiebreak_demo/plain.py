"""The problem: the demo's training in plain FP32 PyTorch, without the engine, on two machines.

Run as a program, with the directory of the demo's job, in a fresh process on some machine: prints `initial HASH`,
`step N` after every step, and `trained HASH`, each hash the SHA-256 of all parameters and buffers.
"""

from __future__ import annotations

import platform
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak_demo.processes import PATIENCE, A, B, ChildProcesses, Machine
from tiebreak_demo.report import Check, Contrast
from tiebreak_demo.screen import Screen

if TYPE_CHECKING:
    from torch import nn


def play_contrast(contrast: Contrast, children: ChildProcesses, screen: Screen, job_dir: Path, steps: int) -> None:
    """Train on both machines and compare. Raises ProcessFailed."""
    said: dict[str, dict[str, str]] = {A.name: {}, B.name: {}}

    def hear(machine: Machine, line: str) -> None:
        name, _, value = line.partition(" ")
        if name == "step":
            screen.bar(machine.name, "plain training", int(value) + 1, steps)
        else:
            said[machine.name][name] = value
        if name == "trained":
            screen.line(machine.name, f"plain PyTorch trains to {value[:16]}…")

    command = [sys.executable, "-P", "-m", "tiebreak_demo.plain", str(job_dir)]
    for machine in (A, B):
        children.start(machine.name, command, machine.environment(), lambda line, machine=machine: hear(machine, line))  # type: ignore[misc]
        screen.bar(machine.name, "plain training", 0, steps)
    children.listen(children.ended, patience=PATIENCE)
    contrast.initial = {name: words.get("initial", "") for name, words in said.items()}
    contrast.trained = {name: words.get("trained", "") for name, words in said.items()}
    same_start = "both machines have started from the same parameters"
    contrast.checks = [Check(same_start, contrast.initial[A.name], contrast.initial[B.name])]
    results = len(set(contrast.trained.values()))
    if results == 1 and platform.machine() != "x86_64":
        # The profiles choose kernels of x86-64; elsewhere they may change the number of threads alone.
        screen.line(B.name, "the same: the profiles choose no other kernels on this processor")
    else:
        text = "and have ended in different ones: nobody can audit this by repeating it"
        contrast.checks.append(Check(text, "two results", "two results" if results == 2 else "one result"))
    for check in contrast.checks:
        screen.check(check)


def main(directory: Path) -> None:
    """Train the demo's task, with nothing of the engine's arithmetic."""
    import torch
    from roundlog.examples import PlainTraining, digits
    from roundlog.randomness import batch_rows
    from roundlog.training import Job

    job = Job.read(directory)
    task = digits(steps=job.spec.steps)
    # PyTorch's own initialisation will not do: from one seed, it has different bits on different machines.
    start = {name.partition("/")[2]: tensor for name, tensor in job.initial.items() if not name.startswith("slot/")}
    task.model.load_state_dict(start)
    print("initial", _hash(task.model), flush=True)
    plain = PlainTraining(task)
    for step in range(task.steps):
        rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
        plain.step(step, {name: field[rows] for name, field in task.dataset.items()})
        print("step", step, flush=True)
    print("trained", _hash(plain.model), flush=True)


def _hash(model: nn.Module) -> str:
    return sha256(
        b"".join(one.detach().contiguous().numpy().tobytes() for one in model.state_dict().values())
    ).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
