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
    states = [tensor.to(run.device) for tensor in states]
    for step in range(first, run.job.spec.steps):
        states = run.step(step, states, rounding)
        yield step, states


def replay_interval(
    job: Job,
    run_dir: Path,
    interval: int,
    *,
    batches: BatchSource | None = None,
    micro_batches: int = 1,
    device: torch.device | str = "cpu",
) -> list[bytes]:
    """The state roots after every step of one interval (the leaves of its step tree), executed again from the newest
    kept checkpoint before it. Raises ValueError for an interval that the job does not have."""
    run = Run(job, run_dir, batches=batches, micro_batches=micro_batches, device=device)
    return [state_root(states) for _, states in _interval_states(run, interval)]


def replay_state(
    job: Job,
    run_dir: Path,
    steps: int,
    *,
    batches: BatchSource | None = None,
    micro_batches: int = 1,
    device: torch.device | str = "cpu",
) -> list[torch.Tensor]:
    """The state after that many steps, executed again from the newest kept checkpoint before it."""
    run = Run(job, run_dir, batches=batches, micro_batches=micro_batches, device=device)
    if not 0 <= steps <= job.spec.steps:
        raise ValueError(f"the job has {job.spec.steps} steps, not {steps}")
    done, states = run.newest(steps // job.spec.interval)
    first = done * job.spec.interval
    if first == steps:
        return states
    return next(states for step, states in replay(run, first, states) if step + 1 == steps)


def referee_step(
    job: Job,
    before: list[torch.Tensor],
    step: int,
    run_dir: Path,
    *,
    micro_batches: int = 1,
    device: torch.device | str = "cpu",
) -> bytes:
    """The right state root after `step`, from the agreed state before it."""
    run = Run(job, run_dir, micro_batches=micro_batches, device=device)
    return state_root(next(replay(run, step, before))[1])


def _interval_states(run: Run, interval: int) -> Iterator[tuple[int, list[torch.Tensor]]]:
    spec = run.job.spec
    if not 0 <= interval < spec.intervals:
        raise ValueError(f"the job has {spec.intervals} intervals, interval {interval} is not one of them")
    wanted = range(interval * spec.interval, (interval + 1) * spec.interval)
    done, states = run.newest(interval)
    for step, after in replay(run, done * spec.interval, states):
        if step in wanted:
            yield step, after
        if step + 1 == wanted.stop:
            return
