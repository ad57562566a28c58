"""The cost of looking at the floating-point environment of every thread in every step.

A step reads it when it begins and ends, and every thread of the kernels does before and after each part of work that it
takes. Prints what both take, and the share of a small step that this is: one number a line, from one run in which
steps and looks take turns. Usage: python scripts/measure_environment.py [--rounds 40]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from roundlog.arithmetic import undisturbed
from roundlog.capture import Task
from roundlog.kernels import threads
from roundlog.kernels.environment import ENVIRONMENT
from roundlog.rounding.policies import without_log
from roundlog.training.job import Job
from roundlog.training.run import Run
from torch import nn

LOOKS = 2000


def small_job() -> Job:
    """A perceptron of 1,000 weights on batches of 16: a step that takes a millisecond or so."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 10))
    rows = {"x": torch.randn(64, 20), "y": torch.randint(0, 10, (64,))}
    return Job.from_task(
        Task(
            model=model,
            loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            dataset=rows,
            batch_size=16,
            steps=4,
            interval=4,
            seed=0,
        )
    )


def looks() -> tuple[float, float]:
    """Seconds of the look at a step, and of that at a part of work."""
    begin = perf_counter()
    for _ in range(LOOKS):
        with undisturbed("a step"):
            pass
    middle = perf_counter()
    for _ in range(LOOKS):
        ENVIRONMENT.put_right()
        ENVIRONMENT.is_right()
    return (middle - begin) / LOOKS, (perf_counter() - middle) / LOOKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    job = small_job()
    parts = 0
    hand_out = threads._ThreadPool.hand_out

    def counted(pool: threads._ThreadPool, works: list[object]) -> object:
        nonlocal parts
        parts += len(works)
        return hand_out(pool, works)  # type: ignore[arg-type]

    threads._ThreadPool.hand_out = counted  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as room:
        run, rounding = Run(job, Path(room)), without_log(job.spec)
        states = list(job.initial.values())
        run.step(0, states, rounding)
        parts, times, step_looks, part_looks = 0, [], [], []
        for _ in range(rounds):
            begin = perf_counter()
            run.step(0, states, rounding)
            times.append(perf_counter() - begin)
            of_step, of_part = looks()
            step_looks.append(of_step)
            part_looks.append(of_part)
    cost = median(step_looks) + median(part_looks) * parts / rounds
    print(f"a step of {len(job.program.nodes)} operators: {median(times) * 1e6:.0f} microseconds")
    print(f"a look at a step: {median(step_looks) * 1e6:.2f} microseconds")
    print(f"a look at a part: {median(part_looks) * 1e6:.2f} microseconds, {parts / rounds:.1f} parts a step")
    print(f"share of the step: {100 * cost / median(times):.2f} %")


if __name__ == "__main__":
    main()
