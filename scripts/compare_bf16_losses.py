"""Losses of a small GPT on a text: plain PyTorch in FP32, plain PyTorch under autocast in BF16, and the same autocast
as a captured program.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/compare_bf16_losses.py [--steps 300] [--seeds 3] [--text FILE] \\
        [--write docs/figures]

A seed decides weights and batches; all three runs of a seed begin in one state and get the same batches. Printed is the
mean loss of the last sixth of the steps of each run, how far the captured program is from plain autocast, and how far
runs of plain autocast with different seeds (2 seeds or more) are from each other. `--write` draws bf16-losses.png
(matplotlib: the extra `plot`). Exit code 1 if the program is further from plain autocast than two seeds are from each
other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from statistics import mean

import torch
from roundlog.capture import CaptureError, Task
from roundlog.examples.baseline import PlainTraining
from roundlog.examples.gpt import gpt
from roundlog.examples.gpt import loss as loss_in_fp32
from roundlog.randomness import batch_rows
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer
from torch import nn

_TEXT = Path(__file__).resolve().parents[1] / "docs" / "design.md"
FP32, AUTOCAST, PROGRAM = "plain FP32", "plain autocast", "captured program"

Losses = dict[tuple[str, int], list[float]]
"""(kind of run, seed) -> the loss of every step."""


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


def by_program(task: Task) -> list[float]:
    """Losses of the captured program."""
    losses: list[float] = []
    options = RunOptions(on_step=lambda event: losses.append(float(event.loss)))
    with tempfile.TemporaryDirectory() as room:
        Trainer(Job.from_task(task), Path(room) / "run", options).run()
    return losses


def measure(text: Path, steps: int, seeds: int) -> Losses:
    found: Losses = {}
    for seed in range(1, seeds + 1):
        task = small_gpt(text, steps, seed)
        found[FP32, seed] = by_pytorch(task)
        found[AUTOCAST, seed] = by_pytorch(under_autocast(task))
        found[PROGRAM, seed] = by_program(under_autocast(task))
        last = {kind: _last(found[kind, seed]) for kind in (FP32, AUTOCAST, PROGRAM)}
        print(f"seed {seed}: " + ", ".join(f"{kind} {value:.4f}" for kind, value in last.items()), flush=True)
    return found


def _last(losses: Sequence[float]) -> float:
    """The mean loss of the last sixth of the steps, in which the loss falls slowly."""
    return mean(losses[-max(1, len(losses) // 6) :])


def distances(found: Losses) -> tuple[float, float, float]:
    """(the largest distance of the program from plain autocast, the least distance of two seeds of plain autocast, the
    largest distance of plain autocast from plain FP32), of two seeds or more."""
    last = {run: _last(losses) for run, losses in found.items()}
    seeds = sorted({seed for _, seed in found})
    apart = max(abs(last[PROGRAM, seed] - last[AUTOCAST, seed]) for seed in seeds)
    between = [abs(last[AUTOCAST, one] - last[AUTOCAST, other]) for one, other in combinations(seeds, 2)]
    formats = max(abs(last[AUTOCAST, seed] - last[FP32, seed]) for seed in seeds)
    return apart, min(between), formats


def draw(found: Losses, path: Path) -> None:
    """The losses on the left, the differences from plain autocast of the same seed on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (losses, differences) = pyplot.subplots(1, 2, figsize=(12, 4.4))
    colours = {FP32: "C0", AUTOCAST: "C1", PROGRAM: "C2"}
    seeds = sorted({seed for _, seed in found})
    for (kind, seed), values in found.items():
        style = {FP32: "-", AUTOCAST: "-", PROGRAM: ":"}[kind]
        label = kind if seed == seeds[0] else None
        losses.plot(_smooth(values), style, color=colours[kind], linewidth=1.3, label=label)
        if kind != AUTOCAST:
            beside = [one - other for one, other in zip(values, found[AUTOCAST, seed], strict=True)]
            differences.plot(beside, style, color=colours[kind], linewidth=1, label=label)
    for one, other in combinations(seeds, 2):
        between = [a - b for a, b in zip(_smooth(found[AUTOCAST, one]), _smooth(found[AUTOCAST, other]), strict=True)]
        label = "plain autocast, another seed (mean of 20 steps)" if (one, other) == (seeds[0], seeds[1]) else None
        differences.plot(between, "--", color="grey", linewidth=0.9, label=label)
    losses.set(xlabel="step", ylabel="loss, mean of 20 steps", title=f"Loss, {len(seeds)} seeds")
    differences.set(xlabel="step", ylabel="difference of the loss", title="Difference from plain autocast")
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
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--text", type=Path, default=_TEXT, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where to draw bf16-losses.png")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps: {options.steps} is no number of steps, which is 1 or more")
    if options.seeds < 2:
        parser.error(f"--seeds: {options.seeds} gives no two seeds to compare: 2 or more do")
    if options.write is not None and not options.write.is_dir():
        parser.error(f"--write: there is no folder {options.write}")
    if options.write is not None and find_spec("matplotlib") is None:
        parser.error("--write: matplotlib is not there: install the extra `plot`")
    try:
        small_gpt(options.text, options.steps, seed=1)
    except CaptureError as error:
        parser.error(f"--text: {error}")
    found = measure(options.text, options.steps, options.seeds)
    apart, between, formats = distances(found)
    print(f"the program is at most {apart:.1e} from plain autocast, and that {formats:.1e} from plain FP32")
    print(f"two seeds of plain autocast are at least {between:.1e} from each other")
    if options.write is not None:
        draw(found, options.write / "bf16-losses.png")
    return int(apart > between)


if __name__ == "__main__":
    sys.exit(main())
