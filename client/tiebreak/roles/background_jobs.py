"""Long work in threads, by stake and deadline and not by order of arrival. There are lanes for files, for work that a
game needs now, and for whole runs.

A role asks for a piece of work at every look and does not wait for it. Runs give way to one another between intervals,
in the order of `order`, and pause at a step while a game needs the machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from roundlog.kernels.scratch import give_back

K = TypeVar("K", bound=Hashable)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """The stake and the deadline of a piece of long work. `stake`: wei that it earns, or that are lost without it."""

    deadline: float
    """Seconds since 1970, by the chain's clock; the work is useless later."""
    stake: int
    seconds: float = 0.0
    """Measured seconds that the work still takes; 0: unknown."""
    bonded: bool = False
    """Whether a bond of this account is lost without the work."""

    @property
    def worth(self) -> tuple[bool, float]:
        """A sort key: bonds first, then wei per second of work."""
        return self.bonded, self.stake / max(self.seconds, 1.0)


def order(priorities: Mapping[K, Priority], now: float) -> list[K]:
    """Return all keys in the order of work, first one first.

    The earliest deadline goes first, which meets all deadlines if that is possible. Otherwise the jobs with the least
    worth per second give way until the others are in time (after Moore and Hodgson, 1968). They come last, the
    worthiest first."""
    kept: list[K] = []
    late: list[K] = []
    for key in sorted(priorities, key=lambda key: priorities[key].deadline):
        kept.append(key)
        while kept and now + sum(priorities[one].seconds for one in kept) > priorities[kept[-1]].deadline:
            # Only jobs that take time make others late.
            slow = [one for one in kept if priorities[one].seconds > 0] or kept
            least = min(slow, key=lambda one: priorities[one].worth)
            kept.remove(least)
            late.append(least)
    return kept + sorted(late, key=lambda key: priorities[key].worth, reverse=True)


class Lane(Enum):
    """Lanes of work, side by side."""

    FILES = "files"
    """Fetching of files, which mostly waits for others."""
    GAMES = "games"
    """Executions for disputes. While there are any, no run takes a step."""
    RUNS = "runs"
    """Trainings and audits, one at a time."""

    @property
    def width(self) -> int:
        """Most jobs of this lane at a time; of `FILES`, of those with a bond behind them, and as many of those without:
        downloads that strangers cause for free do not delay those that a bond depends on."""
        return 8 if self is Lane.FILES else 1


class Interrupted(Exception):
    """The work was told to stop; it can be resumed."""


class GivesWay(Interrupted):
    """A run gives way to a more urgent one, and will be resumed."""


class BackgroundJob(Generic[T]):
    """A piece of long work. `doing`: a clause that describes it to people while it runs."""

    def __init__(
        self, lane: Lane, key: Hashable, work: Callable[[BackgroundJob[T]], T], priority: Priority, doing: str
    ) -> None:
        self.lane, self.key, self.doing = lane, key, doing
        self.priority = priority
        self.stop = threading.Event()
        """Once set, the work ends at its next step, because it is not wanted any more."""
        self.gives_way = threading.Event()
        self.hold: Callable[[], None] = lambda: None
        """Called at every step; returns when the next step may run."""
        self.steps = 0
        self.total = 0
        self.step_seconds = 0.0
        self._work = work
        self._over = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._over.is_set()

    @property
    def error(self) -> BaseException | None:
        """The error that the work has raised; None while it runs, and if it succeeded."""
        return self._error if self.done else None

    def result(self) -> T:
        """Return the result of the work. Raises the error that the work has raised."""
        assert self.done, "ask only for the result of what is done"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set when done without an error

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the work, at most `seconds` seconds. Returns whether it is done."""
        return self._over.wait(seconds)

    def run(self) -> None:
        """Do the work; an error is kept for `result`."""
        try:
            self._result = self._work(self)
        except GivesWay:
            self.gives_way.clear()
            return
        except BaseException as error:
            self._error = error
        self._over.set()

    def taken(self, step: int, total: int, seconds: float, *, may_pause: bool) -> None:
        """Take note of a step of a run (counted from 0), after each: measure, wait for games, and obey `stop` and
        `gives_way`.

        may_pause: whether little is lost by stopping here. Raises Interrupted, GivesWay."""
        self.steps, self.total = step + 1, total
        # A slow step counts for some time, since a shared machine stays slow.
        self.step_seconds = max(seconds, 0.9 * self.step_seconds + 0.1 * seconds)
        if self.stop.is_set():
            raise Interrupted
        if may_pause and self.gives_way.is_set():
            raise GivesWay
        self.hold()
        if self.stop.is_set():
            raise Interrupted

    def measured(self) -> Priority:
        """Return the priority with the time that is left, as far as it is measured."""
        if not self.total or not self.step_seconds:
            return self.priority
        return replace(self.priority, seconds=(self.total - self.steps) * self.step_seconds)


class BackgroundJobs:
    """The background jobs of a role, in threads, which end with the process. One key is one job, however often it is
    asked for. `now`: the chain's clock, in seconds since 1970."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._jobs: dict[Hashable, BackgroundJob[Any]] = {}
        self._waiting: dict[Lane, dict[Hashable, BackgroundJob[Any]]] = {lane: {} for lane in Lane}
        # Not by key: a forgotten job may end after another with its key has begun.
        self._running: dict[Lane, list[BackgroundJob[Any]]] = {lane: [] for lane in Lane}
        self._change = threading.Condition()
        self._closed = False

    def ask(
        self, lane: Lane, key: Hashable, work: Callable[[BackgroundJob[T]], T], priority: Priority, doing: str = ""
    ) -> BackgroundJob[T]:
        """Return the job of `key`, begun if there is none. priority: its present stake and deadline."""
        with self._change:
            if (job := self._jobs.get(key)) is None:
                self._jobs[key] = self._waiting[lane][key] = job = BackgroundJob(lane, key, work, priority, doing)
                if lane is Lane.RUNS:
                    job.hold = self._wait_for_games
            job.priority = priority
            self._prefer(lane)
            self._begin(lane)
            return job

    def forget(self, key: Hashable) -> None:
        """Drop a job. A running one is told to stop; asking for its key again begins a new one."""
        with self._change:
            if (job := self._jobs.pop(key, None)) is not None:
                job.stop.set()
                self._waiting[job.lane].pop(key, None)
                self._change.notify_all()

    def promised(self, key: Hashable) -> float:
        """Return seconds that runs other than `key` still take, as far as measured, without which a bond is lost."""
        with self._change:
            runs = [*self._running[Lane.RUNS], *self._waiting[Lane.RUNS].values()]
            return sum(one.measured().seconds for one in runs if one.key != key and one.priority.bonded)

    def close(self, patience: float = 1.0) -> bool:
        """Tell all jobs to stop, and wait at most `patience` seconds for that. Returns whether they all did."""
        deadline = time.monotonic() + patience
        with self._change:
            self._closed = True
            for waiting in self._waiting.values():
                waiting.clear()
            for job in self._jobs.values():
                job.stop.set()
            self._change.notify_all()
            while any(self._running.values()) and (left := deadline - time.monotonic()) > 0:
                self._change.wait(left)
            return not any(self._running.values())

    def _begin(self, lane: Lane) -> None:
        """Start a thread for each job that waits, in their order, where the lane has room for it. Called with the
        lock held."""
        for key in [] if self._closed else self._order(self._waiting[lane]):
            job, running = self._waiting[lane][key], self._running[lane]
            alike = [one for one in running if lane is not Lane.FILES or one.priority.bonded == job.priority.bonded]
            if len(alike) < lane.width:
                running.append(self._waiting[lane].pop(key))
                name = f"tiebreak-{lane.name.lower()}"
                threading.Thread(target=self._run, args=(job,), name=name, daemon=True).start()

    def _run(self, job: BackgroundJob[Any]) -> None:
        job.run()
        if job.lane is not Lane.FILES:
            give_back()  # which malloc would keep for this thread alone
        with self._change:
            lane = job.lane
            self._running[lane].remove(job)
            if not job.done and self._jobs.get(job.key) is job:
                self._waiting[lane][job.key] = job  # it gave way
            self._begin(lane)
            self._change.notify_all()

    def _order(self, jobs: Mapping[Hashable, BackgroundJob[Any]]) -> list[Hashable]:
        return order({key: job.measured() for key, job in jobs.items()}, self._now())

    def _prefer(self, lane: Lane) -> None:
        """Tell the current run to give way if a waiting run is more urgent."""
        if lane is not Lane.RUNS or not self._waiting[lane] or not self._running[lane]:
            return
        running = self._running[lane][0]
        both = {running.key: running, **self._waiting[lane]}  # first, so that it continues if all else is equal
        if self._order(both)[0] != running.key:
            running.gives_way.set()
        else:
            running.gives_way.clear()

    def _wait_for_games(self) -> None:
        with self._change:
            while (self._waiting[Lane.GAMES] or self._running[Lane.GAMES]) and not self._closed:
                self._change.wait(1.0)
