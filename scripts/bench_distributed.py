"""The cost of training by ranks: steps and memory, against one process.

    .venv/bin/python scripts/bench_distributed.py [--rounds 7] [--model gpt12m|digits|...] [--batch 16] [--json FILE]

Every round times one step of one process with two threads and one step of two ranks with one thread each, in turns;
what is printed are medians, and the ratio taken within each round. Memory is the peak of fresh processes that do
nothing but some steps, alone and as one of 2 and of 4 ranks, with and without what interpreter and libraries take
before a job is read.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from roundlog.execution import Batches, Executor, StepExecutor
from roundlog.execution.batches import TensorsOf
from roundlog.execution.ranks import Launch, RanksExecutor, dismiss, joined, serve
from roundlog.rounding import Recorder
from roundlog.training.job import Job

WARM_UP = 2
"""Steps that compile loops and fill caches, and are not counted."""

MEMORY_STEPS = 8
"""Steps after which memory is measured: it grows a little with the first ones."""


def peak() -> int:
    """Peak of this process's resident memory in bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


class Steps:
    """Steps of a job, one after another."""

    def __init__(self, job: Job, executor: StepExecutor) -> None:
        self._job, self._executor = job, executor
        self._batches = Batches(job.dataset, job.spec)
        self._states: Sequence[torch.Tensor] = TensorsOf(job.initial)
        self._done = 0

    def next(self) -> float:
        """Seconds of the next step."""
        inputs = self._job.inputs(self._batches, self._done, self._states)
        started = time.perf_counter()
        self._states = self._executor.run(inputs, Recorder(self._job.spec.log_guard)).states
        self._done += 1
        return time.perf_counter() - started


def work(directory: Path, threads: int) -> None:
    """A process that does a step for every line `step` that it reads, and answers with its seconds; the other
    questions likewise. Ranks other than 0 serve."""
    torch.set_num_threads(threads)
    libraries = peak()
    job = Job.read(directory)
    launch = Launch.of(os.environ)
    if launch is None:
        _answer(Steps(job, Executor(job.program)), libraries)
        return
    with joined(launch) as ranks:
        if ranks.rank:
            batches = Batches(job.dataset, job.spec)
            serve(
                job.program,
                ranks,
                lambda step, states: job.inputs(batches, step, states),
                interval=job.spec.interval,
            )
            return
        _answer(Steps(job, RanksExecutor(job.program, ranks, interval=job.spec.interval)), libraries)
        dismiss(ranks)


def _answer(steps: Steps, libraries: int) -> None:
    kinds: dict[str, Callable[[], float]] = {
        "step": steps.next,
        "peak": peak,
        "libraries": lambda: libraries,
    }
    for line in sys.stdin:
        print(kinds[line.strip()](), flush=True)


class Group:
    """Fresh processes that execute a job together: one with these threads, or ranks with one thread each."""

    def __init__(self, directory: Path, ranks: int, threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        if ranks > 1:
            shared |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--work", str(directory), str(threads)],
                env=shared | {"RANK": str(rank)},
                stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank == 0 else None,
                text=True,
            )
            for rank in range(ranks)
        ]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def ask(self, what: str) -> float:
        """The answer of the first process: to `step` seconds, to `peak` and `libraries` bytes."""
        first = self._processes[0]
        assert first.stdin is not None
        first.stdin.write(what + "\n")
        first.stdin.flush()
        assert first.stdout is not None
        line = first.stdout.readline()
        if not line:
            raise SystemExit("a process failed: its message stands above")
        return float(line)

    def end(self) -> None:
        """Ends the processes."""
        first = self._processes[0]
        assert first.stdin is not None
        first.stdin.close()
        if any(process.wait() for process in self._processes):
            raise SystemExit("a process failed: its message stands above")


def measure(directory: Path, rounds: int) -> dict[str, object]:
    """All figures of one job."""
    with ExitStack() as stack:
        alone, ranks = (stack.enter_context(Group(directory, size, 3 - size)) for size in (1, 2))
        pairs = [(alone.ask("step"), ranks.ask("step")) for _ in range(WARM_UP + rounds)][WARM_UP:]
        alone.end()
        ranks.end()
    peaks, libraries = {}, {}
    for size in (1, 2, 4):
        with Group(directory, size, 2 if size == 1 else 1) as group:
            for _ in range(MEMORY_STEPS):
                group.ask("step")
            peaks[size], libraries[size] = group.ask("peak"), group.ask("libraries")
            group.end()
    return {
        "seconds, one process with two threads": statistics.median(one for one, _ in pairs),
        "seconds, two ranks with one thread": statistics.median(two for _, two in pairs),
        "two ranks / one process": statistics.median(two / one for one, two in pairs),
        "peak of a rank of 2 / one process": peaks[2] / peaks[1],
        "peak of a rank of 4 / one process": peaks[4] / peaks[1],
        "peak of one process, bytes": peaks[1],
        "before a job is read, bytes": libraries[1],
        "rank of 2 / one process, without that": (peaks[2] - libraries[2]) / (peaks[1] - libraries[1]),
        "rank of 4 / one process, without that": (peaks[4] - libraries[4]) / (peaks[1] - libraries[1]),
    }


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(Path(sys.argv[2]), int(sys.argv[3]))
        return
    # Not at the top: the processes that are measured capture nothing.
    from bench_engine import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt12m")
    parser.add_argument("--batch", type=int, default=16, help="samples of a batch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ranks-") as room:
        steps = max(options.rounds + WARM_UP + 1, MEMORY_STEPS)
        Job.from_task(lambda: replace(MODELS[options.model](steps), batch_size=options.batch)).write(Path(room) / "job")
        found = {"model": options.model, "batch": options.batch, **measure(Path(room) / "job", options.rounds)}
    for name, value in found.items():
        print(f"{name}: {value:,.3f}" if isinstance(value, float) else f"{name}: {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
