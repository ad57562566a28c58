"""Losses of a small GPT on a text: plain PyTorch in FP32, plain PyTorch under autocast in BF16, and the same autocast
as a captured program; or that program with exact products and with those of tensor cores.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/compare_bf16_losses.py [--arithmetics] [--steps 300] [--seeds 3] \\
        [--text FILE] [--write docs/figures]

A seed decides weights and batches; all runs of a seed begin in one state and get the same batches. Printed is the
mean loss of the last sixth of the steps of each run, how far the others are from plain autocast, with --arithmetics
from the program with exact products, and how far runs of that with different seeds (2 seeds or more) are from each
other. `--write` draws bf16-losses.png, or arithmetic-losses.png (matplotlib: the extra `papers`). Exit code 1 if a
captured program is further from what it is compared with than two seeds of that are from each other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from statistics import mean

import torch
from roundlog.capture import CaptureError, Task
from roundlog.examples.baseline import PlainTraining
from roundlog.examples.gpt import gpt
from roundlog.examples.gpt import loss as loss_in_fp32
from roundlog.operators.job_arithmetic import EXACT
from roundlog.randomness import batch_rows
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer
from torch import nn

_TEXT = Path(__file__).resolve().parents[1] / "docs" / "design.md"
FP32, AUTOCAST, PROGRAM = "plain FP32", "plain autocast", "captured program"
ARITHMETICS = (EXACT, "hopper", "ampere")
"""Arithmetics of the products of BF16 matrices."""

Losses = dict[tuple[str, int], list[float]]
"""(kind of run, seed) -> the loss of every step."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Kinds of runs, each a function of a task in FP32; the first one is what the others are compared with."""

    runs: Mapping[str, Callable[[Task], list[float]]]
    programs: Sequence[str]
    """Kinds that have to be near the first one."""
    figure: str
    styles: Mapping[str, str]

    @property
    def base(self) -> str:
        return next(iter(self.runs))


def small_gpt(text: Path, steps: int, seed: int) -> Task:
    """The example GPT in FP32, without dropout, whose draws would differ between PyTorch and a program."""
    return gpt(
        data=text,
        steps=steps,
        interval=steps,
        batch_size=8,
        context=32,
        width=32,
        heads=4,
        layers=1,
        dropout=0.0,
        seed=seed,
    )


def under_autocast(task: Task) -> Task:
    """The task with model and loss under autocast in BF16."""

    def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_in_fp32(model, batch)

    return replace(task, loss=loss)


def by_pytorch(task: Task) -> list[float]:
    """Losses of plain PyTorch, on the batches of the task's job."""
    training = PlainTraining(task)
    losses = []
    for step in range(task.steps):
        rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
        losses.append(training.step(step, {name: field[rows] for name, field in task.dataset.items()}))
    return losses


def by_program(task: Task, arithmetic: str = EXACT) -> list[float]:
    """Losses of the captured program."""
    losses: list[float] = []
    options = RunOptions(on_step=lambda event: losses.append(float(event.loss)))
    with tempfile.TemporaryDirectory() as room:
        Trainer(Job.from_task(lambda: task, arithmetic=arithmetic), Path(room) / "run", options).run()
    return losses


OF_PROGRAMS = Comparison(
    {
        AUTOCAST: lambda task: by_pytorch(under_autocast(task)),
        FP32: by_pytorch,
        PROGRAM: lambda task: by_program(under_autocast(task)),
    },
    (PROGRAM,),
    "bf16-losses.png",
    {FP32: "-C0", AUTOCAST: "-C1", PROGRAM: ":C2"},
)
OF_ARITHMETICS = Comparison(
    {name: lambda task, name=name: by_program(under_autocast(task), name) for name in ARITHMETICS},  # type: ignore[misc]
    ARITHMETICS[1:],
    "arithmetic-losses.png",
    {EXACT: "-C1", "hopper": ":C2", "ampere": ":C3"},
)


def measure(comparison: Comparison, text: Path, steps: int, seeds: int) -> Losses:
    found: Losses = {}
    for seed in range(1, seeds + 1):
        task = small_gpt(text, steps, seed)
        for kind, run in comparison.runs.items():
            found[kind, seed] = run(task)
        last = {kind: _last(found[kind, seed]) for kind in comparison.runs}
        print(f"seed {seed}: " + ", ".join(f"{kind} {value:.4f}" for kind, value in last.items()), flush=True)
    return found


def _last(losses: Sequence[float]) -> float:
    """The mean loss of the last sixth of the steps, in which the loss falls slowly."""
    return mean(losses[-max(1, len(losses) // 6) :])


def distances(comparison: Comparison, found: Losses) -> tuple[dict[str, float], float]:
    """(the largest distance of each other kind from the first one, the least distance of two seeds of that), of two
    seeds or more."""
    last = {run: _last(losses) for run, losses in found.items()}
    seeds, base = sorted({seed for _, seed in found}), comparison.base
    apart = {
        kind: max(abs(last[kind, seed] - last[base, seed]) for seed in seeds)
        for kind in comparison.runs
        if kind != base
    }
    return apart, min(abs(last[base, one] - last[base, other]) for one, other in combinations(seeds, 2))


def draw(comparison: Comparison, found: Losses, path: Path) -> None:
    """The losses on the left, the differences from the first kind of the same seed on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (losses, differences) = pyplot.subplots(1, 2, figsize=(12, 4.4))
    base, seeds = comparison.base, sorted({seed for _, seed in found})
    for (kind, seed), values in found.items():
        style = comparison.styles[kind]
        label = kind if seed == seeds[0] else None
        losses.plot(_smooth(values), style, linewidth=1.3, label=label)
        if kind != base:
            beside = [one - other for one, other in zip(values, found[base, seed], strict=True)]
            differences.plot(beside, style, linewidth=1, label=label)
    for one, other in combinations(seeds, 2):
        between = [a - b for a, b in zip(_smooth(found[base, one]), _smooth(found[base, other]), strict=True)]
        label = f"{base}, another seed (mean of 20 steps)" if (one, other) == (seeds[0], seeds[1]) else None
        differences.plot(between, "--", color="grey", linewidth=0.9, label=label)
    losses.set(xlabel="step", ylabel="loss, mean of 20 steps", title=f"Loss, {len(seeds)} seeds")
    differences.set(xlabel="step", ylabel="difference of the loss", title=f"Difference from {base}")
    for panel in (losses, differences):
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _smooth(values: Sequence[float], window: int = 20) -> list[float]:
    return [mean(values[max(0, step + 1 - window) : step + 1]) for step in range(len(values))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arithmetics", action="store_true", help="compare the arithmetics of products")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--text", type=Path, default=_TEXT, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where to draw the figure")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps: {options.steps} is no number of steps, which is 1 or more")
    if options.seeds < 2:
        parser.error(f"--seeds: {options.seeds} gives no two seeds to compare: 2 or more do")
    if options.write is not None and not options.write.is_dir():
        parser.error(f"--write: there is no folder {options.write}")
    if options.write is not None and find_spec("matplotlib") is None:
        parser.error("--write: matplotlib is not there: install the extra `papers`")
    try:
        small_gpt(options.text, options.steps, seed=1)
    except CaptureError as error:
        parser.error(f"--text: {error}")
    comparison = OF_ARITHMETICS if options.arithmetics else OF_PROGRAMS
    found = measure(comparison, options.text, options.steps, options.seeds)
    apart, between = distances(comparison, found)
    for kind, distance in apart.items():
        print(f"{kind} is at most {distance:.1e} from {comparison.base}")
    print(f"two seeds of {comparison.base} are at least {between:.1e} from each other")
    if options.write is not None:
        draw(comparison, found, options.write / comparison.figure)
    return int(max(apart[kind] for kind in comparison.programs) > between)


if __name__ == "__main__":
    sys.exit(main())
