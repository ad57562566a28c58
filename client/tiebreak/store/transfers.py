"""Transfers of content into a store or out of it: progress, and several blocks on their way at a time, so that the
latency of a network does not decide how fast content comes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tiebreak.store.dagpb import Cid

EVERY = 0.5
"""Seconds between two reports of one transfer. A shorter transfer is not reported."""

WIDTH = 8
"""Blocks on the way from a store over a network: at most 16 MiB of memory."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer that is under way. `doing`: "adding" or "fetching". `what`: a CID or the name of a file. `done`,
    `total`: bytes of content; `total` is what its publisher says, so only good for showing."""

    doing: str
    what: str
    done: int
    total: int


OnTransfer = Callable[[Transfer], None]
"""Is told how a transfer goes on, in the thread that does it."""


def untold(transfer: Transfer) -> None:
    """An `OnTransfer` that drops all reports."""


class Meter:
    """Counts the bytes of one transfer, and reports them twice a second."""

    def __init__(
        self, tell: OnTransfer, doing: str, what: str, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell, self._doing, self._what, self._total, self._clock = tell, doing, what, total, clock
        self._done, self._next, self._told = 0, clock() + EVERY, False

    def add(self, count: int) -> None:
        """Counts bytes."""
        self._done += count
        if (now := self._clock()) >= self._next:
            self._next = now + EVERY
            self._report()

    def end(self) -> None:
        """Reports the end, if anything was reported before."""
        if self._told:
            self._report()

    def _report(self) -> None:
        self._told = True
        self._tell(Transfer(self._doing, self._what, self._done, max(self._total, self._done)))


class Ahead:
    """Fetches blocks in their order, up to `width` at a time; one at a time in the caller's own thread if that is 1.
    Leaving the `with` block drops what is not wanted any more."""

    def __init__(self, fetch: Callable[[Cid], bytes], width: int) -> None:
        self._fetch, self._width = fetch, width
        self._pool = ThreadPoolExecutor(width, thread_name_prefix="ahead") if width > 1 else None

    def each(self, cids: Iterable[Cid | None]) -> Iterator[bytes | None]:
        """Yields the block of each identifier, None for None. What `cids` raises ends it; so does an error of a fetch,
        when it is that block's turn."""
        if self._pool is None:
            for cid in cids:
                yield None if cid is None else self._fetch(cid)
            return
        waiting: deque[Future[bytes] | None] = deque()
        try:
            for cid in cids:
                waiting.append(None if cid is None else self._pool.submit(self._fetch, cid))
                if len(waiting) >= self._width:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            for future in waiting:
                if future is not None:
                    future.cancel()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _result(future: Future[bytes] | None) -> bytes | None:
    return None if future is None else future.result()
