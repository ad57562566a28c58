"""Background jobs that take their turn at once, so that a test counts the steps of a role; or whose runs take the steps
that a test allows them."""

from __future__ import annotations

import threading
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


class Paced(Inline):
    """Background jobs that do every run in a thread, a step at a time. Each step seems to take `pace` seconds."""

    def __init__(self, pace: float = 1.0) -> None:
        super().__init__()
        self.pace = pace
        self._allowed, self._come = threading.Semaphore(0), threading.Semaphore(0)
        self._run: BackgroundJob[object] | None = None

    def ask(
        self, lane: Lane, key: Hashable, work: Callable[[BackgroundJob[T]], T], priority: Priority, doing: str = ""
    ) -> BackgroundJob[T]:
        if lane is not Lane.RUNS:
            return super().ask(lane, key, work, priority, doing)
        if (known := self._jobs.get(key)) is not None:
            known.priority = priority
            return known
        background_job = BackgroundJob(lane, key, work, priority, doing)
        background_job.hold = self._hold
        self._jobs[key] = self._run = background_job

        def run() -> None:
            background_job.run()
            self._come.release()

        threading.Thread(target=run, daemon=True).start()
        self._await()
        return background_job

    def take(self, steps: int) -> None:
        """Let the run take steps, or what is left of them."""
        for _ in range(steps):
            if self._run is None or self._run.done:
                return
            self._allowed.release()
            self._await()

    def _hold(self) -> None:
        self._come.release()
        self._allowed.acquire()

    def _await(self) -> None:
        assert self._come.acquire(timeout=120), "the run does not go on"
        assert self._run is not None
        self._run.step_seconds = self.pace

    def forget(self, key: Hashable) -> None:
        super().forget(key)
        self._allowed.release()
