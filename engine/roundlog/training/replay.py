"""Replay: a part of a run executed again, because an interval or a step of it is disputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from roundlog.commitments import state_root
from roundlog.training.policies import alone
from roundlog.training.run import Run


def replay(run: Run, first: int, states: Sequence[torch.Tensor]) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """(step, state after it) of every step from `first` to the end of the run. states: before step `first`. Under
    `threshold`, states are those of this machine without a log."""
    rounding = alone(run.job.spec)
    after: Sequence[torch.Tensor] = [tensor.to(run.device) for tensor in states]
    for step in range(first, run.job.spec.steps):
        after = run.step(step, after, rounding)
        yield step, list(after)


def replay_interval(run: Run, interval: int) -> list[bytes]:
    """State roots after every step of one interval (the leaves of its step tree), computed from the newest kept
    checkpoint before it. Raises ValueError for an interval that the job does not have, and as `Run.step`."""
    spec = run.job.spec
    if not 0 <= interval < spec.intervals:
        raise ValueError(f"the job has {spec.intervals} intervals, interval {interval} is not one of them")
    wanted = range(interval * spec.interval, (interval + 1) * spec.interval)
    done, states = run.newest(interval)
    roots: list[bytes] = []
    for step, after in replay(run, done * spec.interval, states):
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
    return next(after for step, after in replay(run, first, states) if step + 1 == steps)
