"""Progress of content on its way into a store or out of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY = 0.5
"""Seconds between two reports of one transfer. A shorter transfer is not reported."""


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
