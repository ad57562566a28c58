"""Parts of a run executed again: replays of what a dispute is about, and repetition of some intervals from the states
that somebody keeps.

Correctness is an induction: the state before interval 0 is the job's. If every interval i, started from a state whose
root is the one claimed after interval i - 1, ends in the root claimed after interval i, then the last root is right. A
share of the intervals is a sample of these premises.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch

from roundlog.commitments import state_root
from roundlog.execution import StoppedError
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions
from roundlog.training.run import Run
from roundlog.training.run_files import checkpoint_path, load_kept, wrong_checkpoint


def replay_interval(run: Run, interval: int) -> list[bytes]:
    """State roots after every step of one interval (the leaves of its step tree), computed from the newest kept
    checkpoint before it. Raises ValueError for an interval that the job does not have, and as `Run.step`."""
    spec = run.job.spec
    if not 0 <= interval < spec.intervals:
        raise ValueError(f"the job has {spec.intervals} intervals, interval {interval} is not one of them")
    wanted = range(interval * spec.interval, (interval + 1) * spec.interval)
    done, states = run.newest(interval)
    roots: list[bytes] = []
    ends = run.replay(done * spec.interval, states)
    del states
    for step, after in ends:
        if step in wanted:
            roots.append(state_root(after))
        if step + 1 == wanted.stop:
            break
    return roots


def replay_state(run: Run, steps: int) -> list[torch.Tensor]:
    """The state after `steps` steps, computed from the newest kept checkpoint before it. Raises ValueError for more
    steps than the job has, and as `Run.step`."""
    spec = run.job.spec
    if not 0 <= steps <= spec.steps:
        raise ValueError(f"the job has {spec.steps} steps, not {steps}")
    done, states = run.newest(steps // spec.interval)
    first = done * spec.interval
    if first == steps:
        return [tensor.to(run.device) for tensor in states]
    ends = run.replay(first, states)
    del states
    return next(islice(ends, steps - first - 1, None))[1]


@dataclass(slots=True)
class Repetition:
    """The result of a repetition."""

    repeated: list[int] = field(default_factory=list)
    """Intervals that came to the claimed root, ascending."""
    first_wrong: int | None = None
    """The first interval that did not; none behind it was repeated."""
    found: bytes | None = None
    """The root that it came to; None if it has stopped."""
    stopped: str | None = None
    """Reason why it has stopped."""
    wrong_states: list[str] = field(default_factory=list)
    """Kept states that are not the claimed ones, one clause each. They were not used."""


def draw_intervals(intervals: int, share: float) -> list[int]:
    """A share of the intervals, at least one, by the random numbers of the operating system, ascending."""
    count = min(intervals, max(1, math.ceil(share * intervals)))
    return sorted(random.SystemRandom().sample(range(intervals), count))


def repeat_all(job: Job, roots: Sequence[bytes], work: Path, options: RunOptions = DEFAULT_OPTIONS) -> Repetition:
    """Repeats a whole run in a directory; a killed repetition carries on there. roots: as of `repeat`. Raises as
    `Auditor` and `Auditor.run`, but for StoppedError."""
    auditor, stopped = Auditor(job, work, options), None
    try:
        ours = auditor.run().state_roots
    except StoppedError as error:
        ours, stopped = Run(job, work, options).recorded_roots(), str(error)
    for interval, (root, claimed) in enumerate(zip(ours, roots, strict=False)):
        if root != claimed:
            return Repetition(list(range(interval)), interval, root)
    if stopped is not None:
        return Repetition(list(range(len(ours))), len(ours), None, stopped)
    return Repetition(list(range(len(ours))))


def repeat(
    job: Job,
    roots: Sequence[bytes],
    kept: Path,
    work: Path,
    intervals: Iterable[int],
    options: RunOptions = DEFAULT_OPTIONS,
    on_interval: Callable[[int], None] | None = None,
) -> Repetition:
    """Repeats some intervals until one is wrong. Where the state before an interval is not kept, or is not the claimed
    one, all intervals since the last one that is are repeated as well. The final state, if kept, is checked, too.

    roots: claimed state root after every interval. kept: directory of the run whose checkpoints are used; none of them
    is trusted. work: directory for temporary files. on_interval: called after every interval with the number of those
    repeated. Raises as `Run` and `Run.step`, but for StoppedError."""
    run = Run(job, work, options)
    found = Repetition()
    # The state after so many intervals, computed here, whose root is the claimed one.
    done, states, length = 0, list(job.initial.values()), job.spec.interval
    for interval in sorted(set(intervals)):
        if interval < done:
            continue
        # The kept state is checked even where the same one was computed here.
        for start in range(interval, max(done - 1, 0), -1):
            state = _kept_state(job, kept, start, roots[start - 1], found.wrong_states)
            if state is not None:
                done, states = start, state
                break
        while done <= interval:
            try:
                ends = run.replay(done * length, states)
                del states
                states = next(islice(ends, length - 1, None))[1]
            except StoppedError as error:
                found.first_wrong, found.stopped = done, str(error)
                return found
            if (root := state_root(states)) != roots[done]:
                found.first_wrong, found.found = done, root
                return found
            found.repeated.append(done)
            done += 1
            if on_interval is not None:
                on_interval(len(found.repeated))
    if (why := wrong_checkpoint(kept, job, job.spec.steps, roots[-1])) is not None:
        found.wrong_states.append(f"{checkpoint_path(kept, job.spec.steps)} is not the claimed state: {why}")
    return found


def _kept_state(job: Job, kept: Path, done: int, root: bytes, wrong: list[str]) -> list[torch.Tensor] | None:
    """The kept state after `done` intervals, if there is one with this root. What is checked is what was read."""
    path = checkpoint_path(kept, done * job.spec.interval)
    if not path.is_symlink() and not path.exists():
        return None
    states, _, why = load_kept(kept, job, done * job.spec.interval, root)
    if why:
        wrong.append(f"{path} is not the claimed state: {why}")
    return None if why else states
