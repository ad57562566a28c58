"""Bytes of a role's disk that are kept for what has to be written before money is sent.

    <directory>/reserve    bytes without a meaning; cut when the disk is full, and filled again when there is room

A stranger can fill the disk of everybody who follows jobs. Nothing is paid that is not on record, and a party that
cannot pay for an appeal or a challenge loses what it defends. So those records, and nothing else, take these bytes.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SIZE = 1 << 20
"""Bytes of the reserve, or a quarter of a smaller disk: enough for some two hundred payments."""

_SLICE = 16 << 10
"""Bytes that are given up at a time, so that others who write to the disk do not get all of them."""

_PART = 4
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """The reserve in a directory; with None there is none, for commands that keep no record. Threads may share it."""

    def __init__(self, directory: Path | None, size: int = SIZE) -> None:
        self._path = None if directory is None else directory / "reserve"
        self._size = size
        self._lock = threading.Lock()
        self.missing = 0
        """Bytes that it has less than it should: the disk is, or was a moment ago, full."""

    def fill(self) -> None:
        """Fills the reserve as far as the disk has room for it. Never raises: a role works without it, too."""
        if self._path is None:
            return
        with self._lock:
            try:
                self._fill(self._path)
            except OSError:
                self.missing = max(1, self.missing)

    def write(self, write: Callable[[], T]) -> T:
        """The result of `write`, which is called again after some of the reserve was given up if the disk is full.

        Raises what it raises, and so the error of a full disk if nothing of the reserve is left."""
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in _FULL or not self._give_up():
                    raise

    def _give_up(self) -> bool:
        """Whether a part of the reserve could be given up."""
        if self._path is None:
            return False
        with self._lock:
            try:
                size = self._path.stat().st_size
                if not size:
                    return False
                os.truncate(self._path, max(0, size - _SLICE))
            except OSError:
                return False
            self.missing += min(size, _SLICE)
            return True

    def _fill(self, path: Path) -> None:
        disk = shutil.disk_usage(path.parent)
        wanted = min(self._size, disk.total // _PART)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # As much again stays free, since others write, too, and would have it given up at once.
            if size < wanted and disk.free > 2 * (wanted - size):
                # Random bytes take their space on disks that compress as well.
                size += os.pwrite(descriptor, os.urandom(wanted - size), size)
                # Nobody reads them: synced for the error of disks that say only then that they are full.
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.missing = max(0, wanted - size)
