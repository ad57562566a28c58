"""Calls and waits that end in time, and at once when the process is told to stop; and growing pauses between attempts
(exponential backoff)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOK = 0.05
"""Seconds between two looks at the stop signal while a call runs."""


class TooLate(Exception):
    """A call has not ended within its time."""


class Halted(Exception):
    """The stop signal was given."""


def pause(seconds: float, stop: threading.Event | None) -> None:
    """Waits `seconds`. Raises Halted as soon as `stop` is set."""
    if stop is None:
        time.sleep(max(0.0, seconds))
    elif stop.wait(max(0.0, seconds)):
        raise Halted


def within(seconds: float, stop: threading.Event | None, call: Callable[[], T]) -> T:
    """The result of `call`, or the exception that it raised, if it ends within `seconds`.

    The call runs in a thread of its own, which is left behind when its time is over: a socket's own timeout bounds the
    silence between two bytes and not the whole answer, nor the look-up of a name. Such a call must therefore change
    nothing in this process. Raises TooLate, and Halted when `stop` is set.
    """
    running = _Running(call)
    deadline = time.monotonic() + seconds
    while not running.ended.wait(max(0.0, min(_LOOK, deadline - time.monotonic()))):
        if stop is not None and stop.is_set():
            raise Halted
        if time.monotonic() >= deadline:
            raise TooLate
    return running.result()


class _Running(Generic[T]):
    """A call in its own thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.ended = threading.Event()
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="request", daemon=True).start()

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value[0]


class Pauses:
    """Pauses that start at `first` seconds and double up to `most`. `spread`: each is longer by a random part of
    itself, up to this one, so that many who failed at the same time do not come again at the same time."""

    def __init__(self, *, first: float, most: float, spread: float = 0.0) -> None:
        self._first, self._most, self._spread = first, most, spread
        self._now = first

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        pause, self._now = self._now, min(2 * self._now, self._most)
        return pause * (1 + self._spread * random.random())

    def reset(self) -> None:
        """Starts again at `first`, after a success."""
        self._now = self._first
