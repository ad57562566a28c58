"""The ranks that are there: what every rank says of itself in torch.distributed's store, and how a lost one is found.

A rank that is killed says nothing. It is missed when it has written nothing into the store for some seconds.

A rank that lives may be late all the same: in a read from a disk that does not answer, or in an endless loop. Nobody
can tell that from honest work, which may take hours. So it is no error, and a person is told."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # exported, but not listed

BEAT = 0.5
"""Seconds between two signs of life."""
STILL = 20.0
"""Seconds without one after which a rank is lost. A machine with much else to do is silent for some seconds."""

LATE = 300.0
"""Seconds of a wait after which a person is told; the next time after twice as many."""

TERMINATED = "it was terminated"
"""Reason that a rank gives for its end where somebody has terminated it."""


class LostRankError(RuntimeError):
    """Another rank has ended, so that this one cannot go on. The message names it."""


@dataclass(slots=True)
class _Other:
    """Another rank, as this one knows it."""

    name: str
    heard: float
    """Time of its last sign of life."""
    beat: int = 0
    """Number of its last sign of life."""
    collectives: int = 0
    """Collectives that it has come to."""
    left: str | None = None
    """Reason for which it has left, "" in good order; None while it is there."""


class Membership:
    """Membership of this rank: its own signs of life, and those of the others. A thread keeps both up to date."""

    def __init__(self, store: Store, rank: int, size: int, seconds: float) -> None:
        """store: a connection of its own, since its operations wait for each other. Returns once all ranks are there;
        raises LostRankError if one does not come within `seconds`."""
        self.rank, self.size = rank, size
        self.is_leaving = False
        """Whether this rank leaves the others in the midst of what they do together: no thread of it waits for them any
        more."""
        self.on_late: Callable[[str], None] = lambda sentence: None
        """Called with one sentence about the ranks that this one waits for, on the thread that waits."""
        self._store = store
        self._lost: str | None = None
        self._ended = threading.Event()
        self._beat = self._collectives = 0
        self._since: float | None = None
        self._next = LATE
        self._is_patient = False
        self._identity = [socket.gethostname(), os.getpid()]
        self._tell()
        store.set(f"identity/{rank}", json.dumps(self._identity))
        self._others: dict[int, _Other] = {}
        self._await_all(time.monotonic() + seconds)
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    def _await_all(self, deadline: float) -> None:
        for other in range(self.size):
            if other == self.rank:
                continue
            # A signal is only answered between two calls of the store.
            while not self._store.check([f"identity/{other}"]):
                if time.monotonic() > deadline:
                    raise LostRankError(
                        f"rank {other} of {self.size} has not come: start as many processes as there are ranks, with "
                        "the same command"
                    )
                time.sleep(0.01)
            host, pid = json.loads(self._store.get(f"identity/{other}"))
            self._others[other] = _Other(f"rank {other} (process {pid} on {host})", time.monotonic())

    def name(self, rank: int) -> str:
        """Return a rank's number, process and machine, for people."""
        if rank != self.rank:
            return self._others[rank].name
        host, pid = self._identity
        return f"rank {rank} (process {pid} on {host})"

    # Lost ranks.

    @property
    def lost(self) -> str | None:
        """Fate of the first rank that was found lost, as a clause; None while all are there."""
        return self._lost

    def require_staying(self) -> None:
        """Raise LostRankError if this rank leaves the others."""
        if self.is_leaving:
            raise LostRankError("this rank has left the others")

    def require_all(self) -> None:
        """Raise LostRankError if a rank is lost, or this one leaves the others."""
        self.require_staying()
        if self._lost is not None:
            raise LostRankError(_sentence(self._lost))

    def why(self, seconds: float = STILL + 2 * BEAT) -> LostRankError | None:
        """Return the error that names the lost rank, once it is found; None if none is within `seconds`."""
        deadline = time.monotonic() + seconds
        while self._lost is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return None if self._lost is None else LostRankError(_sentence(self._lost))

    def why_terminated(self) -> LostRankError | None:
        """Return the error that names the rank whose loss made the launcher end this one; None once all others are
        known to be there still, or to have been terminated as well."""
        before, deadline = {rank: one.beat for rank, one in self._others.items()}, time.monotonic() + STILL + 2 * BEAT
        while self._lost is None and time.monotonic() < deadline:
            # The first new beat may be older than the signal.
            if all(one.beat > before[rank] + 1 or one.left is not None for rank, one in self._others.items()):
                return None
            time.sleep(0.01)
        return None if self._lost is not None and self._lost.endswith(f": {TERMINATED}") else self.why(0)

    def leave(self, reason: str | None = None) -> None:
        """Tell the others that this rank ends, and why where they are to name it."""
        if self._ended.is_set():
            return
        self._ended.set()
        # A store that does not answer holds nobody up.
        self._thread.join(2 * BEAT)
        with suppress(RuntimeError):
            self._tell(reason or "")

    def all_have_left(self) -> bool:
        """Return whether all other ranks have said that they end."""
        try:
            return all(left is not None for _, _, left in self._told())
        except RuntimeError:
            return True

    def _tell(self, left: str | None = None) -> None:
        self._store.set(f"state/{self.rank}", json.dumps([self._beat, self._collectives, left]))

    def _told(self) -> list[Any]:
        return [json.loads(one) for one in self._store.multi_get([f"state/{other}" for other in self._others])]

    def _watch(self) -> None:
        while not self._ended.wait(BEAT) and self._lost is None:
            try:
                self._beat += 1
                self._tell()
                found = self._missing()
                # All name the one that was found first, and nobody who ended because of it.
                self._lost = found and self._store.compare_set("lost", "", found).decode()
            except RuntimeError:
                # The store lies with rank 0 or with the launcher.
                self._lost = f"{self.name(0)} or its launcher is lost: the store of the ranks does not answer"

    def _missing(self) -> str | None:
        if self._store.check(["lost"]):
            return str(self._store.get("lost").decode())
        now = time.monotonic()
        for one, (beat, collectives, left) in zip(self._others.values(), self._told(), strict=True):
            if beat != one.beat:
                one.beat, one.heard = beat, now
            one.collectives, one.left = collectives, left
            if left:
                return f"{one.name} has stopped: {left}"
            if left is None and now - one.heard > STILL:
                return f"{one.name} is lost: it has not been heard of for {STILL:.0f} s"
        return None

    # Late ranks.

    @contextmanager
    def collective(self) -> Iterator[None]:
        """A block that is one collective, from when this rank has come to it to its end."""
        self._collectives += 1
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    @contextmanager
    def patience(self) -> Iterator[None]:
        """A block in whose collectives this rank waits for rank 0, which may have other work for hours."""
        self._is_patient = True
        try:
            yield
        finally:
            self._is_patient = False

    def tell_late(self) -> None:
        """Call `on_late` about a long wait, if that is due: after `LATE` seconds, and whenever one is twice as long as
        the last one that was told. To be called now and then in `collective`."""
        late = self._late()
        teller = min(rank for rank in (self.rank, *self._others) if rank not in late)
        if teller == self.rank and (problem := self._problem(self._next, late)) is not None:
            self._next *= 2
            self.on_late(problem)

    @property
    def problem(self) -> str | None:
        """The sentence about the ranks that keep this one waiting in the midst of what all do together; None if there
        are none. Any thread may ask."""
        return self._problem(LATE, self._late())

    def _late(self) -> list[int]:
        """Return the ranks that are furthest behind this one. Where one rank alone sends, it does not wait for the
        others, and is ahead of them."""
        least = min((one.collectives for one in self._others.values()), default=self._collectives)
        if least >= self._collectives:
            return []
        return [rank for rank, one in self._others.items() if one.collectives == least]

    def _problem(self, patience: float, late: list[int]) -> str | None:
        since = self._since
        if since is None or self._is_patient or (waited := time.monotonic() - since) < patience:
            return None
        long = f"{waited:.0f} s" if waited < 120 else f"{waited / 60:.0f} minutes"
        if not late:
            return f"all ranks have come, and rank {self.rank} has waited {long}: look at the network between them"
        return (
            f"{' and '.join(map(self.name, late))} kept rank {self.rank} waiting for {long}: look there; once what "
            "hangs is ended, the run can carry on, with any number of ranks"
        )


def _sentence(clause: str) -> str:
    return f"{clause.rstrip('.')}; run the same command again, with any number of ranks, to carry on"
