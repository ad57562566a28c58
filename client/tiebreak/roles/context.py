"""The role context: chain, content store, directory, limits and policy of a role; and the disk space that all rooms of
the role take together, with its limit.

Of a job that the role has refused, what was fetched goes at once. What the role has made there itself stays, as a room
does that the role has left for another reason, with no bond in its job: it is marked, and goes when another job needs
its space, the one that was left first before the others. Rooms of jobs under way are never touched.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from eth_typing import ChecksumAddress

from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import JobView
from tiebreak.process_resources import usable_memory
from tiebreak.roles.background_jobs import BackgroundJobs
from tiebreak.roles.engine import Engine
from tiebreak.roles.notices import Notify, OnLook
from tiebreak.roles.policy import Policy
from tiebreak.roles.transaction_queue import TransactionQueue
from tiebreak.rpc.node import DEVELOPMENT_CHAINS
from tiebreak.store import Store
from tiebreak.store.staging import size_of
from tiebreak.store.store_errors import NoSpace
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.spending import Spending

_MARK = "left"
"""Name of an empty file in a room: the role has left its job."""

_FETCHED = ("job", "log", "model.safetensors", ".*.partial*")
"""Patterns of the names in a room that hold content of strangers, or parts of it. All else is the role's own."""

_PART = 2


class Rooms:
    """The rooms in a role's directory. most: bytes of all of them together; None: half of their disk. Threads may share
    it."""

    def __init__(self, directory: Path, most: int | None = None) -> None:
        self._directory, self._most = directory, most
        self._lock = threading.Lock()
        self._entered: set[Path] = set()

    def enter(self, room: Path) -> None:
        """Take the mark off a room, since the role works there again."""
        with self._lock:
            self._entered.add(room)
            with suppress(OSError):  # a disk that is read-only for a while
                (room / _MARK).unlink(missing_ok=True)

    def leave(self, room: Path) -> None:
        """Mark the room of a job that the role has left, with no bond in it."""
        with self._lock:
            self._mark(room)

    def remove_fetched(self, room: Path) -> None:
        """Remove what was fetched for a job that the role has refused, and mark the room if anything else is in it:
        a reason to refuse may pass, as one for want of memory does, and days of training must not go with it."""
        with self._lock:
            for path in [path for pattern in _FETCHED for path in room.glob(pattern)]:
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):
                    path.unlink(missing_ok=True)  # a file
            with suppress(OSError):
                room.rmdir()
            self._mark(room)

    def _mark(self, room: Path) -> None:
        self._entered.discard(room)
        with suppress(OSError):  # a full disk; the room is kept then
            if room.is_dir():
                (room / _MARK).touch()

    def claim(self, room: Path, need: int, *, bonded: bool, told: Callable[[str], None]) -> None:
        """Make space for a room that will take so many bytes, with those that it has. Where all rooms would take too
        much, those that were left go first if that suffices, which is told, each in one sentence. bonded: whether a
        bond is at stake in the room's job, which no limit then holds up. Raises NoSpace.

        What others have claimed and does not come counts for nothing: a job whose files nobody serves would hold up
        all others."""
        with self._lock:
            sizes = {path: size_of(path) for path in self._rooms()}
            most = shutil.disk_usage(self._directory).total // _PART if self._most is None else self._most
            over = sum(sizes.values()) + max(0, need - sizes.get(room, 0)) - most
            left = self._left(sizes.keys() - {room} - self._entered)
            if (short := over - sum(sizes[path] for path in left)) > 0 and not bonded:
                raise NoSpace(
                    f"the files of all jobs under way would take {short} bytes more than the {most} allowed, with "
                    f"{need} of {room.name}: raise --most-disk, or wait until another job is over."
                )
            for path in left:
                if over <= 0:
                    break
                shutil.rmtree(path, ignore_errors=True)
                over -= sizes[path]
                told(f"removed {path.name}, whose job was left, to make room for {room.name}")

    def _rooms(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._directory):
                if entry.name.startswith("job-") and entry.is_dir(follow_symlinks=False):
                    yield Path(entry.path)

    def _left(self, rooms: set[Path]) -> list[Path]:
        """Return the marked ones of these rooms, in the order in which they were left."""
        marks = [(mark.stat().st_mtime_ns, room) for room in rooms if (mark := room / _MARK).exists()]
        return [room for _, room in sorted(marks)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleLimits:
    """Most resources that a role spends on jobs of others. Bytes, except `steps`."""

    steps: int = 10_000_000
    """Training steps of one job."""
    job_bytes: int = 16 << 30
    log_bytes: int = 16 << 30
    rooms_bytes: int | None = None
    """Files of all jobs together; None: half of their disk."""
    memory_bytes: int = field(default_factory=usable_memory)
    """States, data and intermediate values of one job. By default the usable memory of this machine: the system ends a
    process that takes more, and with it the defence of every other job."""
    wei_per_day: int | None = None
    """Wei put into new undertakings in 24 hours: bonds and their gas. None: any. What was begun is never held back."""
    wei_per_job: int | None = None


@dataclass(frozen=True, kw_only=True)
class RoleContext:
    """The context of a role: what it works with. `contract` writes with `sender`. All files of the role are below
    `directory`, which no other role shares.

    `engine`: trains and audits. `background_jobs`: does long work. `clock`: seconds of this machine, for pauses.
    `make_queue`: makes the transaction queue, which reads the chain and writes to it."""

    contract: VerificationGame
    sender: Sender
    store: Store
    directory: Path
    engine: Engine = field(default_factory=Engine)
    limits: RoleLimits = field(default_factory=RoleLimits)
    policy: Policy = field(default_factory=Policy)
    notify: Notify = lambda notice: None
    on_look: OnLook = lambda progress, outage: None
    background_jobs: BackgroundJobs = field(default_factory=BackgroundJobs)
    clock: Callable[[], float] = time.monotonic
    make_queue: Callable[[VerificationGame, Sender], TransactionQueue] = TransactionQueue
    queue: TransactionQueue = field(init=False)
    """The queue of this context; a copy of a context gets a new queue."""
    rooms: Rooms = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "queue", self.make_queue(self.contract, self.sender))
        object.__setattr__(self, "rooms", Rooms(self.directory, self.limits.rooms_bytes))
        place = f"{self.contract.node.chain_id}-{self.contract.address}"
        most = {"per_day": self.limits.wei_per_day, "per_job": self.limits.wei_per_job}
        today = None if self.contract.node.chain_id in DEVELOPMENT_CHAINS else time.time
        self.queue.spending = Spending(self.directory, place, today=today, **most, reserve=self.sender.reserve)

    @property
    def address(self) -> ChecksumAddress:
        return self.sender.address

    def now(self) -> int:
        """Return seconds since 1970 by the chain's clock: the timestamp of a block mined now, which is later than the
        newest block's."""
        head = self.queue.watch.head
        return max(self.queue.watch.now(), 0 if head is None else head.timestamp + 1)

    def room(self, job_id: int, job: JobView) -> Path:
        """Return directory of a job's files. The spec is part of its name, because other chains count jobs from 1 as
        well, and a reorganisation may give the number to another job."""
        return self.directory / f"job-{job_id}-{job.spec_hash.hex()[:16]}"
