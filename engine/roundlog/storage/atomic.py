"""Files that are either whole or absent, whenever the process or the machine dies.

Write beside the final name, fsync, rename, fsync the directory. A process that dies before the rename
leaves only a `.partial` file, which the next writer of the same name overwrites and no reader ever opens.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
