"""Opening files of strangers: a path can lead to a pipe that nobody writes to, or to a device that never ends."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from roundlog.storage.errors import StorageError


def open_regular(path: Path) -> BufferedReader:
    """A regular file, open for reading; never waits.

    Raises OSError: FileNotFoundError where there is nothing, EINVAL for a pipe, a device, a directory."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """A block in which a regular file is open for reading, and in which an OSError is told as a StorageError."""
    try:
        with open_regular(path) as file:
            yield file
    except FileNotFoundError as error:
        raise StorageError(path, "does not exist") from error
    except OSError as error:
        raise StorageError(path, f"cannot be read: {error.strerror}") from error


def require_regular(descriptor: int, path: Path) -> None:
    """Raises OSError (EINVAL) unless an open descriptor is that of a regular file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_at(file: BufferedReader, path: Path, start: int, size: int) -> memoryview:
    """`size` bytes of a file, open for reading, from byte `start` on. path: for what is said of it. Raises StorageError
    if they cannot be read, or are not there."""
    found = memoryview(bytearray(size))
    read_into(found, file, path, start)
    return found


def read_into(memory: memoryview, file: BufferedReader, path: Path, start: int) -> None:
    """Fills memory, writable and in bytes, from byte `start` of a file on, as `read_at`."""
    while memory:
        try:
            count = os.preadv(file.fileno(), [memory], start)
        except OSError as error:
            raise StorageError(path, f"cannot be read: {error.strerror}") from error
        if not count:
            raise StorageError(path, "was cut off while it was read: restore it")
        memory, start = memory[count:], start + count
