"""Background jobs that take their turn at once, so that a test counts the steps of a role."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from tiebreak.roles.background_jobs import BackgroundJob, BackgroundJobs, Lane, Priority

T = TypeVar("T")


class Inline(BackgroundJobs):
    """Background jobs that are each done at once, while the role waits."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, BackgroundJob[Any]] = {}

    def ask(
        self, lane: Lane, key: Hashable, work: Callable[[BackgroundJob[T]], T], priority: Priority, doing: str = ""
    ) -> BackgroundJob[T]:
        if key not in self._jobs:
            self._jobs[key] = job = BackgroundJob(lane, key, work, priority, doing)
            job.run()
        return self._jobs[key]

    def forget(self, key: Hashable) -> None:
        if (job := self._jobs.pop(key, None)) is not None:
            job.stop.set()

    def promised(self, key: Hashable) -> float:
        return 0.0

    def close(self, patience: float = 1.0) -> bool:
        return True
