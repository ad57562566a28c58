"""Pace of an audit: how long an interval takes, and which workers take so much longer that they may never answer."""

from __future__ import annotations

import time

from roundlog.parallel.crew import Task

SLOW = 4.0
"""A worker that takes so many times as long as the slowest so far is not waited for alone."""
PATIENCE = 5.0
"""Seconds after which such a worker counts as one that may never answer."""
HANGING = 60.0
"""Seconds after which this process does what such workers do not, if nobody else can: a process takes some to start."""
FIRST = 600.0
"""Seconds after which it does so while nobody knows how long an interval takes."""


class Pace:
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

    def is_late(self, task: Task, patience: float = 0.0) -> bool:
        """Whether a task takes very long, and more than so many seconds."""
        allowed = max(patience, SLOW * self._slowest * len(task.order.segment))
        return self.is_known and age(task) > allowed

    def may_hang(self, task: Task) -> bool:
        """Whether it is time that somebody does something about the worker that has a task."""
        least = HANGING if self.is_known else FIRST
        return age(task) > max(least, SLOW * (self._slowest or self._own) * len(task.order.segment))


def age(task: Task) -> float:
    """Seconds since a task was handed out."""
    return time.monotonic() - task.since
