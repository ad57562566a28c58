"""The repetition of a segment by the process that leads an audit, the one worker that it believes; and sources of jobs
and states in directories, which this machine's workers, and those with a common disk, can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch

from roundlog.commitments import state_root
from roundlog.segment_audits.plan import IntervalResult, Plan
from roundlog.segment_audits.segment import Listing, Segment, StateSource, UnusableState, execute, starting_state
from roundlog.storage import StorageError
from roundlog.training.job import Job, JobLimits
from roundlog.training.run import Run
from roundlog.training.run_files import load_kept, load_moved, save_checkpoint


@dataclass(slots=True)
class Computed:
    """Results of this process for a segment."""

    facts: list[IntervalResult] = field(default_factory=list)
    """Intervals that came to a root without a stop."""
    wrong: tuple[int, bytes] | None = None
    """The first interval that is not as claimed, and the root that it comes to; none behind it was executed."""
    stopped: str | None = None
    """Why that interval has stopped; its root is that of fabricated values."""


class _Ended(Exception):
    """The interval that was looked for is found."""


def compute_here(
    run: Run, source: StateSource, plan: Plan, segment: Segment, unusable: Callable[[str], None]
) -> Computed:
    """Executes a segment up to its first interval that is not as claimed, from its state, or else from the nearest
    before it that can be had. The state before that interval is left as a checkpoint of the run: games start from it.

    run: continues after a stop. unusable: is told of states that cannot be used. Raises as `Run.step`, OSError."""
    first, states = _nearest(run, source, plan, segment.first, unusable)
    stop = min(segment.stop, len(plan.listing.roots))
    found = Computed()
    interval, root_before, before = first, plan.root_before(first), states
    stopped_before, run.stopped = run.stopped, None

    def after(states: list[torch.Tensor]) -> None:
        nonlocal interval, root_before, before
        root = state_root(states)
        if run.stopped is not None:
            found.wrong, found.stopped = (interval, root), str(run.stopped)
            raise _Ended
        found.facts.append(IntervalResult(interval, root_before, root))
        if root != plan.listing.roots[interval]:
            found.wrong = interval, root
            raise _Ended
        interval, root_before, before = interval + 1, root, states

    try:
        execute(run, Segment(first, stop), states, after)
    except _Ended:
        pass
    finally:
        run.stopped = run.stopped or stopped_before
    if found.wrong is not None and interval:
        keep_state(run, interval, before)
    return found


def keep_state(run: Run, done: int, states: Sequence[torch.Tensor]) -> None:
    """Leaves the state after `done` intervals as a checkpoint of the run. Raises OSError, StorageError."""
    save_checkpoint(run.directory, run.job, done * run.job.spec.interval, states)


def keep_published(run: Run, listing: Listing, source: StateSource) -> int:
    """Leaves every published state as a checkpoint of the run, as far as it can be had and has its claimed root: what a
    game in defence of the run starts from, whether it is still published then or not. Returns the most intervals that
    lie between two of them then. Raises OSError, StorageError."""
    spec, kept = run.job.spec, [0]
    for done in listing.starts()[1:]:
        if load_kept(run.directory, run.job, done * spec.interval, listing.roots[done - 1])[2]:
            try:
                states = starting_state(run.job, source, done, listing.start(done, spec.initial_state_root))
            except UnusableState:
                continue
            keep_state(run, done, states)
        kept.append(done)
    return max(after - before for before, after in pairwise([*kept, spec.intervals]))


def _nearest(
    run: Run, source: StateSource, plan: Plan, first: int, unusable: Callable[[str], None]
) -> tuple[int, list[torch.Tensor]]:
    """(intervals done, state after them): the last state at or before `first` that can be used."""
    for done in reversed([start for start in plan.listing.starts() if start <= first]):
        try:
            return done, starting_state(
                run.job, source, done, plan.listing.start(done, run.job.spec.initial_state_root)
            )
        except UnusableState as error:
            unusable(str(error))
    raise AssertionError("the initial state can always be used")


@dataclass(frozen=True, slots=True)
class Directories:
    """A job in a directory, and states in files, whose paths are their addresses (implements `Source`)."""

    job_dir: Path
    limits: JobLimits

    def job(self) -> Job:
        return Job.read(self.job_dir, self.limits)

    def state(self, job: Job, address: str) -> list[torch.Tensor]:
        try:
            return load_moved(Path(address), job)
        except StorageError as error:
            raise UnusableState(f"{address} {error.reason}") from error
