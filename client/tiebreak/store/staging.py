"""The place beside a destination where fetched content is put together, and left for the next attempt if it does not
come whole; and the space on its disk, which is looked at before a stranger's content is written there."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from roundlog.storage import lock_file

from tiebreak.store.dagpb import Cid
from tiebreak.store.store_errors import (
    ContentMissing,
    CorruptBlock,
    DestinationExists,
    FetchTooSlow,
    NoSpace,
    StoreUnavailable,
    unusable,
)

LEFT = 32 << 20
LEFT_PART = 20
"""Bytes that fetched content leaves free, or this part of a small disk: what a process has to write down meanwhile
needs less."""

_BLOCK = 512

_MAY_PASS = (StoreUnavailable, FetchTooSlow, ContentMissing, CorruptBlock)
"""Errors after which the next attempt may find what is missing, and so what has come is left for it."""


def taken(file: Path | int) -> int:
    """Bytes of the disk that a file takes, or an open one; 0 if there is none."""
    try:
        found = os.fstat(file) if isinstance(file, int) else os.lstat(file)
    except FileNotFoundError:
        return 0
    return found.st_blocks * _BLOCK


def size_of(directory: Path) -> int:
    """Bytes of the disk that all files below a directory take. Files that vanish meanwhile are not counted."""
    return sum(taken(Path(room) / name) for room, _, names in os.walk(directory) for name in names)


def require_space(place: Path | int, need: int) -> None:
    """Raises NoSpace unless so many bytes more fit the disk of a path, or of an open file, and leave enough of it."""
    if need <= 0:
        return
    disk = shutil.disk_usage(place)
    have = disk.free - min(LEFT, disk.total // LEFT_PART)
    if need > have:
        raise NoSpace(
            f"the content needs {need} bytes of the disk, which has {max(0, have)} for it and keeps the rest free: "
            "make room there."
        )


class Staged:
    """A path beside `dest` for the content `cid`, which becomes `dest` when the `with` block ends well.

    When it ends by an error that may pass, or the process is killed, what is there stays for the next attempt, which
    must check it: it may have been cut off or damaged. Another error removes it. Of two processes that fetch the same
    to the same place, one begins anew. Raises DestinationExists, StoreUnavailable.
    """

    def __init__(self, dest: Path, cid: Cid) -> None:
        self._dest, self._cid = dest, cid
        self._lock: BinaryIO | None = None
        self._stays = True
        """Whether the next attempt begins with what this one leaves."""

    def __enter__(self) -> Staged:
        if os.path.lexists(self._dest):
            raise DestinationExists(f"{self._dest} exists already: choose another place or remove it.")
        try:
            self._dest.parent.mkdir(parents=True, exist_ok=True)
            self._room = room = _room(self._dest, self._cid)
            self._lock = _claimed(room)
            _remove_abandoned(room)
            if self._lock is None:
                self._room, self._stays = Path(tempfile.mkdtemp(prefix=f"{room.name}-", dir=room.parent)), False
                self._lock = _claimed(self._room)
        except OSError as error:
            raise unusable(f"nothing can be written to {self._dest.parent}", error) from error
        self.path = self._room / "content"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        may_pass = isinstance(error, _MAY_PASS) or (error is not None and not isinstance(error, Exception))
        try:
            if kind is None:
                self._publish()
        finally:
            if not (may_pass and self._stays and _has_bytes(self.path)):
                shutil.rmtree(self._room, ignore_errors=True)
            if self._lock is not None:
                self._lock.close()
        if isinstance(error, OSError):
            raise unusable(f"the content cannot be written beside {self._dest}", error) from error

    def _publish(self) -> None:
        # The name is not synced: who loses it with the power fetches the content again.
        try:
            if self.path.is_dir():
                self.path.rename(self._dest)  # fails on a directory that is not empty, as it should
            else:
                self._dest.hardlink_to(self.path)  # unlike rename, this never replaces a file
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
                raise unusable(f"the fetched content cannot be put at {self._dest}", error) from error
            raise DestinationExists(
                f"{self._dest} cannot take the fetched content ({error.strerror}): choose another place."
            ) from error


def _claimed(room: Path) -> BinaryIO | None:
    """The lock of a room that is ours alone from now on; None if it cannot be had. A directory that somebody else could
    have made or filled is not taken: its name can be foretold."""
    for _ in range(3):
        try:
            room.mkdir(mode=0o700)
        except FileExistsError:
            found = room.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                return None
        try:
            return lock_file(room / "lock")
        except BlockingIOError:
            return None
        except FileNotFoundError:
            continue  # another process has just ended with it
    return None


def _remove_abandoned(room: Path) -> None:
    """Removes the rooms of processes that were killed while another one had this one."""
    for other in room.parent.glob(f"{glob.escape(room.name)}-*"):
        lock = _claimed(other)
        if lock is not None:
            shutil.rmtree(other, ignore_errors=True)
            lock.close()


def set_back(dest: Path, cid: str) -> None:
    """Makes the damaged directory at `dest` the beginning of the next fetch of `cid` to there, which checks all of it
    and fetches what is wrong. What cannot be moved is removed. Raises InvalidCid, OSError."""
    room = _room(dest, Cid.parse(cid))
    if dest.is_symlink() or not dest.is_dir():
        dest.unlink()
        return
    try:
        room.mkdir(mode=0o700)
        dest.rename(room / "content")
    except OSError:
        shutil.rmtree(dest)


def _room(dest: Path, cid: Cid) -> Path:
    """The directory beside `dest` in which `cid` is put together."""
    return dest.with_name(f".{dest.name[:40]}.{cid.digest.hex()[:16]}.partial")


def _has_bytes(path: Path) -> bool:
    """Whether there is anything worth keeping."""
    rooms = [str(path.parent)] if path.is_file() else [room for room, _, _ in os.walk(path)]
    return any(
        entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size > 0
        for room in rooms
        for entry in os.scandir(room)
    )
