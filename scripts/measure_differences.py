"""Differences of losses from PyTorch's in FP64: of a captured program, of PyTorch's FP32, and of PyTorch's FP32 from
weights that were moved by one unit in the last place.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/measure_differences.py [--steps 3] [--only WORD]

Kinds are those of scripts/bench_capture.py. All runs begin in one state, get the same batches and random numbers, and
go on by gradients of their own. Printed is the largest relative difference of a step's loss, step by step. A model in
which the last column grows amplifies rounding; whatever adds in another order then comes to another loss, PyTorch on
another processor too.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping

import torch
from bench_capture import Make, kinds
from roundlog.capture import CaptureError, Task, capture
from roundlog.training.trial import Results, Trial, TrialProgress

NUDGES = 3
"""Times that weights are moved at random; the largest difference counts."""


def losses(task: Task, steps: int) -> tuple[list[float], list[float], list[list[float]], list[float]]:
    """Losses of a program, of PyTorch's FP32, of that after each nudge, and of PyTorch's FP64."""
    captured, steps = capture(lambda: task), min(steps, task.steps)
    progress = TrialProgress(lambda share, what: None, [steps], kernels=0)
    trial = Trial(captured, captured.states, steps, progress)
    ours = [float(results["the loss"]()) for results in trial.by_engine().kept]

    def by_pytorch(dtype: torch.dtype, start: Mapping[str, torch.Tensor] | None = None) -> list[float]:
        found: list[float] = []

        def look(_: int, results: Results) -> None:
            found.append(float(results["the loss"]()))

        trial.by_pytorch(dtype, look, start, alone=True)
        return found

    nudged = [by_pytorch(torch.float32, _nudged(captured.states, number)) for number in range(NUDGES)]
    return ours, by_pytorch(torch.float32), nudged, by_pytorch(torch.float64)


def _nudged(states: Mapping[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)

    def moved(x: torch.Tensor) -> torch.Tensor:
        signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
        return x * (1 + signs * 2.0**-23)

    return {name: moved(x) if name.startswith("parameter/") else x for name, x in states.items()}


def measure(name: str, make: Make, steps: int) -> str:
    """A row of the table."""
    try:
        ours, theirs, nudged, truth = losses(make(), steps)
    except (CaptureError, ImportError, RuntimeError) as error:
        return f"| {name} | - | - | not measured: {str(error).splitlines()[0][:80]} |"

    def apart(found: list[float]) -> list[float]:
        return [abs(one / other - 1) for one, other in zip(found, truth, strict=False)]

    most = [max(column) for column in zip(*map(apart, nudged), strict=True)]
    cells = [" ".join(f"{one:.0e}" for one in column) or "not in FP64" for column in (apart(ours), apart(theirs), most)]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", default="", help="kinds whose name has this word")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| kind | program | PyTorch | PyTorch, moved by an ulp |\n|---|---|---|---|", flush=True)
    for name, make in kinds():
        if options.only in name:
            print(measure(name, make, options.steps), flush=True)


if __name__ == "__main__":
    main()
