"""The processor time of a trainer's step, by kind of operator, on one thread.

    .venv/bin/python scripts/profile_engine.py [--model gpt12m|gpt2|resnet50|...] [--steps 5] [--precision bf16]
        [--without-avx512]

Each figure is the least of several steps, beside a step of plain FP64 PyTorch (of bf16, one under autocast), and beside
the step's matrix products alone, in FP64 by numpy: what they take is out of reach for anything that multiplies in FP64.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from bench_engine import MODELS, PRECISIONS, WARM_UP, Certified, task_of
from machines.profiles import without_avx512
from roundlog.examples.baseline import PlainTraining
from roundlog.execution import Batches, RunningStep
from roundlog.execution.fusion import Group
from roundlog.program import Program
from roundlog.rounding import Recorder
from roundlog.training.job import Job
from threadpoolctl import threadpool_limits

FUSED = "fused chains"


class Watch:
    """Notes the processor time of what a step computes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.seconds: Counter[str] = Counter()

    def __enter__(self) -> Watch:
        program, seconds = self._program, self.seconds
        compute, compute_group = RunningStep.compute, RunningStep.compute_group

        def watched(running: RunningStep, index: int) -> None:
            started = time.process_time()
            compute(running, index)
            seconds[program.nodes[index].op] += time.process_time() - started

        def watched_group(running: RunningStep, group: Group) -> None:
            started = time.process_time()
            compute_group(running, group)
            seconds[FUSED] += time.process_time() - started

        self._restored = compute, compute_group
        RunningStep.compute, RunningStep.compute_group = watched, watched_group  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        RunningStep.compute, RunningStep.compute_group = self._restored  # type: ignore[method-assign]


def processor_time(work: Callable[..., object], *arguments: object) -> float:
    started = time.process_time()
    work(*arguments)
    return time.process_time() - started


def products(program: Program) -> float:
    """Seconds of all matrix products of a step, in FP64 by numpy."""
    shapes = Counter(
        tuple(program.nodes[value].type.shape for value in node.inputs) for node in program.nodes if node.op == "matmul"
    )
    generator, total = np.random.default_rng(0), 0.0
    for shape, count in shapes.items():
        a, b = (generator.random(one) for one in shape)
        total += count * min(processor_time(np.matmul, a, b) for _ in range(3))
    return total


def report(model: str, counted: int, precision: str) -> None:
    steps = counted + WARM_UP
    task = task_of(model, steps, precision)
    job = Job.from_task(lambda: task)
    batches, recorder = Batches(job.dataset, job.spec), Recorder(job.spec.log_guard)
    beside = "plain FP64" if precision == "fp32" else "plain autocast"
    plain = PlainTraining(task, torch.float64 if precision == "fp32" else torch.float32)
    trainer = Certified(job, torch.device("cpu"))
    whole: dict[str, list[float]] = {beside: [], "trainer": []}
    parts: dict[str, list[float]] = {}
    for step in range(steps):
        data = list(batches.load(step))
        row = {beside: processor_time(plain.step, step, dict(zip(job.dataset, data, strict=True)))}
        with Watch(job.program) as watch:
            row["trainer"] = processor_time(trainer.step, step, data, recorder)
        recorder.take()
        if step >= WARM_UP:
            for name, seconds in row.items():
                whole[name].append(seconds)
            for name, seconds in watch.seconds.items():
                parts.setdefault(name, []).append(seconds)
    print(f"{model} in {precision}: seconds of processor time a step, one thread, the least of {counted} steps")
    for name, found in whole.items():
        print(f"{min(found):9.3f}  {name}")
    print(f"{products(job.program):9.3f}  its matrix products alone")
    least = {name: min(found) for name, found in parts.items()}
    for name, seconds in sorted(least.items(), key=lambda item: -item[1])[:12]:
        print(f"{seconds:9.3f}    {name}")


def main() -> None:
    without_avx512()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt12m")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        report(arguments.model, arguments.steps, arguments.precision)


if __name__ == "__main__":
    main()
