"""The ranks that are there: what every rank says of itself in the store, and how a lost one is found.

A rank that is killed says nothing. A rank on the same machine is then missed at once, by its process; one on another
machine when its heart has not beaten for some seconds. Every beat says where the rank is.

Stragglers are ranks that have not come to what the others wait for. A rank whose heart beats may be stuck all the same:
in a read from a disk that does not answer, or in a loop without end. Nobody can tell that from honest work, which may
take hours. So it is no error, and a person is told."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]  # exported, but not listed

LATE = 300.0
"""Seconds of a wait after which a person is told."""
MOST = 3600.0
"""Seconds after which a person is told in any case. A wait that has ended by itself was honest work, and twice as long
a one is as yet nothing to tell."""


class RankWait(StrEnum):
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
class RankProgress:
    """Progress of a rank: how many collectives it has come to, and what it waits for in the last one, for how long."""

    come: int
    wait: RankWait
    seconds: float

    def __str__(self) -> str:
        return f"{self.come} {self.wait} {self.seconds:.1f}"

    @classmethod
    def of(cls, text: str) -> RankProgress:
        """The progress that a rank has told."""
        come, wait, seconds = text.split()
        return cls(int(come), RankWait(wait), float(seconds))


START = RankProgress(0, RankWait.NOTHING, 0.0)


@dataclass(frozen=True, slots=True)
class Lateness:
    """A wait for others."""

    waiting: int
    """The rank that tells of it."""
    wait: RankWait
    seconds: float
    late: tuple[int, ...]
    """The ranks that have not come. None are named where all have, and nothing goes on."""


def lateness(progress: Mapping[int, RankProgress]) -> Lateness | None:
    """The wait of the lowest rank that waits for others; None if no rank does. progress: of all ranks."""
    waiting = [(rank, own) for rank, own in sorted(progress.items()) if own.wait in (RankWait.OTHERS, RankWait.ORDER)]
    for rank, own in waiting:
        # Where one rank alone sends, it need not wait for the others, and is ahead of them.
        behind = [one for one, other in sorted(progress.items()) if _is_behind(other, own)]
        if behind:
            return Lateness(rank, own.wait, own.seconds, tuple(behind))
    if waiting and len(waiting) == len(progress):
        return Lateness(waiting[0][0], RankWait.OTHERS, min(own.seconds for _, own in waiting), ())
    return None


def _is_behind(other: RankProgress, waiting: RankProgress) -> bool:
    return other.wait is RankWait.NOTHING and other.come < waiting.come


class StragglerMonitor:
    """Monitor of all ranks, as this one sees them. Its thread that takes part in collectives calls `waiting`, `tell`
    and `expecting`; any thread reads the rest."""

    def __init__(self, rank: int, name: Callable[[int], str]) -> None:
        """name: of a rank, for people."""
        self._rank, self._name = rank, name
        self.on_late: Callable[[str], None] = lambda sentence: None
        """Is told in one sentence for whom this rank waits, where it is the one to tell: rarely, and on its thread that
        waits."""
        self.others: Mapping[int, RankProgress] = {}
        """Places of the other ranks, some moments old."""
        self._expected = RankWait.OTHERS
        # One value, which another thread reads as a whole: collectives, the wait, its beginning.
        self._at = (0, RankWait.NOTHING, 0.0)
        self._patience = {RankWait.OTHERS: LATE, RankWait.ORDER: LATE, RankWait.RUN: MOST}
        self._next = LATE

    @property
    def own(self) -> RankProgress:
        """Progress of this rank."""
        come, wait, since = self._at
        return RankProgress(come, wait, 0.0 if wait is RankWait.NOTHING else time.monotonic() - since)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """One collective, from when this rank has come to it to its end."""
        come, wait, since = self._at[0] + 1, self._expected, time.monotonic()
        self._next = self._patience[wait]
        self._at = come, wait, since
        try:
            yield
        finally:
            self._at = come, RankWait.NOTHING, 0.0
        self._patience[wait] = min(max(self._patience[wait], 2 * (time.monotonic() - since)), MOST)

    @contextmanager
    def expecting(self, wait: RankWait) -> Iterator[None]:
        """A block in whose collectives this rank waits for something else than the others."""
        self._expected = wait
        try:
            yield
        finally:
            self._expected = RankWait.OTHERS

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
        if found is None or found.wait is not RankWait.OTHERS or found.seconds < self._patience[RankWait.OTHERS]:
            return None
        return self._sentence(found)

    def _progress(self) -> dict[int, RankProgress]:
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
        honest = "rank 0 may validate, publish or write between two steps, and if not, " * (
            found.wait is RankWait.ORDER
        )
        return (
            f"{who} {have} not come to what rank {found.waiting} has waited for, for {long}: {honest}look at {them}; "
            f"once {are} ended, the run can carry on, with any number of ranks"
        )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


BEAT = 0.5
"""Seconds between two beats."""
STILL = 20.0
"""Seconds without a beat after which a rank is lost. A machine with much else to do is silent for some seconds."""


TERMINATED = "it was terminated"
"""Reason that a rank gives for its end where somebody has terminated it."""


_MOST_WORDS = 1000
"""Characters of another rank's words that are shown."""


class LostRankError(RuntimeError):
    """Another rank has ended, or sends what no rank may send, so that this one cannot go on. The message names it."""


class Membership:
    """Membership of this rank: its own sign of life, and those of the others. A thread keeps both up to date."""

    def __init__(self, store: Store, rank: int, size: int, seconds: float) -> None:
        """store: a connection of its own, since its operations wait for each other. Returns once all ranks are there;
        raises LostRankError if one does not come within so many seconds, or has come and ended before the last one."""
        self.rank, self.size = rank, size
        self.is_leaving = False
        """Whether this rank leaves the others in the midst of what they do together: no thread of it waits for them any
        more."""
        self._store = store
        self._lost: str | None = None
        self._ended = threading.Event()
        self._identity = _identity()
        self._beat = 0
        self.stragglers = StragglerMonitor(rank, self.name)
        """Which ranks have come to what all do together."""
        store.set(f"identity/{rank}", json.dumps(self._identity))
        store.set(f"beat/{rank}", f"0 {START}")
        self._others = [other for other in range(size) if other != rank]
        self._known: dict[int, list[str]] = {}
        self._get_to_know(time.monotonic() + seconds)
        self._beats = {other: (0, time.monotonic()) for other in self._others}
        self._left: set[int] = set()
        """The others that have ended, and without an error."""
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    def _get_to_know(self, deadline: float) -> None:
        """Waits for the others' identities."""
        for other in self._others:
            key = f"identity/{other}"
            # A signal is only answered between two calls of the store.
            while not self._store.check([key]):
                if time.monotonic() > deadline:
                    raise LostRankError(
                        f"rank {other} of {self.size} has not come: start as many processes as there are ranks, with "
                        "the same command"
                    )
                for come, identity in self._known.items():
                    if _is_gone(identity, self._identity):
                        raise LostRankError(_sentence(f"{self.name(come)} is lost: its process has ended"))
                time.sleep(0.01)
            self._known[other] = _read_identity(other, self._store.get(key))

    @property
    def lost(self) -> str | None:
        """Fate of the first rank that was found lost, as a clause; None while all are there."""
        return self._lost

    def require_staying(self) -> None:
        """Raises LostRankError if this rank leaves the others."""
        if self.is_leaving:
            raise LostRankError("this rank has left the others")

    def require_all(self) -> None:
        """Raises LostRankError if a rank is lost, or this one leaves the others."""
        self.require_staying()
        if self._lost is not None:
            raise LostRankError(_sentence(self._lost))

    def why(self, seconds: float = STILL + 2 * BEAT) -> LostRankError | None:
        """The error that names the lost rank, once it is found; None if none is within so many seconds."""
        deadline = time.monotonic() + seconds
        while self._lost is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return None if self._lost is None else LostRankError(_sentence(self._lost))

    def why_terminated(self) -> LostRankError | None:
        """The error that names the rank whose loss made the launcher end this one; None once all others are known to be
        there still, or to have been terminated as well."""
        before, deadline = dict(self._beats), time.monotonic() + STILL + 2 * BEAT
        while self._lost is None and time.monotonic() < deadline:
            # The first new beat may be older than the signal.
            if all(beat[0] > before[other][0] + 1 or other in self._left for other, beat in self._beats.items()):
                return None
            time.sleep(0.01)
        return None if self._lost is not None and self._lost.endswith(f": {TERMINATED}") else self.why(0)

    def leave(self, reason: str | None = None) -> None:
        """Says that this rank ends, and why where the others are to name it."""
        if self._ended.is_set():
            return
        self._ended.set()
        # A store that does not answer holds nobody up.
        self._thread.join(2 * BEAT)
        with suppress(RuntimeError):
            self._store.set(f"left/{self.rank}", reason or "")

    def all_have_left(self) -> bool:
        """Whether all other ranks have said that they end."""
        try:
            return self._store.check([f"left/{other}" for other in self._others])
        except RuntimeError:
            return True

    def _watch(self) -> None:
        while not self._ended.wait(BEAT) and self._lost is None:
            try:
                found = self._missing()
                # All name the one that was found first, and nobody who ended because of it.
                self._lost = found and self._store.compare_set("lost", "", found).decode()
            except RuntimeError:
                # The store lies with rank 0 or with the launcher.
                self._lost = f"{self.name(0)} or its launcher is lost: the store of the ranks does not answer"
            except ValueError:
                self._lost = "a rank has written into the store of the ranks what is no sign of life"

    def _missing(self) -> str | None:
        if self._store.check(["lost"]):
            return self._store.get("lost").decode()[:_MOST_WORDS]
        self._beat += 1
        self._store.set(f"beat/{self.rank}", f"{self._beat} {self.stragglers.own}")
        for other in self._others:
            if other not in self._left and self._store.check([f"left/{other}"]):
                if reason := self._store.get(f"left/{other}").decode():
                    return f"{self.name(other)} has stopped: {reason[:_MOST_WORDS]}"
                self._left.add(other)
        told = self._store.multi_get([f"beat/{other}" for other in self._others])
        now, progress = time.monotonic(), {}
        for other, one in zip(self._others, told, strict=True):
            if other in self._left:
                continue
            beat, _, seen = one.decode().partition(" ")
            progress[other] = RankProgress.of(seen)
            if _is_gone(self._known[other], self._identity) and not self._store.check([f"left/{other}"]):
                return f"{self.name(other)} is lost: its process has ended"
            count, since = self._beats[other]
            if int(beat) != count:
                self._beats[other] = (int(beat), now)
            elif now - since > STILL and not self._store.check([f"left/{other}"]):
                return f"{self.name(other)} is lost: it has not been heard of for {STILL:.0f} s"
        self.stragglers.others = progress
        return None

    def foreign(self, other: int, what: str) -> LostRankError:
        """The error for a rank that has sent something, as a clause, which no rank of this version sends."""
        return LostRankError(
            f"{self.name(other)} has sent {what}: leave that machine out, and run the same command again, with any "
            "number of ranks, to carry on"
        )

    def name(self, other: int) -> str:
        """A rank for people: its number, process and machine."""
        host, pid = (self._known.get(other) or self._identity)[:2]
        return f"rank {other} (process {pid} on {host})"


def _sentence(clause: str) -> str:
    return f"{clause.rstrip('.')}; run the same command again, with any number of ranks, to carry on"


def _identity() -> list[str]:
    """Host, process, and what tells both from others of the same name."""
    pid = os.getpid()
    return [socket.gethostname(), str(pid), _started(pid) or "", _where()]


def _read_identity(other: int, told: bytes) -> list[str]:
    """The identity that another rank has told. Raises LostRankError."""
    try:
        host, pid, started, where = json.loads(told)
        if isinstance(host, str) and isinstance(started, str) and isinstance(where, str):
            return [host[:_MOST_WORDS], str(int(pid)), started, where]
    except (ValueError, TypeError, RecursionError):
        pass
    raise LostRankError(f"rank {other} does not say which process it is: install the same version on every machine")


def _where() -> str:
    """The machine since its last start, and the namespace in which its processes are numbered."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _started(pid: int) -> str | None:
    """When a process was started; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _is_gone(other: list[str], own: list[str]) -> bool:
    """Whether a process of this machine has ended."""
    _, pid, started, where = other
    return bool(where and started) and where == own[3] and _started(int(pid)) != started
