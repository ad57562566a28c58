"""The repetition of a segment by the process that leads an audit: the one worker that it believes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from roundlog.commitments import state_root
from roundlog.parallel.plan import Fact, Plan
from roundlog.parallel.segment import Segment, Source, UnusableState, execute, starting_state
from roundlog.storage import save_tensors
from roundlog.training.run import Run


@dataclass(slots=True)
class Computed:
    """What this process has computed of a segment."""

    facts: list[Fact] = field(default_factory=list)
    """Intervals that came to a root without a stop."""
    wrong: tuple[int, bytes] | None = None
    """The first interval that is not as claimed, and the root that it comes to; none behind it was executed."""
    stopped: str | None = None
    """Why that interval has stopped; its root is that of fabricated values."""


class _Ended(Exception):
    """The interval that was looked for is found."""


def compute_here(run: Run, source: Source, plan: Plan, segment: Segment, unusable: Callable[[str], None]) -> Computed:
    """Executes a segment up to its first interval that is not as claimed, from its state, or else from the nearest
    before it that can be had. That state is left as a checkpoint of the run, which games start from.

    run: continues after a stop. unusable: is told of states that cannot be used. Raises as `Run.step`, OSError."""
    first, states = _nearest(run, source, plan, segment.first, unusable)
    stop = min(segment.stop, len(plan.listing.roots))
    if first:
        named = dict(zip(run.job.program.state_names, states, strict=True))
        save_tensors(run.checkpoint_path(first * run.job.spec.interval), named)
    found = Computed()
    interval, root_before = first, plan.root_before(first)
    stopped_before, run.stopped = run.stopped, None

    def after(states: list[torch.Tensor]) -> None:
        nonlocal interval, root_before
        root = state_root(states)
        if run.stopped is not None:
            found.wrong, found.stopped = (interval, root), str(run.stopped)
            raise _Ended
        found.facts.append(Fact(interval, root_before, root))
        if root != plan.listing.roots[interval]:
            found.wrong = interval, root
            raise _Ended
        interval, root_before = interval + 1, root

    try:
        execute(run, Segment(first, stop), states, after)
    except _Ended:
        pass
    finally:
        run.stopped = run.stopped or stopped_before
    return found


def _nearest(
    run: Run, source: Source, plan: Plan, first: int, unusable: Callable[[str], None]
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
