"""Workers for tests of audits by segments: calls in this process, honest, lying, dying and hanging."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from roundlog.segment_audits.segment import Listing, SegmentOrder, UnusableState, WorkerAnswer, audit_segment, recorded
from roundlog.spec import TrainingSpec
from roundlog.storage import StorageError
from roundlog.training.job import Job, JobLimits
from roundlog.training.run_files import checkpoint_path, load_moved

Behaviour = Callable[[SegmentOrder], WorkerAnswer | None]
"""What a worker answers to an order; None if it dies of it. It may raise."""


class Stand(Executor):
    """A worker in this process that answers at once, or never if it hangs."""

    def __init__(self, behaviour: Behaviour, *, hangs: Callable[[SegmentOrder], bool] = lambda order: False) -> None:
        self._behaviour, self._hangs = behaviour, hangs
        self.is_over = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert fn is audit_segment and not kwargs, "the one call that workers get"
        future: Future[Any] = Future()
        if self._hangs(args[0]):
            return future
        try:
            answer = self._behaviour(args[0])
        except Exception as error:
            future.set_exception(error)
            return future
        if answer is None:
            future.set_exception(BrokenExecutor("it was killed"))
        else:
            future.set_result(answer)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_over = True


def named(name: str, behaviour: Behaviour = audit_segment) -> Behaviour:
    """A behaviour under a worker's name of its own, since all of them are this process."""

    def answer(order: SegmentOrder) -> WorkerAnswer | None:
        found = behaviour(order)
        return None if found is None else replace(found, worker=name)

    return answer


def honest(number: int) -> Executor:
    return Stand(named(f"honest {number}"))


def listing_of(job: Job, run: Path, roots: list[bytes], every: int = 1) -> Listing:
    """What a run in a directory publishes."""
    states = {
        done: str(checkpoint_path(run, done * job.spec.interval)) for done in range(every, job.spec.intervals, every)
    }
    return Listing(roots=tuple(roots), states=states)


@dataclass(frozen=True, slots=True)
class Directories:
    """A job in a directory, and states in files, whose paths are their addresses (a `StateSource`)."""

    job_dir: Path
    limits: JobLimits

    def job(self) -> Job:
        return Job.read(self.job_dir, self.limits)

    def state(self, job: Job, address: str) -> list[torch.Tensor]:
        try:
            return load_moved(Path(address), job)
        except StorageError as error:
            raise UnusableState(f"{address} {error.reason}") from error


def listing_of_run(run_dir: Path, spec: TrainingSpec) -> Listing:
    """Listing of a run directory at present, with the paths of its checkpoints as addresses."""
    roots = recorded(run_dir, spec)
    paths = {done: checkpoint_path(run_dir, done * spec.interval) for done in range(1, len(roots))}
    states = {done: str(path) for done, path in paths.items() if path.exists()}
    return Listing(roots=tuple(roots), states=states, complete=len(roots) == spec.intervals)


def source_of(job_dir: Path) -> Directories:
    return Directories(job_dir, JobLimits())
