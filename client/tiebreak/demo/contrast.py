"""The problem that the demo begins with: one training by plain PyTorch gives two results on two machines."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from tiebreak.demo.machines import A, B, Machine
from tiebreak.demo.processes import PATIENCE, ChildProcesses
from tiebreak.demo.report import Check, Contrast
from tiebreak.demo.screen import Screen


def play(contrast: Contrast, children: ChildProcesses, screen: Screen, job_dir: Path, steps: int) -> None:
    """Trains twice and compares. Raises ProcessFailed."""
    said: dict[str, dict[str, str]] = {A.name: {}, B.name: {}}

    def hear(machine: Machine, line: str) -> None:
        name, _, value = line.partition(" ")
        if name == "step":
            screen.bar(machine.name, "plain training", int(value) + 1, steps)
        else:
            said[machine.name][name] = value
        if name == "trained":
            screen.line(machine.name, f"plain PyTorch trains to {value[:16]}…")

    command = [sys.executable, "-P", "-m", "tiebreak.demo.plain", str(job_dir)]
    for machine in (A, B):
        children.start(machine.name, command, machine.environment(), lambda line, machine=machine: hear(machine, line))  # type: ignore[misc]
        screen.bar(machine.name, "plain training", 0, steps)
    children.listen(lambda: children.ended({A.name, B.name}), patience=PATIENCE)
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
