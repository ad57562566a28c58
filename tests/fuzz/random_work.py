"""The work of a round's processes: trainings and audits of a job, read in one of several ways, by any number of
ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundlog.data import files
from roundlog.execution.ranks import Ranks, dismiss
from roundlog.segment_audits.segment import Publisher
from roundlog.training import auditor as verdicts
from roundlog.training.job import Job, JobLimits
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.rank_runs import agree, by_ranks, help_rank_0
from roundlog.training.trainer import Trainer
from tiebreak.segment_audits import read_job
from tiebreak.store import open_stores


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a party reads the job: from a directory, its data from stores if they are not there."""

    directory: Path
    stores: tuple[str, ...]
    held: bool
    """Whether the data are held in memory, as small ones are; else they are left in their file, as large ones are."""

    def __str__(self) -> str:
        return f"{self.directory.name}{'' if self.held else ' left in its file'}"

    def read(self, limits: JobLimits) -> Job:
        with holding(self.held):
            return read_job(self.directory, limits, lambda: open_stores(self.stores, warn=print))


@contextmanager
def holding(held: bool) -> Iterator[None]:
    """Context in which data of jobs that are read are held in memory, or left in their files."""
    before = files.HELD_BYTES
    files.HELD_BYTES = before if held else 0
    try:
        yield
    finally:
        files.HELD_BYTES = before


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a party computes."""

    micro_batches: int = 1
    keep_every: int = 1
    publish_every: int = 0
    continue_after_stop: bool = False
    store: str = ""

    def options(self, on_step: Callable[[StepEvent], None] | None = None) -> RunOptions:
        return RunOptions(
            micro_batches=self.micro_batches,
            keep_every=self.keep_every,
            continue_after_stop=self.continue_after_stop,
            on_step=on_step,
        )


def _to_lead(ranks: Ranks | None, readings: Sequence[Reading], running: Running) -> Job | None:
    """The job, on rank 0 or alone; another rank has helped with it until its end."""
    job = readings[0 if ranks is None else ranks.rank].read(JobLimits(micro_batches=running.micro_batches))
    if ranks is None:
        return job
    agree(ranks, job)
    if ranks.rank:
        help_rank_0(ranks, job)
        return None
    return job


def train(ranks: Ranks | None, readings: Sequence[Reading], running: Running, run_dir: Path) -> Any:
    """(state roots, intervals that were mended, steps that were executed) of a training; None of another rank than 0.
    Each rank reads the job in its own way. As `tiebreak train` does it."""
    job = _to_lead(ranks, readings, running)
    if job is None:
        return None
    publisher = None
    if running.publish_every:
        store = open_stores((running.store,), warn=lambda text: None)
        publisher = Publisher(job.spec, run_dir, running.publish_every, store.add_file)
    steps: list[int] = []

    def on_step(event: StepEvent) -> None:
        steps.append(event.step)
        if publisher is not None and event.step % job.spec.interval == 0 and publisher.due() != publisher.told:
            publisher.publish()

    options = running.options(on_step)
    result = Trainer(job, run_dir, options if ranks is None else by_ranks(options, ranks)).run(look_over=True)
    if ranks is not None:
        dismiss(ranks)
    if publisher is not None:
        publisher.publish(result.mended)
    return result.state_roots, result.mended, steps


def audit(
    ranks: Ranks | None,
    readings: Sequence[Reading],
    running: Running,
    run_dir: Path,
    claim: list[bytes] | bytes,
    log_dir: Path | None,
    verify_log: float,
) -> Any:
    """(whether the claim is right, first wrong interval, roots, standing of the log) of an audit of a whole run; None
    of another rank than 0. As `tiebreak audit` does it."""
    job = _to_lead(ranks, readings, running)
    if job is None:
        return None
    options = replace(running.options(), continue_after_stop=True)
    options = options if ranks is None else by_ranks(options, ranks)
    found = verdicts.audit(job, run_dir, options, claim=claim, log_dir=log_dir, verify_log=verify_log)
    if ranks is not None:
        dismiss(ranks)
    return found.right, found.first_wrong, found.state_roots, str(found.log)
