"""A cache of blocks of data on disk, for runs that are repeated and workers that share a disk.

The file is sparse: block n stands at place n modulo the number of places, and there is nothing else in it. A reader
checks every block against its root, which also tells a hole, a torn write, damage and the block of another job from
what it wants. So processes share the file without locks, and losing it costs only time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from roundlog.commitments import BLOCK_SIZE
from roundlog.storage import StorageError
from roundlog.storage.durable_files import require_regular

CACHED_BYTES = 8 << 30
"""Most bytes of a cache."""

_NOT_HERE = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EPERM)


class BlockCache:
    """The cache in the file at `path`, made if there is none. Where nothing can be written, or once the disk is full,
    it goes on without remembering more."""

    def __init__(self, path: Path, most_bytes: int = CACHED_BYTES) -> None:
        """most_bytes: on disk, at least one block. Raises StorageError if something else is at `path`."""
        self._places = max(1, most_bytes // BLOCK_SIZE)
        self._file: int | None = None
        self._takes_more = True
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o600)
            require_regular(self._file, path)
        except OSError as error:
            self.close()
            if error.errno not in _NOT_HERE:
                raise StorageError(path, f"is no cache of blocks ({error.strerror}): remove it") from error

    def get(self, number: int, size: int) -> bytes | None:
        """`size` bytes from the place of a block, to be checked by the caller; None if so many are not there."""
        if self._file is None:
            return None
        try:
            data = os.pread(self._file, size, number % self._places * BLOCK_SIZE)
        except OSError:
            return None
        return data if len(data) == size else None

    def put(self, number: int, block: bytes | memoryview) -> None:
        """Keeps a block in its place."""
        if self._file is None or not self._takes_more:
            return
        try:
            os.pwrite(self._file, block, number % self._places * BLOCK_SIZE)
        except OSError:
            self._takes_more = False  # a full disk has to stop no run that can do without

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self.close()
