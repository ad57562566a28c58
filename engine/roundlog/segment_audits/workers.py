"""Workers on this machine: processes behind `concurrent.futures.Executor`, one call at a time each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

T = TypeVar("T")

MakeWorker = Callable[[int], Executor]
"""Makes the worker of a number (from 0): an executor of one call at a time. Its calls raise BrokenExecutor once the
worker is lost, and `shutdown(wait=False, cancel_futures=True)` ends it at once, whatever it does."""

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
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="parent", daemon=True).start()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
