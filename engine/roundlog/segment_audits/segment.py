"""The audit of a segment: consecutive intervals of a run, executed from a published state that is checked first.

A worker is told where to start, by the root of a state, and not what should come out: what it answers, it has computed.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import torch

from roundlog.commitments import CommitmentError, state_root
from roundlog.data import fetched_bytes
from roundlog.execution import StoppedError
from roundlog.rounding.policies import without_log
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.run import Run


class UnusableState(Exception):
    """A published state cannot be had, or is not the one with the given root. The message is one clause."""


class StateSource(Protocol):
    """Where a worker gets the job and the published states from. It is sent to workers, so it can be pickled, hashed
    and compared. Nothing that it brings is trusted."""

    def __hash__(self) -> int: ...

    def job(self) -> Job:
        """The job, checked. Raises JobError, OSError, and what the source's own errors are."""

    def state(self, job: Job, address: str) -> list[torch.Tensor]:
        """The state at an address, with the types of the job's state; its root is checked by the caller.

        Raises UnusableState."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """Consecutive intervals: from `first` up to, and without, `stop`."""

    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The state that a segment starts from: its root, and the address that it is published at (None: the job's initial
    state, which every reader of the job has)."""

    root: bytes
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOrder:
    """Order to a worker: the steps to execute."""

    source: StateSource
    segment: Segment
    start: Start
    device: str = "cpu"
    micro_batches: int = 1
    scratch: str | None = None
    """Directory for temporary files; None for the system's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a worker to an order."""

    worker: str
    """Host and process, for people."""
    roots: tuple[bytes, ...] = ()
    """State root after each interval that was executed, from the first on."""
    seconds: float = 0.0
    """Time that it took, fetching included."""
    unusable: str | None = None
    """Why the state to start from could not be used, in one clause; nothing was executed then."""
    fetched: int = 0
    """Bytes of data that were fetched for it, where the job's data lie elsewhere."""
    stopped: str | None = None
    """Why the run stopped in the interval after the last of `roots`; None if it did not."""


def audit_segment(order: SegmentOrder) -> Answer:
    """Executes a segment in this process. Raises JobError, ProgramError, RunError, MachineError, OSError,
    StorageError."""
    started = time.perf_counter()
    run, temporary = _run(order.source, order.device, order.micro_batches, order.scratch)
    assert temporary is not None, "kept as long as the run"
    try:
        states = starting_state(run.job, order.source, order.segment.first, order.start)
    except UnusableState as error:
        return Answer(worker=name(), seconds=time.perf_counter() - started, unusable=str(error))
    roots: list[bytes] = []
    stopped, data = None, run.job.dataset.values()
    before = fetched_bytes(data)
    try:
        execute(run, order.segment, states, lambda states: roots.append(state_root(states)))
    except StoppedError as error:
        stopped = str(error)
    return Answer(
        worker=name(),
        roots=tuple(roots),
        seconds=time.perf_counter() - started,
        fetched=fetched_bytes(data) - before,
        stopped=stopped,
    )


def execute(
    run: Run, segment: Segment, states: list[torch.Tensor], after_interval: Callable[[list[torch.Tensor]], None]
) -> None:
    """Executes the intervals of a segment and calls `after_interval` with the state after each. Raises as `Run.step`,
    and what `after_interval` raises."""
    rounding, length = without_log(run.job.spec), run.job.spec.interval
    after: Sequence[torch.Tensor] = [tensor.to(run.device) for tensor in states]
    for interval in range(segment.first, segment.stop):
        for step in range(interval * length, (interval + 1) * length):
            after = run.step(step, after, rounding)
        after_interval(list(after))


def starting_state(job: Job, source: StateSource, first: int, start: Start) -> list[torch.Tensor]:
    """The state before interval `first`, which has the root of `start`. Raises UnusableState."""
    if start.address is None:
        return list(job.initial.values())
    try:
        states = source.state(job, start.address)
        found = state_root(states)
    except CommitmentError as error:
        raise UnusableState(f"the state before interval {first + 1} has no root: {error}") from error
    if found != start.root:
        raise UnusableState(
            f"the state before interval {first + 1} has the root 0x{found.hex()}, not 0x{start.root.hex()}"
        )
    return states


def name() -> str:
    """This process, as it is named to people."""
    return f"{platform.node() or 'this host'}/{os.getpid()}"


@lru_cache(maxsize=1)
def _run(
    source: StateSource, device: str, micro_batches: int, scratch: str | None
) -> tuple[Run, tempfile.TemporaryDirectory[str]]:
    """The job in a temporary directory, read once by each process; the directory lives as long as the pair is kept."""
    job = source.job()
    temporary = tempfile.TemporaryDirectory(prefix="audit-", dir=scratch, ignore_cleanup_errors=True)
    return Run(job, Path(temporary.name), RunOptions(device=device, micro_batches=micro_batches)), temporary
