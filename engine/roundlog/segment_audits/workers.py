"""Workers on this machine, processes behind `concurrent.futures.Executor` that execute one call at a time each, and a
pool of workers, wherever they are: some get lost, and some are not believed.

Some are slow: how long an interval takes, which workers take so much longer that they may never answer, and a stand-in
for those: this process does their work, so that an audit ends though all of them hang. A worker that hangs says
nothing, so it is known by its time alone. Where no worker has answered before, this process executes some steps to find
out what time is honest, and leaves the rest to a worker that has taken no longer so far."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing import connection
from typing import Any, TypeVar

import torch

from roundlog.segment_audits.plan import Plan
from roundlog.segment_audits.segment import MakeWorker, Segment, SegmentOrder, WorkerAnswer, audit_segment

T = TypeVar("T")

_SAFE_PATH = "PYTHONSAFEPATH"
_starting = threading.Lock()

_SECONDS_TO_END = 10.0
"""Seconds for which the end of a killed process is waited for."""


class ProcessWorker(Executor):
    """One process of its own, started with the first call. It ends when this process does, however that ends."""

    def __init__(self, threads: int | None = None) -> None:
        """threads: of its kernels; None for PyTorch's own number."""
        # Forked processes would share locks of threads that they do not have.
        context = multiprocessing.get_context("spawn")
        with _safe_path():  # the tracker of the pool's locks
            self._pool = ProcessPoolExecutor(1, context, _begin, (threads,))

    @property
    def pids(self) -> list[int]:
        """Process ids; empty before the first call."""
        return list(getattr(self._pool, "_processes", None) or {})

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        with _safe_path():  # the first call starts the process
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        if cancel_futures:
            # The pool has no public way to end a call that runs before Python 3.14.
            for process in processes:
                process.kill()  # one that is stopped would not end for less
            for process in processes:
                # One that reads from a dead disk may not end before the disk answers.
                process.join(_SECONDS_TO_END)


@contextmanager
def _safe_path() -> Iterator[None]:
    """A block in which Python that is started does not look for modules in the working directory, which may be one that
    a stranger has made. Spawned processes would look there for `multiprocessing` itself, and for all that it imports,
    before they take the path of this one."""
    with _starting:
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SAFE_PATH]
            else:
                os.environ[_SAFE_PATH] = before


def process_workers(threads: int | None = None) -> MakeWorker:
    """Workers that are processes of this machine. threads: of each one's kernels; None for PyTorch's own number."""
    return lambda number: ProcessWorker(threads)


def _begin(threads: int | None) -> None:
    """Prepares a worker's process."""
    # The audit ends its workers; an interrupt from the keyboard goes to all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child"
    sentinel = parent.sentinel

    def follow() -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="parent", daemon=True).start()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


_SHOWN = 80
"""Most characters of a name that a worker gives itself."""


_MOST_WORDS = 300
"""Most characters of a worker's words about what went wrong."""


def plainly(text: object, most: int = _MOST_WORDS) -> str:
    """A worker's words, which nothing controls a terminal with, and which are no longer than that."""
    try:
        shown = str(text)
    except Exception:  # an exception's class may be anybody's
        shown = "it cannot be shown"
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in shown[:most])


class NoWorkersError(RuntimeError):
    """No worker is left to go on with. The message is one sentence."""


class Purpose(Enum):
    """Why a worker was given an order."""

    AUDIT = "audit"
    REPEAT = "repeat"
    """Another worker has answered the same order."""
    DOUBLE = "double"
    """Another worker takes very long with the same order."""


@dataclass(slots=True)
class Assignment:
    """An order in the hands of a worker."""

    order: SegmentOrder
    purpose: Purpose
    future: Future[WorkerAnswer]
    repeats: WorkerReport | None = None
    """Answer of another worker to the same order."""
    since: float = field(default_factory=time.monotonic)
    is_answered: bool = False
    """Whether another worker, or this process, has answered the same order meanwhile."""
    is_told: bool = False
    """Whether people were told that its worker may hang."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker of a pool. A lost one is replaced under the same number."""

    number: int
    executor: Executor
    task: Assignment | None = None
    names: set[str] = field(default_factory=set)
    """All names under which it has answered."""

    @property
    def told(self) -> str:
        """Its name for people."""
        return max(self.names, default=f"worker {self.number + 1}")

    def name(self, answer: WorkerAnswer) -> str:
        """The name of this worker, with what it calls itself."""
        name = f"worker {self.number + 1} ({plainly(answer.worker, _SHOWN)})"
        self.names.add(name)
        return name


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """End of a task: an answer, or the error that the call has raised, or neither: the worker is lost."""

    worker: Worker
    task: Assignment
    answer: WorkerAnswer | None = None
    error: Exception | None = None


class WorkerPool:
    """Workers of the numbers 0 to `count` - 1, made by `make`. `close` it in any case."""

    def __init__(self, make: MakeWorker, count: int) -> None:
        self._make = make
        self.workers = [Worker(number, make(number)) for number in range(count)]
        self.lost = 0
        """Workers that got lost."""

    def idle(self) -> list[Worker]:
        """Workers without a task."""
        return [worker for worker in self.workers if worker.task is None]

    def tasks(self) -> list[tuple[Worker, Assignment]]:
        """Workers with a task, with it."""
        return [(worker, worker.task) for worker in self.workers if worker.task is not None]

    def give(self, worker: Worker, order: SegmentOrder, purpose: Purpose, repeats: WorkerReport | None = None) -> None:
        """Gives an order to an idle worker."""
        try:
            future = worker.executor.submit(audit_segment, order)
        except (BrokenExecutor, RuntimeError) as error:
            future = Future()
            future.set_exception(error if isinstance(error, BrokenExecutor) else BrokenExecutor(str(error)))
        worker.task = Assignment(order, purpose, future, repeats)

    def wait(self, seconds: float) -> list[WorkerReport]:
        """Ends of tasks, once one has, or after so many seconds."""
        tasks = self.tasks()
        if not tasks:
            time.sleep(seconds)
            return []
        wait([task.future for _, task in tasks], seconds, FIRST_COMPLETED)
        return [self._report(worker, task) for worker, task in tasks if task.future.done()]

    def _report(self, worker: Worker, task: Assignment) -> WorkerReport:
        worker.task = None
        try:
            answer = task.future.result()
        except (BrokenExecutor, CancelledError):
            self.lost += 1
            worker.executor.shutdown(wait=False, cancel_futures=True)
            worker.executor = self._make(worker.number)
            return WorkerReport(worker, task)
        except Exception as error:
            return WorkerReport(worker, task, error=error)
        if (why := _malformed(answer, task.order)) is not None:
            return WorkerReport(worker, task, error=ValueError(why))
        return WorkerReport(worker, task, answer)

    def has_ends(self) -> bool:
        """Whether `wait` would report something at once."""
        return any(task.future.done() for _, task in self.tasks())

    def dismiss(self, worker: Worker) -> Assignment | None:
        """Ends a worker for good; returns the task that it had."""
        self.workers.remove(worker)
        worker.executor.shutdown(wait=False, cancel_futures=True)
        task, worker.task = worker.task, None
        return task

    def close(self) -> None:
        """Ends all workers at once."""
        for worker in self.workers:
            worker.executor.shutdown(wait=False, cancel_futures=True)


def _malformed(answer: object, order: SegmentOrder) -> str | None:
    """Fault in the form of an answer, in one clause; None if there is none."""
    if (
        not isinstance(answer, WorkerAnswer)
        or not isinstance(answer.worker, str)
        or not isinstance(answer.roots, tuple)
    ):
        return "it answers something else than was asked for"
    if any(not isinstance(root, bytes) or len(root) != 32 for root in answer.roots):
        return "it answers with something that is no root"
    if any(text is not None and not isinstance(text, str) for text in (answer.unusable, answer.stopped)):
        return "it answers with something that is no sentence"
    if not isinstance(answer.seconds, int | float) or not 0 <= answer.seconds < 1e9:
        return "it answers with something that is no time"
    if type(answer.fetched) is not int or not 0 <= answer.fetched < 1 << 63:
        return "it answers with something that is no number of bytes"
    most = len(order.segment)
    if answer.unusable is not None:
        return "it answers with roots from no state" if answer.roots or order.start.address is None else None
    if (len(answer.roots) >= most) if answer.stopped is not None else (len(answer.roots) != most):
        return f"it answers with {len(answer.roots)} roots for {most} intervals"
    return None


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

    def is_late(self, task: Assignment, *, patiently: bool = False) -> bool:
        """Whether a task takes very long; patiently: and more than PATIENCE."""
        allowed = max(PATIENCE if patiently else 0.0, SLOW * self._slowest * len(task.order.segment))
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
