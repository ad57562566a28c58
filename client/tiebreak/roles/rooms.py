"""Disk space that all rooms of one role take together, and its limit.

Of a job that the role has refused, what was fetched goes at once. What the role has made there itself stays, as a room
does that the role has left for another reason, with no bond in its job: it is marked, and goes when another job needs
its space, the one that was left first before the others. Rooms of jobs under way are never touched.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tiebreak.store.staging import taken
from tiebreak.store.store_errors import NoSpace

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
        """Takes the mark off a room, since the role works there again."""
        with self._lock:
            self._entered.add(room)
            with suppress(OSError):  # a disk that is read-only for a while
                (room / _MARK).unlink(missing_ok=True)

    def leave(self, room: Path) -> None:
        """Marks the room of a job that the role has left, with no bond in it."""
        with self._lock:
            self._mark(room)

    def remove_fetched(self, room: Path) -> None:
        """Removes what was fetched for a job that the role has refused, and marks the room if anything else is in it:
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
        """Makes space for a room that will take so many bytes, with those that it has. Where all rooms would take too
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
        """The marked ones of these rooms, in the order in which they were left."""
        marks = [(mark.stat().st_mtime_ns, room) for room in rooms if (mark := room / _MARK).exists()]
        return [room for _, room in sorted(marks)]


def size_of(directory: Path) -> int:
    """Bytes of the disk that all files below a directory take."""
    return sum(taken(Path(room) / name) for room, _, names in os.walk(directory) for name in names)
