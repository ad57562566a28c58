"""Sends blocks to a store over the network, some at a time, and not those that it has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from tiebreak.store.cid import Cid

_WIDTH = 4
"""Blocks on the way at a time: enough to hide the latency of a daemon, and at most 8 MiB of memory."""

_MISSES = 64
"""Blocks in a row that the store does not have, after which it is not asked any more. An addition that was interrupted
is found again at its beginning; what is sent twice does no harm."""


class Upload:
    """An `Addition` to a store over the network. `send`: stores one block. `holds`: whether the store has it. `pin`:
    pins a root. All may raise StoreError; the next call after an error raises it."""

    def __init__(
        self, *, send: Callable[[Cid, bytes], None], holds: Callable[[Cid], bool], pin: Callable[[Cid], None]
    ) -> None:
        self._send, self._holds, self._pin = send, holds, pin
        self._pool = ThreadPoolExecutor(_WIDTH, thread_name_prefix="upload")
        self._free = threading.Semaphore(_WIDTH)
        self._lock = threading.Lock()
        self._misses = 0
        self._taken: set[bytes] = set()
        self._error: BaseException | None = None
        self.sent = 0
        """Blocks that the store did not have."""

    def put(self, cid: Cid, block: bytes) -> None:
        """Takes a block; waits while others are on the way."""
        if cid.digest in self._taken:
            return
        self._taken.add(cid.digest)
        self._free.acquire()
        self._check()
        self._pool.submit(self._one, cid, block).add_done_callback(self._done)

    def finish(self, root: Cid) -> None:
        """Waits until the store has all blocks, and pins the root."""
        self._pool.shutdown(wait=True)
        self._check()
        self._pin(root)

    def _one(self, cid: Cid, block: bytes) -> None:
        if self._error is not None:
            return
        if self._misses < _MISSES:
            known = self._holds(cid)
            with self._lock:
                self._misses = 0 if known else self._misses + 1
            if known:
                return
        self._send(cid, block)
        with self._lock:
            self.sent += 1

    def _done(self, future: Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None and self._error is None:
            self._error = error
        self._free.release()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Blocks that wait for their turn are dropped; those on the way end by their own time limits.
        self._pool.shutdown(wait=False, cancel_futures=True)
