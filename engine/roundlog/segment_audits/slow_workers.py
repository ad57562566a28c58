"""Workers that are slow: how long an interval takes, which workers take so much longer that they may never answer, and
a stand-in for those: this process does their work, so that an audit ends though all of them hang.

A worker that hangs says nothing, so it is known by its time alone. Where no worker has answered before, this process
executes some steps to find out what time is honest, and leaves the rest to a worker that has taken no longer so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from roundlog.segment_audits.plan import Plan
from roundlog.segment_audits.segment import Segment
from roundlog.segment_audits.workers import Assignment, WorkerPool

SLOW = 4.0
"""A worker that takes so many times as long as the slowest so far is not waited for alone."""
PATIENCE = 5.0
"""Seconds after which such a worker counts as one that may never answer."""
HANGING = 60.0
"""Seconds after which this process does what such workers do not, if nobody else can: a process takes some to start."""
FIRST = 600.0
"""Seconds after which it does so while nobody knows how long an interval takes."""


class AuditPace:
    """Pace of an audit."""

    def __init__(self) -> None:
        self._slowest = 0.0
        """Seconds of an interval of the slowest answer."""
        self._own = 0.0
        """Seconds of an interval in this process."""

    @property
    def is_known(self) -> bool:
        """Whether a worker has answered."""
        return self._slowest > 0

    def answered(self, seconds: float, intervals: int) -> None:
        """Takes up how long a worker has taken for so many intervals."""
        self._slowest = max(self._slowest, seconds / intervals)

    def computed(self, seconds: float) -> None:
        """Takes up how long an interval takes in this process: all there is to go by before a worker has answered."""
        self._own = max(self._own, seconds)

    def is_late(self, task: Assignment, patience: float = 0.0) -> bool:
        """Whether a task takes very long, and more than so many seconds."""
        allowed = max(patience, SLOW * self._slowest * len(task.order.segment))
        return self.is_known and age(task) > allowed

    def may_hang(self, task: Assignment) -> bool:
        """Whether it is time that somebody does something about the worker that has a task."""
        least = HANGING if self.is_known else FIRST
        return age(task) > max(least, SLOW * (self._slowest or self._own) * len(task.order.segment))


def age(task: Assignment) -> float:
    """Seconds since a task was handed out."""
    return time.monotonic() - task.since


class NotNeeded(Exception):
    """A worker has answered, or is not late after all."""


class StandIn:
    """Stand-in of one audit."""

    def __init__(
        self,
        plan: Plan,
        pace: AuditPace,
        interval: int,
        compute: Callable[[Segment], object],
        event: Callable[[str], None],
    ) -> None:
        """interval: its steps. compute: executes a segment in this process, with a call of `has_stepped` after every
        step, and takes up what it comes to. event: is told of workers that may hang."""
        self._plan, self._pace, self._interval = plan, pace, interval
        self._compute, self._event = compute, event
        self._pool: WorkerPool | None = None
        """The pool that it works for now."""
        self._lacks_memory = False
        self._steps = 0
        self._since = 0.0
        """The end of the first step, which fetches, compiles and warms up."""

    def look(self, pool: WorkerPool) -> None:
        """Tells of workers that may hang; and where all with a task may, executes a segment, or as much of it as is
        needed. Raises what executing raises."""
        self._tell(pool)
        if self._lacks_memory or not _all_may_hang(pool, self._pace):
            return
        late = [task for _, task in pool.tasks() if not task.is_answered and self._plan.is_open(task.order.segment)]
        segment = late[0].order.segment if late else self._plan.next()
        if segment is None:
            return
        if late:
            self._plan.repeats(segment)
        self._pool, self._steps = pool, 0
        try:
            self._compute(segment)
        except (NotNeeded, MemoryError, torch.OutOfMemoryError) as error:
            if not isinstance(error, NotNeeded):
                # A worker that is only slow has it, and may still answer.
                self._lacks_memory = True
                self._event("this process has no memory to do the work of workers that do not answer: end what hangs")
            if late:
                self._plan.answered(segment, 0)
            else:
                self._plan.lost(segment)
            return
        finally:
            self._pool = None
        for task in late:
            task.is_answered |= task.order.segment == segment
        self._plan.answered(segment, 0 if late else len(segment))

    def has_stepped(self) -> None:
        """Takes note of a step of this process. Raises NotNeeded if it need not go on."""
        if self._pool is None:
            return
        self._steps += 1
        if self._steps == 1:
            self._since = time.monotonic()
        else:
            self._pace.computed(self._interval * (time.monotonic() - self._since) / (self._steps - 1))
        if self._pool.has_ends() or not _all_may_hang(self._pool, self._pace):
            raise NotNeeded

    def _tell(self, pool: WorkerPool) -> None:
        for worker, task in pool.tasks():
            if task.is_told or not self._pace.may_hang(task):
                continue
            task.is_told, segment = True, task.order.segment
            some = f"intervals {segment.first + 1} to" if len(segment) > 1 else "interval"
            self._event(
                f"{worker.told} has not answered for {age(task):.0f} s about {some} {segment.stop}, and is not waited "
                "for any more: see whether its process, its disk or its network hangs; once its process is ended, a "
                "new one takes its place"
            )


def _all_may_hang(pool: WorkerPool, pace: AuditPace) -> bool:
    """Whether workers have tasks, and none of them is likely to answer."""
    tasks = pool.tasks()
    return bool(tasks) and all(pace.may_hang(task) for _, task in tasks)
