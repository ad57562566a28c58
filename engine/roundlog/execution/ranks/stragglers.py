"""Stragglers: ranks that have not come to what the others wait for.

A rank whose heart beats may be stuck all the same: in a read from a disk that does not answer, or in a loop without
end. Nobody can tell that from honest work, which may take hours. So it is no error, and a person is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

LATE = 300.0
"""Seconds of a wait after which a person is told."""
MOST = 3600.0
"""Seconds after which a person is told in any case. A wait that has ended by itself was honest work, and twice as long
a one is as yet nothing to tell."""


class Wait(StrEnum):
    """Aim of a rank's wait."""

    NOTHING = "nothing"
    """It does something for itself."""
    OTHERS = "others"
    """The other ranks, in the midst of what all do together."""
    ORDER = "order"
    """Rank 0's next order. Rank 0 may have other work between two steps."""
    RUN = "run"
    """Rank 0's next run, which may never come."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a rank: how many collectives it has come to, and what it waits for in the last one, for how long."""

    come: int
    wait: Wait
    seconds: float

    def __str__(self) -> str:
        return f"{self.come} {self.wait} {self.seconds:.1f}"

    @classmethod
    def of(cls, text: str) -> Progress:
        """The progress that a rank has told."""
        come, wait, seconds = text.split()
        return cls(int(come), Wait(wait), float(seconds))


START = Progress(0, Wait.NOTHING, 0.0)


@dataclass(frozen=True, slots=True)
class Lateness:
    """A wait for others."""

    waiting: int
    """The rank that tells of it."""
    wait: Wait
    seconds: float
    late: tuple[int, ...]
    """The ranks that have not come. None are named where all have, and nothing goes on."""


def lateness(progress: Mapping[int, Progress]) -> Lateness | None:
    """The wait of the lowest rank that waits for others; None if no rank does. progress: of all ranks."""
    waiting = [(rank, own) for rank, own in sorted(progress.items()) if own.wait in (Wait.OTHERS, Wait.ORDER)]
    for rank, own in waiting:
        # Where one rank alone sends, it need not wait for the others, and is ahead of them.
        behind = [one for one, other in sorted(progress.items()) if _is_behind(other, own)]
        if behind:
            return Lateness(rank, own.wait, own.seconds, tuple(behind))
    if waiting and len(waiting) == len(progress):
        return Lateness(waiting[0][0], Wait.OTHERS, min(own.seconds for _, own in waiting), ())
    return None


def _is_behind(other: Progress, waiting: Progress) -> bool:
    return other.wait is Wait.NOTHING and other.come < waiting.come


class StragglerMonitor:
    """Monitor of all ranks, as this one sees them. Its thread that takes part in collectives calls `waiting`, `tell`
    and `expecting`; any thread reads the rest."""

    def __init__(self, rank: int, name: Callable[[int], str]) -> None:
        """name: of a rank, for people."""
        self._rank, self._name = rank, name
        self.on_late: Callable[[str], None] = lambda sentence: None
        """Is told in one sentence for whom this rank waits, where it is the one to tell: rarely, and on its thread that
        waits."""
        self.others: Mapping[int, Progress] = {}
        """Places of the other ranks, some moments old."""
        self._expected = Wait.OTHERS
        # One value, which another thread reads as a whole: collectives, the wait, its beginning.
        self._at = (0, Wait.NOTHING, 0.0)
        self._patience = {Wait.OTHERS: LATE, Wait.ORDER: LATE, Wait.RUN: MOST}
        self._next = LATE

    @property
    def own(self) -> Progress:
        """Progress of this rank."""
        come, wait, since = self._at
        return Progress(come, wait, 0.0 if wait is Wait.NOTHING else time.monotonic() - since)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """One collective, from when this rank has come to it to its end."""
        come, wait, since = self._at[0] + 1, self._expected, time.monotonic()
        self._next = self._patience[wait]
        self._at = come, wait, since
        try:
            yield
        finally:
            self._at = come, Wait.NOTHING, 0.0
        self._patience[wait] = min(max(self._patience[wait], 2 * (time.monotonic() - since)), MOST)

    @contextmanager
    def expecting(self, wait: Wait) -> Iterator[None]:
        """A block in whose collectives this rank waits for something else than the others."""
        self._expected = wait
        try:
            yield
        finally:
            self._expected = Wait.OTHERS

    def tell(self) -> None:
        """Tells `on_late` of a long wait, if that is due: after `LATE` seconds, and whenever it is twice as long. To be
        called now and then in `waiting`."""
        found = lateness(self._progress())
        if found is not None and found.waiting == self._rank and found.seconds >= self._next:
            self._next = 2 * found.seconds
            self.on_late(self._sentence(found))

    @property
    def problem(self) -> str | None:
        """The sentence about ranks that keep others waiting in the midst of what all do together, this one included;
        None if there are none."""
        found = lateness(self._progress())
        if found is None or found.wait is not Wait.OTHERS or found.seconds < self._patience[Wait.OTHERS]:
            return None
        return self._sentence(found)

    def _progress(self) -> dict[int, Progress]:
        return {self._rank: self.own, **self.others}

    def _sentence(self, found: Lateness) -> str:
        long = _time(found.seconds)
        if not found.late:
            return (
                f"all ranks have come to what they do together, and it has not ended for {long}: look at the network "
                "between them"
            )
        who, have, them, are = " and ".join(map(self._name, found.late)), "have", "them", "their processes are"
        if len(found.late) == 1:
            have, them, are = "has", "that machine", "its process is"
        honest = "rank 0 may validate, publish or write between two steps, and if not, " * (found.wait is Wait.ORDER)
        return (
            f"{who} {have} not come to what rank {found.waiting} has waited for, for {long}: {honest}look at {them}; "
            f"once {are} ended, the run can carry on, with any number of ranks"
        )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
