"""Work split over torch's number of threads. numba's own parallel loops may not be entered from two threads at once,
and an auditor beside a trainer in one process would do that. All heavy work runs on these threads, products included:
a library's threads beside them, which wait in a loop for more to do, would take the processors away from them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, pairwise

import torch

from roundlog.kernels.environment import ENVIRONMENT

MIN_ELEMENTS = 1 << 17
"""Below this, handing out work costs more than it saves."""

_MOST = 64
"""Threads that the pool may have."""

_OWN = threading.local()
"""`busy`: whether this thread is one of several that share a task, as those of the pool always are: a part that waited
for others would keep its thread from them."""


class _ThreadPool:
    """Threads of `concurrent.futures`, in the floating-point environment that the kernels need."""

    def __init__(self) -> None:
        self.asking = threading.Lock()
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self.size = 0
        """Threads; some may still have to be started."""
        self.disturbed = 0
        """Parts after which a thread did not compute as IEEE 754 says any more."""

    def hand_out(self, works: Sequence[Callable[[], None]]) -> list[Future[None]]:
        """Have all of these called on threads of the pool, which is as large as the largest task so far."""
        with self._lock:
            executor, wanted = self._executor, min(len(works), _MOST)
            if executor is None or wanted > self.size:
                if executor is not None:
                    # It still ends the parts that it has been given.
                    executor.shutdown(wait=False)
                self.size = max(1, wanted)
                executor = ThreadPoolExecutor(self.size, "roundlog-kernel", _OWN.__setattr__, ("busy", True))
                self._executor = executor
            return [executor.submit(self._work, work) for work in works]

    def _work(self, work: Callable[[], None]) -> None:
        # The thread's maker or an earlier part may have left another environment to it.
        ENVIRONMENT.put_right()
        try:
            work()
        finally:
            if not ENVIRONMENT.is_right():
                with self._lock:
                    self.disturbed += 1


def _wait(parts: list[Future[None]]) -> list[BaseException | None]:
    """The errors of all parts, or None, when all have ended; an interrupt is raised only then, because memory that the
    parts write to may go afterwards."""
    interrupt: KeyboardInterrupt | None = None
    errors: list[BaseException | None] = []
    waiting = True
    while waiting:
        try:
            # The loop is inside, so that an interrupt between two parts is caught, too.
            while len(errors) < len(parts):
                errors.append(parts[len(errors)].exception())
            waiting = False
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return errors


_POOL = _ThreadPool()


def _without_threads() -> None:
    """A process that was forked has none of its parent's threads, and would wait for them for ever."""
    global _POOL
    _POOL = _ThreadPool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_without_threads)


def disturbed() -> int:
    """Number of parts that a thread of the kernels has begun in the right floating-point environment and ended in
    another: while it stays the same, what they compute is right."""
    return _POOL.disturbed


def on_every_thread(ask: Callable[[], bool]) -> bool:
    """Whether it holds here and on every thread of the kernels' pool. A thread is put into the right floating-point
    environment before it is asked, as before everything that it computes."""
    pool, answers = _POOL, [ask()]
    # Two who ask at once could each hold threads that the other waits for.
    with pool.asking:
        count = pool.size
        met = threading.Barrier(max(1, count))

        def one() -> None:
            # None of them takes a second question before all have one.
            met.wait()
            answers.append(ask())

        _raise(_wait(pool.hand_out([one] * count)))
    return all(answers)


def threads_for(items: int, elements: int) -> int:
    """Number of threads that a task of so many items is worth, `elements` being the size of the whole task."""
    if getattr(_OWN, "busy", False):
        return 1
    return max(1, min(_TORCH.threads or torch.get_num_threads(), items, elements // MIN_ELEMENTS))


def _share(works: list[Callable[[], None]]) -> None:
    """Run all of these at once, one here. Raises what one of them raises."""
    parts = _POOL.hand_out(works[1:])
    try:
        works[0]()
    finally:
        # Memory that the other threads write to has to outlive them, also after an error here.
        errors = _wait(parts)
    _raise(errors)


def _raise(errors: list[BaseException | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def in_parts(work: Callable[[int, int], None], items: int, elements: int) -> None:
    """Call work(start, stop) for ranges that cover range(items), `elements` being the size of the whole task.
    `work` has to release the GIL. Raises what a part raises."""
    threads = threads_for(items, elements)
    if threads <= 1:
        if items:
            work(0, items)
        return
    edges = [items * i // threads for i in range(threads + 1)]
    _share([lambda a=a, b=b: work(a, b) for a, b in pairwise(edges)])  # type: ignore[misc]


def one_by_one(work: Callable[[int], None], items: int, elements: int) -> None:
    """Call work(i) for every i < items, whichever thread is free taking the next one; what a call starts in its turn
    stays on its thread. Raises what a call raises."""
    threads = threads_for(items, elements)
    following = count()

    def some() -> None:
        before = getattr(_OWN, "busy", False)
        _OWN.busy = True
        try:
            # `next` is one bytecode, so no two threads get the same number.
            while (item := next(following)) < items:
                work(item)
        finally:
            _OWN.busy = before

    _share([some] * threads)


@contextmanager
def own_threads() -> Iterator[None]:
    """While this lasts, the kernels' threads are the only ones: torch computes on the thread that calls it. The kernels
    use as many as torch was set to. The setting is the process's."""
    with _TORCH.on_one_thread():
        yield


class _Torch:
    """Number of torch's threads, and how many users need it to do with one."""

    threads = 0
    """Threads that torch was set to; 0 while nobody does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def on_one_thread(self) -> Iterator[None]:
        """The first user makes the setting, the last one takes it back."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self.threads = torch.get_num_threads()
                torch.set_num_threads(1)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    torch.set_num_threads(self.threads)
                    self.threads = 0


_TORCH = _Torch()
