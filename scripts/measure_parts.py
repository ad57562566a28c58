"""Shares of a trainer's step that hand-made parts of the engine take, or save over what could replace them.

    .venv/bin/python scripts/measure_parts.py [--model gpt12m|digits|...] [--rounds 15]

* Thread pool: sharing out tasks that are no work, as often as a step does it.
* Philox: making the random numbers of a step.
* SHA-256: a state root, as after a step that ends in a checkpoint, and the roots of all operators' outputs, as in a
  step that is disputed; by OpenSSL from a compiled loop, and by `hashlib`.
* Chains of exact operators: compiled by LLVM, and interpreted.

The first two are the work of libraries, and their whole share is the most that code of our own could save. Times are
processor times (tasks: elapsed), and the least of several rounds, in turns, in one process: other processes only ever
add to them.
Both ways have to give the same roots.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from bench_engine import MODELS, WARM_UP, Certified
from profile_engine import FUSED, Watch, processor_time
from roundlog.commitments import state_root, tensor_root
from roundlog.execution import Batches
from roundlog.kernels import hashing, machine_code, threads
from roundlog.operators import StepInputs
from roundlog.randomness import philox
from roundlog.rounding import Recorder
from roundlog.training.job import Job

TASKS = 200
"""Tasks that are shared out in one round."""


@contextmanager
def interpreted() -> Iterator[None]:
    """No chain is compiled, and machine code that there is already is not used."""
    kept = [(played, played.code) for played in machine_code._FORMS.values()]
    for played, _ in kept:
        played.code = None
    try:
        with patch.object(machine_code, "WORTH", 1 << 62):
            yield
    finally:
        for played, code in kept:
            played.code = code


def hashlib_alone() -> Any:
    return patch.object(hashing, "_libcrypto", lambda: None)


def empty_tasks() -> float:
    """Seconds of one task whose parts do nothing, one part a thread."""
    parts = torch.get_num_threads()
    started = time.perf_counter()
    for _ in range(TASKS):
        threads.in_parts(lambda start, stop: None, parts, parts * threads.MIN_ELEMENTS)
    return (time.perf_counter() - started) / TASKS


def tasks_of(step: Callable[[], None]) -> int:
    """Number of times that a step shares out work."""
    share, shared = threads._share, []

    def counted(works: list[Callable[[], None]]) -> None:
        shared.append(len(works))
        share(works)

    with patch.object(threads, "_share", counted):
        step()
    return len(shared)


def report(model: str, rounds: int) -> None:
    job = Job.from_task(lambda: MODELS[model](rounds + WARM_UP))
    batches, recorder = Batches(job.dataset, job.spec), Recorder(job.spec.log_guard)
    trainer, interpreting = (Certified(job, torch.device("cpu")) for _ in range(2))
    drawn = [node.type.shape for node in job.program.nodes if node.op == "uniform"]
    outputs: list[torch.Tensor] = []
    least: dict[str, float] = {}
    tasks = 0

    watch = Watch(job.program)

    def step_of(which: Certified, step: int) -> None:
        watch.seconds.clear()
        with watch:
            which.step(step, list(batches.load(step)), recorder)
        recorder.take()

    def note(name: str, seconds: float) -> None:
        least[name] = min(seconds, least.get(name, seconds))

    def hashed(name: str, work: Callable[[], Any]) -> None:
        note(f"{name}, OpenSSL", processor_time(work))
        with hashlib_alone():
            note(f"{name}, hashlib", processor_time(work))

    for step in range(WARM_UP):
        tasks = tasks_of(lambda step=step: step_of(trainer, step))  # type: ignore[misc]
        with interpreted():
            step_of(interpreting, step)
    inputs = StepInputs(
        states=trainer.states,
        data=batches.load(WARM_UP),
        schedule=job.schedule[WARM_UP],
        seed=job.spec.seed,
        step=WARM_UP,
        device=torch.device("cpu"),
    )
    trainer.executor.run(inputs, recorder, observe=lambda index, output: outputs.append(output.clone()))
    recorder.take()
    for step in range(WARM_UP, WARM_UP + rounds):
        note("step", processor_time(step_of, trainer, step))
        note("chains, compiled", watch.seconds[FUSED])
        with interpreted():
            step_of(interpreting, step)
        note("chains, interpreted", watch.seconds[FUSED])
        note("sharing out tasks", empty_tasks() * tasks)
        note("random numbers", processor_time(lambda: [philox.uniform(1, 2, 3, shape) for shape in drawn]))
        hashed("state root", lambda: state_root(trainer.states))
        hashed("all outputs", lambda: [tensor_root(output) for output in outputs])
    if state_root(interpreting.states) != state_root(trainer.states):
        raise SystemExit("interpreted chains computed another state: the figures would mean nothing")
    whole = least["step"]
    numbers = sum(prod(shape) for shape in drawn)
    print(f"{model}, {torch.get_num_threads()} threads: {tasks} tasks shared out and {numbers:,} numbers drawn a step")
    for name, seconds in least.items():
        print(f"{1e3 * seconds:10.3f} ms{100 * seconds / whole:9.2f} %  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt12m")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    report(arguments.model, arguments.rounds)


if __name__ == "__main__":
    main()
