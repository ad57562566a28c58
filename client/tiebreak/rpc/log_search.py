"""Searches ranges of blocks for events, within limits of a provider that nobody has told us.

Hosted nodes limit the range of blocks, or the size of the answer, each at another place and in its own words. So every
refusal is taken for such a limit: the range is halved, down to one block, and the size that was accepted is remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from tiebreak.rpc.chain_errors import RpcRefused

T = TypeVar("T")

LOG_RANGE = 2_000
"""Blocks asked for at once, at first and at most."""

_BOLD_AFTER = 32
"""Accepted ranges in a row before a larger one is tried again: a limit of results may hold for a few blocks only."""


class RangeLimit:
    """Largest range of blocks that a provider accepts, as far as it is known. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begins anew: the limit was that of a node that is not asked any more."""
        with self._lock:
            self._accepted = 0
            self._refused = LOG_RANGE + 1
            self._in_a_row = 0

    def next_size(self) -> int:
        """Blocks to ask for: halfway between what was accepted and what was refused."""
        with self._lock:
            if self._refused > LOG_RANGE:
                return LOG_RANGE
            # Within a tenth the limit is known well enough: every further refusal would cost a request.
            if self._refused - self._accepted <= max(1, self._accepted // 10):
                return max(1, self._accepted)
            return max(1, (self._accepted + self._refused) // 2)

    def was_accepted(self, size: int) -> None:
        with self._lock:
            self._accepted = max(self._accepted, size)
            self._refused = max(self._refused, self._accepted + 1)
            self._in_a_row += 1
            if self._in_a_row >= _BOLD_AFTER:
                self._in_a_row = 0
                self._refused = min(2 * self._refused, LOG_RANGE + 1)

    def was_refused(self, size: int) -> None:
        with self._lock:
            self._refused = min(self._refused, size)
            if size <= self._accepted:
                self._accepted = 0  # it was accepted elsewhere: what counts here is the number of events
            self._in_a_row = 0


def forwards(limit: RangeLimit, first: int, last: int, ask: Callable[[int, int], list[T]]) -> Iterator[list[T]]:
    """Yields what `ask(start, until)` finds in the blocks from `first` to `last`, in order. Raises RpcRefused where not
    even one block is answered."""
    while first <= last:
        until = min(first + limit.next_size() - 1, last)
        found = _asked(limit, first, until, ask)
        if found is not None:
            yield found
            first = until + 1


def backwards(limit: RangeLimit, first: int, last: int, ask: Callable[[int, int], list[T]]) -> Iterator[list[T]]:
    """Yields as `forwards`, but from the newest blocks to the oldest; each list is in order by itself."""
    while first <= last:
        start = max(last - limit.next_size() + 1, first)
        found = _asked(limit, start, last, ask)
        if found is not None:
            yield found
            last = start - 1


def _asked(limit: RangeLimit, start: int, until: int, ask: Callable[[int, int], list[T]]) -> list[T] | None:
    """The entries of a range of blocks; None if the range is refused."""
    size = until - start + 1
    try:
        found = ask(start, until)
    except RpcRefused:
        if size == 1:
            raise
        limit.was_refused(size)
        return None
    limit.was_accepted(size)
    return found
