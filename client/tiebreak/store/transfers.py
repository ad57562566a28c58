"""Transfers of content into a store or out of it: progress, and several blocks on their way at a time, so that the
latency of a network does not decide how fast content comes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from tiebreak.store.dagpb import Cid

EVERY = 0.5
"""Seconds between two reports of one transfer. A shorter transfer is not reported."""

WIDTH = 8
"""Blocks on the way from or to a store over a network: at most 16 MiB of memory."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer that is under way. `doing`: "adding" or "fetching". `what`: a CID or the name of a file. `done`,
    `total`: bytes of content; `total` is what its publisher says, so only good for showing."""

    doing: str
    what: str
    done: int
    total: int


OnTransfer = Callable[[Transfer], None]
"""Receives the progress of a transfer, in the thread that does it."""


class Meter:
    """The bytes of one transfer, which are reported twice a second."""

    def __init__(self, report: OnTransfer | None, doing: str, what: str, total: int) -> None:
        self._report, self._doing, self._what, self._total = report, doing, what, total
        self._done, self._next, self._reported = 0, time.monotonic() + EVERY, False

    def add(self, count: int) -> None:
        """Count bytes."""
        self._done += count
        if (now := time.monotonic()) >= self._next:
            self._next = now + EVERY
            self._send()

    def end(self) -> None:
        """Report the end, if anything was reported before."""
        if self._reported:
            self._send()

    def _send(self) -> None:
        self._reported = True
        if self._report is not None:
            self._report(Transfer(self._doing, self._what, self._done, max(self._total, self._done)))


Prefetch = Callable[[Iterable[Cid | None]], Iterator[bytes | None]]
"""Yields the block of each identifier in order, None for None. What the iterable raises ends it; so does an error of a
fetch, when it is that block's turn."""


@contextmanager
def prefetching(fetch: Callable[[Cid], bytes], width: int) -> Iterator[Prefetch]:
    """Give a `Prefetch` with up to `width` blocks on their way at a time; at 1 the caller's own thread fetches."""
    if width == 1:
        yield lambda cids: (None if cid is None else fetch(cid) for cid in cids)
        return
    pool = ThreadPoolExecutor(width, thread_name_prefix="prefetch")

    def each(cids: Iterable[Cid | None]) -> Iterator[bytes | None]:
        waiting: deque[Callable[[], bytes | None]] = deque()
        for cid in cids:
            waiting.append((lambda: None) if cid is None else pool.submit(fetch, cid).result)
            if len(waiting) >= width:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()

    try:
        yield each
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
