"""Files that survive a kill at any instant, and files of strangers.

Files that are written are either whole or absent, whenever the process or the machine dies: write beside the final
name, fsync, rename, fsync the directory. A process that dies before the rename leaves only a `.partial` file, which the
next writer of the same name overwrites and no reader ever opens.

Files that are read may be a stranger's: a path can lead to a pipe that nobody writes to, or to a device that never
ends.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO


class StorageError(ValueError):
    """A file that is missing or is not what it has to be. The message names the file and says what is wrong.

    path: the file. reason: the message without the path.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[StorageError], tuple[Path, str]]:
        # Workers raise it in other processes, and an error is otherwise made again from its message alone.
        return type(self), (self.path, self.reason)


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


def partial_path(path: Path) -> Path:
    """Path at which a file is written until it is whole: hidden, in the same directory, one for each final name."""
    return path.with_name(f".{path.name}.partial")


def sync_directory(directory: Path) -> None:
    """Makes the renames and removals in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def commit_file(partial: Path, path: Path) -> None:
    """Gives a written file its final name, durably. Both are in the same directory. Raises OSError."""
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(path)
    sync_directory(path.parent)


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """A file open for writing that takes the name `path` when the block ends, and vanishes if the block
    raises.

    Raises OSError.
    """
    partial = partial_path(path)
    try:
        with partial.open("wb") as file:
            yield file
        commit_file(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


MAX_RECORD_BYTES = 16 << 20


def write_record(path: Path, record: Any) -> None:
    """Replaces the record at `path` durably by `record`, which is what JSON can hold (finite numbers only)."""
    text = json.dumps(record, allow_nan=False, indent=1, sort_keys=True)
    with replace_file(path) as file:
        file.write(text.encode() + b"\n")


def read_record(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> Any:
    """The record at `path`. Raises StorageError if there is none, if it is longer than `max_bytes` or is
    not JSON.
    """
    with reading(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise StorageError(path, f"is longer than the {max_bytes} bytes allowed")
    try:
        return json.loads(data, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except StorageError:
        raise
    except (ValueError, RecursionError) as error:
        raise StorageError(path, f"is not JSON: {error}") from error


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise StorageError(path, "has a key twice")
    return record
