"""Blocks of data: the file of their roots, and a cache of them on disk, for runs that are repeated and workers that
share a disk.

    data.blocks    32 bytes a block: the aligned subtrees of 16 leaves of each field's tree, field after field in
                   program order, without a header

Its length follows from program and spec, and its roots combine to the data root, so nothing of it has to be trusted: a
block that comes from anywhere is checked by itself. It is a 512th of the data.

The cache is sparse: block n stands at place n modulo the number of places, and there is nothing else in it. A reader
checks every block against its root, which also tells a hole, a torn write, damage and the block of another job from
what it wants. So processes share the file without locks, and losing it costs only time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from roundlog.commitments import BLOCK_SIZE, BlockTree, MerkleTree, blocks_of
from roundlog.data.field import Field, summarised
from roundlog.kernels.hashing import HASH_SIZE
from roundlog.program import FieldType
from roundlog.storage import StorageError, reading, replace_file
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


def write_block_roots(path: Path, fields: Mapping[str, Field]) -> None:
    """Replaces the file at `path` by the roots of these fields, durably and as a whole. Raises OSError, and as
    `summarised`."""
    with replace_file(path) as file:
        for field in fields.values():
            file.write(summarised(field).tree.roots)


def block_roots_bytes(kinds: Mapping[str, FieldType], rows: int) -> int:
    """Size of the file of the roots of a data set."""
    return HASH_SIZE * sum(blocks_of(kind.nbytes(rows)) for kind in kinds.values())


def read_block_roots(path: Path, kinds: Mapping[str, FieldType], rows: int, data_root: bytes) -> dict[str, BlockTree]:
    """The trees of the fields of a data set with this root. The file is not trusted: its length is checked before
    anything is allocated. Raises StorageError."""
    sizes = {name: kind.nbytes(rows) for name, kind in kinds.items()}
    expected = block_roots_bytes(kinds, rows)
    with reading(path) as file:
        roots = file.read(expected + 1)
    if len(roots) != expected:
        found = "more" if len(roots) > expected else len(roots)
        raise StorageError(path, f"has {found} bytes where the roots of its data's blocks need {expected}")
    trees: dict[str, BlockTree] = {}
    start = 0
    for name, size in sizes.items():
        length = HASH_SIZE * blocks_of(size)
        trees[name] = BlockTree(size, roots[start : start + length])
        start += length
    if MerkleTree([tree.root for tree in trees.values()]).root != data_root:
        raise StorageError(path, "has roots of other data than the data root commits to")
    return trees
