"""Executing a part of a run again: what a party needs when an interval is disputed, and the referee for one step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from roundlog.batches import BatchSource
from roundlog.commitments import state_root
from roundlog.job import Job
from roundlog.policies import alone
from roundlog.run import Run


def replay(run: Run, first: int, states: list[torch.Tensor]) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """From the state before step `first`: (step, state after it), step by step, to the end of the run. Under
    `threshold`, that is what this machine makes of it without anybody's log."""
    rounding = alone(run.job.spec)
    for step in range(first, run.job.spec.steps):
        states = run.step(step, states, rounding)
        yield step, states


def replay_interval(job: Job, run_dir: Path, interval: int, *, batches: BatchSource | None = None) -> list[bytes]:
    """The state roots after every step of one interval (the leaves of its step tree), executed again from the newest
    kept checkpoint before it. Raises ValueError for an interval that the job does not have."""
    return [state_root(states) for _, states in _interval_states(job, run_dir, interval, batches)]


def replay_state(job: Job, run_dir: Path, steps: int, *, batches: BatchSource | None = None) -> list[torch.Tensor]:
    """The state after that many steps, executed again from the newest kept checkpoint before it."""
    run = Run(job, run_dir, batches=batches)
    if not 0 <= steps <= job.spec.steps:
        raise ValueError(f"the job has {job.spec.steps} steps, not {steps}")
    done, states = run.newest(steps // job.spec.interval)
    first = done * job.spec.interval
    if first == steps:
        return states
    return next(states for step, states in replay(run, first, states) if step + 1 == steps)


def referee_step(job: Job, before: list[torch.Tensor], step: int, run_dir: Path) -> bytes:
    """The right state root after `step`, from the agreed state before it."""
    run = Run(job, run_dir)
    return state_root(next(replay(run, step, before))[1])


def _interval_states(
    job: Job, run_dir: Path, interval: int, batches: BatchSource | None
) -> Iterator[tuple[int, list[torch.Tensor]]]:
    if not 0 <= interval < job.spec.intervals:
        raise ValueError(f"the job has {job.spec.intervals} intervals, interval {interval} is not one of them")
    run = Run(job, run_dir, batches=batches)
    wanted = range(interval * job.spec.interval, (interval + 1) * job.spec.interval)
    done, states = run.newest(interval)
    for step, after in replay(run, done * job.spec.interval, states):
        if step in wanted:
            yield step, after
        if step + 1 == wanted.stop:
            return
