"""Published content: which content a role has published for which job, and its release when the job is long over.

    <directory>/published.json   room of a job -> what it has published, and when the job was seen to be over

What was published and not recorded, because the process was killed in between, stays pinned: content is kept too long
rather than not long enough.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from roundlog.storage import StorageError, read_record, write_record

from tiebreak.contract.enums import JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import JobView
from tiebreak.roles.notices import OUTAGES, Notice, Notify, What, of_warnings, sentence
from tiebreak.rpc.chain_errors import ContractError
from tiebreak.store import Store
from tiebreak.store.dagpb import Cid
from tiebreak.store.store import Build
from tiebreak.store.store_errors import InvalidCid

OVER = (JobStatus.FINAL, JobStatus.REJECTED, JobStatus.LAPSED, JobStatus.EXPIRED)
"""Statuses in which nothing can happen to a job any more."""

_ROUND_SECONDS = 600.0
_ROOM = re.compile(r"job-([1-9][0-9]{0,18})-([0-9a-f]{16})")


@dataclass(slots=True)
class Published:
    """Content that one job's room has published. `over_at`, `over_in`: chain time and block in which the job was first
    seen to be over; None while it is not."""

    cids: list[str] = field(default_factory=list)
    over_at: int | None = None
    over_in: int | None = None


class PublishedContent(Store):
    """A store that remembers what was added from the rooms of a role's jobs.

    `store`: where everything goes. `directory`: the role's directory, whose rooms are named as by `RoleContext.room`;
    what lies elsewhere is added and not remembered. Raises StorageError for a record that is damaged."""

    def __init__(self, store: Store, directory: Path) -> None:
        super().__init__(store.name, store.stop)
        self.width = store.width
        self._store, self._directory = store, directory
        self._path = directory / "published.json"
        self._lock = threading.Lock()
        self._unpinning = threading.Lock()
        self._unpinned: set[str] = set()
        self._rooms = self._read()

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        return self._store.block(cid, seconds)

    def add_blocks(self, build: Build) -> Cid:
        return self._store.add_blocks(build)

    def add_file(self, path: Path) -> str:
        return self._remember(path, self._store.add_file(path))

    def add_directory(self, path: Path) -> str:
        return self._remember(path, self._store.add_directory(path))

    def pin(self, cid: str) -> None:
        self._store.pin(cid)

    def unpin(self, cid: str) -> None:
        self._store.unpin(cid)

    def has(self, cid: str) -> bool:
        return self._store.has(cid)

    def mend(self, held: frozenset[str] = frozenset()) -> None:
        self._store.mend(held)

    def tidy(self) -> None:
        self._store.tidy()

    def pinned(self) -> frozenset[str]:
        """Return all content that is recorded as published."""
        with self._lock:
            return frozenset(cid for room in self._rooms.values() for cid in room.cids)

    def release(self, retention: int, now: int, block: int, confirmations: int, look: Look) -> list[tuple[int, str]]:
        """Unpin what belongs only to jobs that were over `retention` seconds ago; returns job and CID of each.

        now, block: time and number of the chain's newest block. look: shows a job as it is now, None if the chain has
        none of that number. A job counts as over once `confirmations` blocks have passed since it was first seen so,
        and is looked at again before anything is unpinned. Raises StoreError, ChainError and OSError."""
        gone: list[tuple[int, str]] = []
        for name in self._note_ends(now, block, look):
            with self._lock:
                room = self._rooms[name]
                if room.over_at is None or room.over_in is None:
                    continue
                due = now >= room.over_at + retention and block >= room.over_in + confirmations
                cids = list(room.cids) if due else []
            for cid in cids:
                with self._unpinning:
                    with self._lock:
                        is_needed = any(cid in room.cids for other, room in self._rooms.items() if other != name)
                    if not is_needed:
                        self._store.unpin(cid)
                        self._unpinned.add(cid)
                        gone.append((_number(name), cid))
                    with self._lock:
                        self._rooms[name].cids.remove(cid)
                        if not self._rooms[name].cids:
                            del self._rooms[name]
                        self._write()
        return gone

    def _note_ends(self, now: int, block: int, look: Look) -> list[str]:
        """Record which jobs are over; returns the rooms of those."""
        with self._lock:
            names = list(self._rooms)
        over = []
        for name in names:
            posted = look(_number(name))
            is_over = posted is not None and _is_of(name, posted) and posted.status in OVER
            with self._lock:
                room = self._rooms[name]
                if is_over and room.over_at is None:
                    room.over_at, room.over_in = now, block
                    self._write()
                elif not is_over and room.over_at is not None:
                    room.over_at = room.over_in = None  # a reorganisation has taken the end back
                    self._write()
            if is_over:
                over.append(name)
        return over

    def _remember(self, path: Path, cid: str) -> str:
        name = self._room_of(path)
        if name is None:
            return cid
        with self._unpinning:
            with self._lock:
                room = self._rooms.setdefault(name, Published())
                if cid not in room.cids:
                    room.cids.append(cid)
                    self._write()
            if cid in self._unpinned:  # perhaps after it was added here
                self._store.pin(cid)
                self._unpinned.discard(cid)
        return cid

    def _room_of(self, path: Path) -> str | None:
        """Return the room of a job that a path lies in; None if it lies elsewhere."""
        try:
            first = path.absolute().relative_to(self._directory.absolute()).parts[0]
        except (ValueError, IndexError):
            return None
        return first if _ROOM.fullmatch(first) else None

    def _write(self) -> None:
        """Write the record. Called with the lock held."""
        write_record(self._path, {"rooms": {name: asdict(room) for name, room in self._rooms.items()}})

    def _read(self) -> dict[str, Published]:
        if not self._path.exists():
            return {}
        try:
            return {name: _parsed(name, room) for name, room in read_record(self._path)["rooms"].items()}
        except (KeyError, TypeError, AttributeError, ValueError, InvalidCid) as error:
            raise StorageError(
                self._path, "is no record of published content: move it away, and nothing that it names is unpinned"
            ) from error


Look = Callable[[int], JobView | None]
"""Shows a posted job as it is now; None if there is none of that number. Raises ChainError."""


class Keeper:
    """Keeper of the content that a role has published: tries again what a store has missed, and unpins what was kept
    long enough. `retention`: seconds to keep content after the end of its job; None to keep it for ever."""

    def __init__(
        self, role: str, published: PublishedContent, contract: VerificationGame, notify: Notify, retention: int | None
    ) -> None:
        self._role, self._published, self._contract = role, published, contract
        self._notify, self._retention = notify, retention
        self._warn = of_warnings(role, notify)
        self._begun = False
        self._one_at_a_time = threading.Lock()

    def start(self, stop: threading.Event) -> None:
        """Make rounds until `stop` is set, in a thread of its own: stores may be slow, and no move waits for them."""
        threading.Thread(target=self._repeat, args=(stop,), name="keeper", daemon=True).start()

    def round(self) -> None:
        """Make one round. What fails is told, and tried again at the next."""
        with self._one_at_a_time:
            try:
                self._published.mend(frozenset() if self._begun else self._published.pinned())
                self._begun = True
                if self._retention is not None and self._published.pinned():
                    self._release(self._retention)
            except OUTAGES as error:
                self._warn(sentence(error))
            except StorageError as error:
                self._warn(str(error))

    def _release(self, retention: int) -> None:
        node = self._contract.node
        head = node.head()
        gone = self._published.release(retention, head.timestamp, head.number, node.confirmations, self._look)
        for job, cid in gone:
            text = f"unpinned {cid}, since the job is over and its time is up"
            self._notify(Notice(role=self._role, what=What.UNPINNED, text=text, job=job))
        if gone:
            self._published.tidy()

    def _look(self, job: int) -> JobView | None:
        try:
            return self._contract.job(job)
        except ContractError as error:
            if error.name == "WrongJobStatus":
                return None
            raise

    def _repeat(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.round()
            except Exception as error:
                # A defect here must neither end the role nor pass in silence.
                self._warn(f"published content is not looked after ({type(error).__name__}: {error})")
            stop.wait(_ROUND_SECONDS)


def _parsed(name: str, room: Any) -> Published:
    """Return one entry of the record. Raises ValueError, KeyError, TypeError, InvalidCid."""
    read = Published(**room)
    if not _ROOM.fullmatch(name) or any(type(at) is not int and at is not None for at in (read.over_at, read.over_in)):
        raise ValueError(name)
    for cid in read.cids:
        Cid.parse(cid)
    return read


def _number(name: str) -> int:
    found = _ROOM.fullmatch(name)
    assert found is not None, "only rooms of jobs are recorded"
    return int(found[1])


def _is_of(name: str, posted: JobView) -> bool:
    """Return whether a room is of this job, whose number may have been of another one before a reorganisation."""
    return name.endswith(f"-{posted.spec_hash.hex()[:16]}")
