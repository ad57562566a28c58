"""Files that survive a kill and a power cut at any instant, locks between processes, and files of strangers.

What is left when the process is killed, or the power is cut, while a function works; once it has returned, all that it
wrote survives both:

    replace_file    the old file or the new one, whole, and perhaps a file beside it that no reader opens
    append_file     the old file, with any beginning of what is added: readers tell a torn end from a whole one
    create_file     nothing, or a file with any beginning of its bytes
    lock_file       no lock: the system gives it up with the process

A directory that is made for a file is durable only once `sync_directory` was called for the one that it lies in.

Files that are read may be a stranger's: a path can lead to a pipe that nobody writes to, or to a device that never
ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO

from roundlog.json_text import parse_json


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


def sync_file(file: IO[Any]) -> None:
    """Makes all that was written to an open file durable, but for its name. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable: new ones, renames and removals. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def commit_file(partial: Path, path: Path, *, sync_name: bool = True) -> None:
    """Gives a written file its final name, durably. Both are in the same directory. sync_name: as for `replace_file`.
    Raises OSError."""
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(path)
    if sync_name:
        sync_directory(path.parent)


BESIDE = "tmp-"
"""Beginning of the names under which `replace_file` writes a file that others may replace at the same time."""


@contextmanager
def replace_file(
    path: Path, *, private: bool = False, shared: bool = False, sync_name: bool = True
) -> Iterator[BinaryIO]:
    """A file open for writing that takes the name `path` when the block ends, and vanishes if the block
    raises.

    private: nobody else can read it. shared: others may replace the same file at the same time. Each writes under a
    name of its own, and a process that is killed leaves that file; otherwise the next writer overwrites it. Shared
    files are private. sync_name: otherwise the caller makes the name durable, by one `sync_directory` for many files.
    Raises OSError.
    """
    if shared:
        descriptor, beside = tempfile.mkstemp(prefix=BESIDE, dir=path.parent)
        partial = Path(beside)
    else:
        partial = partial_path(path)
        # Its name can be foretold: what lies there may be a link, or readable by all.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if private:
                os.fchmod(descriptor, 0o600)
            yield file
        commit_file(partial, path, sync_name=sync_name)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def append_file(path: Path, data: bytes) -> None:
    """Adds bytes to the end of a file, which is made if it is not there. Raises OSError, after which any beginning of
    the bytes may be there."""
    with path.open("ab") as file:
        if not os.fstat(file.fileno()).st_size:
            sync_directory(path.parent)  # before there are bytes: who is killed here finds it empty, and comes by again
        file.write(data)
        sync_file(file)


def create_file(path: Path, data: bytes) -> None:
    """Makes a new file that nobody else can read. Never replaces one, nor follows a link. Raises OSError,
    FileExistsError among others, and leaves nothing then."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            sync_file(file)
        sync_directory(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def lock_file(path: Path, *, shared: bool = False, wait: bool = False) -> BufferedReader:
    """The lock at `path`, which is made if it is not there, held until the file is closed or the process ends.

    shared: with others that share it, instead of alone. wait: for those that hold it. The file stays when the lock is
    given up, and may be of any kind: a pipe keeps nobody waiting. Raises BlockingIOError if others hold the lock,
    FileNotFoundError if it was removed meanwhile, and OSError.
    """
    # For reading and writing: file systems of a network refuse the lock of one alone on a file that is read only.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    # For nobody else: who can read a file can hold its lock.
    file = os.fdopen(os.open(path, flags, 0o600), "rb")
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        # A lock on a removed file keeps nobody away who makes the file again.
        if not os.path.samestat(os.fstat(file.fileno()), path.lstat()):
            raise FileNotFoundError(errno.ENOENT, "it was removed", str(path))
    except BaseException:
        file.close()
        raise
    return file


HASH_BYTES = 32


def read_hashes(path: Path, most: int) -> list[bytes]:
    """The first `most` of the 32-byte hashes in a file, or as many as there are; a torn last one is left out. Empty if
    there is no file. Raises OSError."""
    try:
        with open_regular(path) as file:
            # Memory is taken for what is asked for, and `most` may come from a stranger.
            data = file.read(min(HASH_BYTES * most, os.fstat(file.fileno()).st_size))
    except FileNotFoundError:
        return []
    return [data[at : at + HASH_BYTES] for at in range(0, len(data) - HASH_BYTES + 1, HASH_BYTES)]


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
        return parse_json(data)
    except ValueError as error:
        raise StorageError(path, str(error)) from error
