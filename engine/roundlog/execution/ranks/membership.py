"""The ranks that are there: what every rank says of itself in torch.distributed's store, and how a lost one is found.

A rank that is killed says nothing. It is missed when it has written nothing into the store for some seconds. A rank
that lives is waited for: nobody can tell one that hangs from honest work, which may take hours."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # exported, but not listed

BEAT = 0.5
"""Seconds between two signs of life."""
STILL = 20.0
"""Seconds without one after which a rank is lost. A machine with much else to do is silent for some seconds."""


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


class Membership:
    """Membership of this rank: its own signs of life, and those of the others. A thread keeps both up to date."""

    def __init__(self, store: Store, rank: int, size: int, seconds: float) -> None:
        """store: a connection of its own, since its operations wait for each other. Returns once all ranks are there;
        raises LostRankError if one does not come within `seconds`."""
        self.rank, self.size = rank, size
        self.is_leaving = False
        """Whether this rank leaves the others in the midst of what they do together: no thread of it waits for them any
        more."""
        self._store = store
        self.lost: str | None = None
        """Fate of the first rank that was found lost, as a clause; None while all are there."""
        self._ended = threading.Event()
        self._beat = 0
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

    def require_all(self) -> None:
        """Raise LostRankError if a rank is lost, or this one leaves the others."""
        if self.is_leaving:
            raise LostRankError("this rank has left the others")
        if self.lost is not None:
            raise LostRankError(_sentence(self.lost))

    def why(self, seconds: float = STILL + 2 * BEAT) -> LostRankError | None:
        """Return the error that names the lost rank, once it is found; None if none is within `seconds`."""
        deadline = time.monotonic() + seconds
        while self.lost is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return None if self.lost is None else LostRankError(_sentence(self.lost))

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
            return all(left is not None for _, left in self._told())
        except RuntimeError:
            return True

    def _tell(self, left: str | None = None) -> None:
        self._store.set(f"state/{self.rank}", json.dumps([self._beat, left]))

    def _told(self) -> list[Any]:
        return [json.loads(one) for one in self._store.multi_get([f"state/{other}" for other in self._others])]

    def _watch(self) -> None:
        while not self._ended.wait(BEAT) and self.lost is None:
            try:
                self._beat += 1
                self._tell()
                found = self._missing()
                # All name the one that was found first, and nobody who ended because of it.
                self.lost = found and self._store.compare_set("lost", "", found).decode()
            except RuntimeError:
                # The store lies with rank 0 or with the launcher.
                self.lost = f"{self.name(0)} or its launcher is lost: the store of the ranks does not answer"

    def _missing(self) -> str | None:
        if self._store.check(["lost"]):
            return str(self._store.get("lost").decode())
        now = time.monotonic()
        for one, (beat, left) in zip(self._others.values(), self._told(), strict=True):
            if beat != one.beat:
                one.beat, one.heard = beat, now
            if left:
                return f"{one.name} has stopped: {left}"
            if left is None and now - one.heard > STILL:
                return f"{one.name} is lost: it has not been heard of for {STILL:.0f} s"
        return None


def _sentence(clause: str) -> str:
    return f"{clause.rstrip('.')}; run the same command again, with any number of ranks, to carry on"
