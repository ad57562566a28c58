"""Work beside the pages, which takes seconds: a page shows what is known and is made anew when more is."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from tiebreak.dashboard import showing
from tiebreak.http_client import Pauses
from tiebreak.store.store_errors import ContentMissing, FetchTooSlow, StoreError, StoreUnavailable, causes

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0
"""Seconds until failed work is done again: after the first failure, and at most."""

_PASSING = (StoreUnavailable, FetchTooSlow, ContentMissing)
"""Errors that time can mend: a store comes back, and somebody may give it what it lacks."""

_KEPT = 256
_WAITING = 32
_LONGEST = 400


@dataclass(slots=True)
class _Result:
    """Result of a piece of work. `trouble`: why it failed, in one sentence; empty if it did not."""

    version: Any
    value: Any = None
    trouble: str = ""
    pauses: Pauses | None = None
    """Pauses between attempts; None for what no attempt would change."""
    due: float = 0.0
    """The instant of the next attempt, by `time.monotonic`."""


class BackgroundWork:
    """Work of one thread, each piece named; its newest results are kept. `done` is called after each piece, and when a
    failed one may be done again, so that pages which are open ask for it.

    What failed since a store is away is done again after a pause that grows, as long as somebody asks for it. Other
    failures stay: bytes that are wrong stay wrong."""

    def __init__(
        self, done: Callable[[], None], *, first_pause: float = FIRST_PAUSE, longest_pause: float = LONGEST_PAUSE
    ) -> None:
        self._done = done
        self._first_pause, self._longest_pause = first_pause, longest_pause
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="work")
        self._lock = threading.Lock()
        self._waiting: set[Any] = set()
        self._results: OrderedDict[Any, _Result] = OrderedDict()
        self._timers: set[threading.Timer] = set()
        self._closed = False

    def result(self, key: Any, work: Callable[[], T], *, version: Any = None) -> T | None:
        """The newest result of a piece of work, None as long as there is none. It is done again for every new
        `version`. What it raises counts as None."""
        with self._lock:
            known = self._results.get(key)
            if known is not None:
                self._results.move_to_end(key)
            is_wanted = known is None or known.version != version or _is_due(known)
            if is_wanted and key not in self._waiting and len(self._waiting) < _WAITING and not self._closed:
                self._waiting.add(key)
                self._pool.submit(self._do, key, version, work)
        return None if known is None else cast(T, known.value)

    def is_waiting(self, key: Any) -> bool:
        with self._lock:
            return key in self._waiting

    def trouble(self, key: Any) -> str:
        """Why the last attempt at a piece of work has failed, and whether there will be another one; empty if it has
        not failed."""
        with self._lock:
            known = self._results.get(key)
        if known is None or not known.trouble:
            return ""
        outlook = "It is tried again by itself." if known.pauses is not None else "Time does not mend that."
        return f"{known.trouble}. {outlook}"

    def _do(self, key: Any, version: Any, work: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            found = _Result(version, work())
        except Exception as error:  # a damaged file, another program's, or a store that is away: the page says less
            found = _Result(version, trouble=_clause(error))
            if passes(error):
                found.pauses = Pauses(first=self._first_pause, most=self._longest_pause)
        with self._lock:
            before = self._results.get(key)
            if found.pauses is not None:
                if before is not None and before.version == version and before.pauses is not None:
                    found.pauses = before.pauses
                # An attempt that takes minutes must not leave the thread without time for other work.
                pause = max(found.pauses.next(), time.monotonic() - began)
                found.due = time.monotonic() + pause
                self._call_later(pause)
            self._waiting.discard(key)
            self._results[key] = found
            while len(self._results) > _KEPT:
                self._results.popitem(last=False)
        self._done()

    def _call_later(self, seconds: float) -> None:
        """Calls `done` after a pause. Called with the lock held."""

        def ended() -> None:
            with self._lock:
                self._timers.discard(timer)
            self._done()

        if self._closed:
            return
        timer = threading.Timer(seconds, ended)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)


def passes(error: BaseException) -> bool:
    """Whether time can mend what an error tells, itself or what caused it."""
    for cause in causes(error):
        if isinstance(cause, StoreError):
            return isinstance(cause, _PASSING)
    return isinstance(error, OSError)  # the disk is full, or not there


def _clause(error: Exception) -> str:
    return showing.bounded(str(error), _LONGEST).rstrip(".") or type(error).__name__


def _is_due(known: _Result) -> bool:
    return known.pauses is not None and time.monotonic() >= known.due
