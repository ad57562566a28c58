"""Workers on this machine, processes behind `concurrent.futures.Executor` that execute one call at a time each; and a
pool of workers, wherever they are, of which some get lost."""

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
from multiprocessing import connection
from typing import Any, TypeVar

from roundlog.segment_audits.segment import MakeWorker, SegmentOrder, WorkerAnswer, audit_segment

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
    """Prepare a worker's process."""
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


class NoWorkersError(RuntimeError):
    """No worker is left to go on with. The message is one sentence."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker of a pool. A lost one is replaced under the same number."""

    number: int
    executor: Executor
    task: Assignment | None = None
    names: set[str] = field(default_factory=set)
    """All names under which it has answered."""

    @property
    def shown(self) -> str:
        """Its name for people."""
        return max(self.names, default=f"worker {self.number + 1}")

    def name(self, answer: WorkerAnswer) -> str:
        """Return the name of this worker, with what it calls itself."""
        name = f"worker {self.number + 1} ({answer.worker})"
        self.names.add(name)
        return name


@dataclass(slots=True, eq=False)
class Assignment:
    """An order that was given to a worker, and how it has ended: with an answer, with the error that the call has
    raised, or with neither: the worker is lost."""

    worker: Worker
    order: SegmentOrder
    future: Future[WorkerAnswer]
    is_extra: bool = False
    """Whether another worker has, or had, the same order."""
    repeats: Assignment | None = None
    """Another worker's answered assignment, which this one is to repeat."""
    since: float = field(default_factory=time.monotonic)
    is_answered: bool = False
    """Whether another worker, or this process, has answered the same order meanwhile."""
    answer: WorkerAnswer | None = None
    error: Exception | None = None

    @property
    def age(self) -> float:
        """Seconds since it was given."""
        return time.monotonic() - self.since


class WorkerPool:
    """Workers of the numbers 0 to `count` - 1, made by `make`. `close` it in any case."""

    def __init__(self, make: MakeWorker, count: int) -> None:
        self._make = make
        self.workers = [Worker(number, make(number)) for number in range(count)]
        self.lost = 0
        """Workers that got lost."""

    def idle(self) -> list[Worker]:
        """Return the workers without a task."""
        return [worker for worker in self.workers if worker.task is None]

    def tasks(self) -> list[Assignment]:
        """Return the tasks that workers have."""
        return [worker.task for worker in self.workers if worker.task is not None]

    def give(
        self, worker: Worker, order: SegmentOrder, *, is_extra: bool = False, repeats: Assignment | None = None
    ) -> None:
        """Give an order to an idle worker."""
        try:
            future = worker.executor.submit(audit_segment, order)
        except RuntimeError as error:  # BrokenExecutor is one
            future = Future()
            future.set_exception(BrokenExecutor(str(error)))
        worker.task = Assignment(worker, order, future, is_extra, repeats)

    def wait(self, seconds: float) -> list[Assignment]:
        """Return the tasks that have ended, once one has, or after so many seconds."""
        tasks = self.tasks()
        if not tasks:
            time.sleep(seconds)
            return []
        wait([task.future for task in tasks], seconds, FIRST_COMPLETED)
        ended = [task for task in tasks if task.future.done()]
        for task in ended:
            self._end(task)
        return ended

    def _end(self, task: Assignment) -> None:
        worker = task.worker
        worker.task = None
        try:
            task.answer = task.future.result()
        except (BrokenExecutor, CancelledError):
            self.lost += 1
            worker.executor.shutdown(wait=False, cancel_futures=True)
            worker.executor = self._make(worker.number)
        except Exception as error:
            task.error = error

    def dismiss(self, worker: Worker) -> Assignment | None:
        """End a worker for good; return the task that it had."""
        self.workers.remove(worker)
        worker.executor.shutdown(wait=False, cancel_futures=True)
        task, worker.task = worker.task, None
        return task

    def close(self) -> None:
        """End all workers at once."""
        for worker in self.workers:
            worker.executor.shutdown(wait=False, cancel_futures=True)
