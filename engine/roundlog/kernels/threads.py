"""Work split over torch's number of threads. numba's own parallel loops may not be entered from two threads at once,
and an auditor beside a trainer in one process would do that. All heavy work runs on these threads, products included:
a library's threads beside them, which wait in a loop for more to do, would take the processors away from them."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import count, pairwise
from queue import SimpleQueue
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

from roundlog.kernels.environment import ENVIRONMENT

MIN_ELEMENTS = 1 << 17
"""Below this, handing out work costs more than it saves."""

_MOST = 64
"""Threads of the pool."""

_OWN = threading.local()
"""`busy`: whether this thread is one of several that share a task."""


class _Done:
    """What has become of parts that were handed out together."""

    def __init__(self) -> None:
        self.answers: list[BaseException | None] = []
        """What they raised, or None, in the order in which they ended."""
        self.words: SimpleQueue[None] = SimpleQueue()
        """One after every answer, for whoever waits."""


class _Pool:
    """Threads that wait for work. `concurrent.futures` has some, too, but takes twice as long to hand out a part of a
    task and to wait for it."""

    def __init__(self) -> None:
        self.asking = threading.Lock()
        self._lock = threading.Lock()
        self._threads = 0
        self._fixed = False
        """No thread is started now."""
        self._unfinished = 0
        """Parts that have been handed out."""
        self._parts: SimpleQueue[tuple[Callable[[], None], _Done]] = SimpleQueue()
        self.disturbed = 0
        """Parts after which a thread did not compute as IEEE 754 says any more."""

    def hand_out(self, works: list[Callable[[], None]]) -> _Done:
        """Have all of these called on threads of the pool."""
        with self._lock:
            self._unfinished += len(works)
            while self._threads < min(self._unfinished, _MOST) and not self._fixed:
                # Whoever still waits for a part when the process ends does not keep it from ending.
                threading.Thread(target=self._work, name=f"roundlog-kernel_{self._threads}", daemon=True).start()
                self._threads += 1
        done = _Done()
        for work in works:
            self._parts.put((work, done))
        return done

    def wait(self, done: _Done, count: int) -> list[BaseException | None]:
        """For so many parts, interrupted or not: memory that they write to may go afterwards."""
        interrupt: KeyboardInterrupt | None = None
        # An interrupt may take away a word, but no answer.
        while len(done.answers) < count:
            try:
                done.words.get()
            except KeyboardInterrupt as error:
                interrupt = error
        with self._lock:
            self._unfinished -= count
        if interrupt is not None:
            raise interrupt
        return done.answers

    def _work(self) -> None:
        while True:
            work, done = self._parts.get()
            answer: BaseException | None = None
            # What its maker or an earlier part has left to this thread.
            ENVIRONMENT.put_right()
            try:
                work()
            except BaseException as error:
                answer = error
            if not ENVIRONMENT.is_right():
                with self._lock:
                    self.disturbed += 1
            done.answers.append(answer)
            done.words.put(None)
            # While it waits, it does not keep alive what the part worked on.
            del work, done, answer

    @contextmanager
    def fixed(self) -> Iterator[int]:
        """How many threads there are, while this lasts."""
        with self._lock:
            self._fixed = True
            count = self._threads
        try:
            yield count
        finally:
            with self._lock:
                self._fixed = False


_POOL = _Pool()


def _without_threads() -> None:
    """A process that was forked has none of its parent's threads, and would wait for them for ever."""
    global _POOL
    _POOL = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_without_threads)


def disturbed() -> int:
    """How often so far a thread of the kernels has begun a part in the right floating-point environment, or been put
    into it, and ended it in another: while this number stays, what they compute is right."""
    return _POOL.disturbed


def on_every_thread(ask: Callable[[], bool]) -> bool:
    """Whether it holds here and on every thread that has been started for the kernels so far. A thread is
    put into the right floating-point environment before it is asked, as before everything that it computes."""
    pool, answers = _POOL, [ask()]
    # Two who ask at once could each hold threads that the other waits for.
    with pool.asking, pool.fixed() as count:
        met = threading.Barrier(max(1, count))

        def one() -> None:
            # None of them takes a second question before all have one.
            met.wait()
            answers.append(ask())

        _raise(pool.wait(pool.hand_out([one] * count), count))
    return all(answers)


def threads_for(items: int, elements: int) -> int:
    """How many threads a task of so many items is worth, `elements` being the size of the whole task."""
    if getattr(_OWN, "busy", False):
        return 1
    return max(1, min(_TORCH.threads or torch.get_num_threads(), items, elements // MIN_ELEMENTS))


def _share(works: list[Callable[[], None]]) -> None:
    """Run all of these at once, one here. Raises what one of them raises."""
    pool, others = _POOL, works[1:]
    done = pool.hand_out(others)
    try:
        works[0]()
    finally:
        # Whatever happens here, memory that the others write to has to outlive them.
        errors = pool.wait(done, len(others))
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
    stays on its thread, matrix products of numpy included. Raises what a call raises."""
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

    with _BLAS.on_one_thread():
        _share([some] * threads)


@contextmanager
def own_threads() -> Iterator[None]:
    """While this lasts, the kernels' threads are the only ones: torch and numpy compute on the thread that calls them.
    The kernels use as many as torch was set to. Both settings are the process's."""
    with _TORCH.on_one_thread(), _BLAS.on_one_thread():
        yield


class _Library(ABC):
    """A library with threads of its own, and how many users need it to do without."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    @abstractmethod
    def rest(self) -> None:
        """Make the setting."""

    @abstractmethod
    def resume(self) -> None:
        """Take it back."""

    @contextmanager
    def on_one_thread(self) -> Iterator[None]:
        """The first user makes the setting, the last one takes it back."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self.rest()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self.resume()


class _Torch(_Library):
    threads = 0
    """What torch was set to; 0 while it is not resting."""

    def rest(self) -> None:
        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def resume(self) -> None:
        torch.set_num_threads(self.threads)
        self.threads = 0


class _Blas(_Library):
    """numpy's."""

    @cached_property
    def _libraries(self) -> list[Any]:
        return list(ThreadpoolController().select(user_api="blas").lib_controllers)

    def rest(self) -> None:
        self._before = [library.get_num_threads() for library in self._libraries]
        for library in self._libraries:
            library.set_num_threads(1)

    def resume(self) -> None:
        for library, threads in zip(self._libraries, self._before, strict=True):
            library.set_num_threads(threads)


_TORCH, _BLAS = _Torch(), _Blas()
