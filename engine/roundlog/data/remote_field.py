"""Fields whose bytes lie elsewhere, such as in content stores: only the blocks that are used are fetched.

Beside it stand the file of the blocks' roots, and a cache of blocks on disk, for runs that are repeated and workers
that share a disk.

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
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from roundlog.commitments import BLOCK_SIZE, BlockTree, MerkleTree, blocks_of
from roundlog.data.field import DataError, Field, FieldSummary, has_nan, summarised
from roundlog.data.files import StoredField, blocks_under, entry_of, runs, starts_of
from roundlog.kernels.hashing import HASH_SIZE
from roundlog.program import DType, FieldType
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


_MOST_BLOCKS = 64
"""Blocks that are asked for at a time: 1 MiB."""

_REMEDY = "name another store that has it, or fetch the job with its data, and run the same command again"


class Unavailable(Exception):
    """A part of a file cannot be had from anywhere. The message is one clause."""


class RemoteDataError(StorageError):
    """Data that lie elsewhere and cannot be had, or cannot be used. The message names field and block, and a remedy."""


class Elsewhere(Protocol):
    """The file of a data set in some other place. Nothing that it brings is trusted."""

    @property
    def width(self) -> int:
        """Parts that are worth asking for at a time."""

    def part(self, start: int, size: int, is_right: Callable[[bytes], bool]) -> bytes:
        """`size` bytes from byte `start` on, for which `is_right` holds; where there are several copies, of the first
        that has such bytes. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """The file of a data set that lies elsewhere. `path`: where it would be, for messages. `cache`: of its blocks."""

    path: Path
    place: Elsewhere
    cache: BlockCache | None = None


class RemoteField(StoredField):
    """A field whose blocks are fetched when they are used, each checked by its root before.

    NaN and wrong bools, which no job may have, are looked for in the blocks that are fetched."""

    def __init__(
        self, name: str, kind: FieldType, rows: int, tree: BlockTree, file: RemoteFile, offset: int, first_block: int
    ) -> None:
        """tree: its root is committed to. offset: the field's first byte in the file. first_block: blocks of the fields
        before it."""
        super().__init__(kind, rows)
        assert tree.size == self.nbytes
        self.summary = FieldSummary(tree, has_nan=False)
        self.fetched = 0
        """Bytes that were fetched and used."""
        self._name, self._tree, self._file = name, tree, file
        self._offset, self._first_block = offset, first_block
        self._counting = threading.Lock()

    def read(self, start: int, size: int) -> memoryview:
        return self.pieces([(start, size)])[0]

    def pieces(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        blocks = sorted({block for start, size in spans for block in blocks_under(start, size)})
        found = {block: data for block in blocks if (data := self._cached(block)) is not None}
        missing = list(runs([block for block in blocks if block not in found], _MOST_BLOCKS))
        for run, data in zip(missing, self._all_fetched(missing), strict=True):
            found |= {block: data[place * BLOCK_SIZE :][:BLOCK_SIZE] for place, block in enumerate(run)}
        return [_cut(found, start, size) for start, size in spans]

    def changed(self, start: int) -> StorageError:
        return self._error([start // BLOCK_SIZE], "it is not what its root says")

    def recut(self, kind: FieldType, rows: int) -> Field:
        raise DataError(f"the field {self._name} lies elsewhere and cannot be cut in another way: fetch it first")

    def _cached(self, block: int) -> memoryview | None:
        """A block from the cache, if the right one is there."""
        if self._file.cache is None:
            return None
        data = self._file.cache.get(self._first_block + block, self._tree.span(block)[1])
        if data is None or self._tree.first_wrong([block], data) is not None:
            return None
        self._require_numbers([block], data)
        return memoryview(data)

    def _all_fetched(self, runs: Sequence[Sequence[int]]) -> list[memoryview]:
        """Runs of consecutive blocks, fetched a few at a time. The first that fails ends it."""
        if len(runs) < 2 or self._file.place.width < 2:
            return [self._fetched(run) for run in runs]
        pool = ThreadPoolExecutor(self._file.place.width, thread_name_prefix="blocks")
        try:
            return list(pool.map(self._fetched, runs))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _fetched(self, run: Sequence[int]) -> memoryview:
        """Consecutive blocks from elsewhere. Raises RemoteDataError."""
        try:
            data = self._part(run)
        except Unavailable as error:
            if len(run) == 1:
                raise self._error(run, str(error)) from error
            # One copy may lack a block, and another copy another one.
            return memoryview(b"".join(self._fetched([block]) for block in run))
        self._require_numbers(run, data)
        with self._counting:
            self.fetched += len(data)
        if self._file.cache is not None:
            for place, block in enumerate(run):
                self._file.cache.put(self._first_block + block, memoryview(data)[place * BLOCK_SIZE :][:BLOCK_SIZE])
        return memoryview(data)

    def _part(self, run: Sequence[int]) -> bytes:
        start = self._tree.span(run[0])[0]
        size = sum(self._tree.span(block)[1] for block in run)

        def is_right(data: bytes) -> bool:
            return len(data) == size and self._tree.first_wrong(run, data) is None

        data = self._file.place.part(self._offset + start, size, is_right)
        if not is_right(data):
            raise Unavailable("its bytes are not those that its root commits to")
        return data

    def _require_numbers(self, run: Sequence[int], data: bytes) -> None:
        if self.kind.row.dtype is DType.BOOL:
            if np.frombuffer(data, np.uint8).max() > 1:
                raise self._error(run, "it has a bool that is neither 0 nor 1", "no run can follow such a job")
        elif has_nan(self.kind, data):
            raise self._error(run, "it has a NaN", "no run can follow such a job")

    def _error(self, run: Sequence[int], why: str, remedy: str = _REMEDY) -> RemoteDataError:
        blocks = f"block {run[0]}" if len(run) == 1 else f"one of the blocks {run[0]} to {run[-1]}"
        return RemoteDataError(self._file.path, f"{blocks} of the field {self._name} cannot be used ({why}): {remedy}")


def remote_fields(
    kinds: Mapping[str, FieldType], rows: int, trees: Mapping[str, BlockTree], file: RemoteFile
) -> dict[str, Field]:
    """The fields of a data set in a file that lies elsewhere, as `write_fields` writes it. trees: of the fields, by
    name."""
    fields: dict[str, Field] = {}
    starts = starts_of({name: entry_of(kind, rows) for name, kind in kinds.items()})
    first_block = 0
    for name, kind in kinds.items():
        fields[name] = RemoteField(name, kind, rows, trees[name], file, starts[name], first_block)
        first_block += blocks_of(kind.nbytes(rows))
    return fields


def fetched_bytes(fields: Iterable[Field]) -> int:
    """Bytes of these fields that were fetched from elsewhere by this process."""
    return sum(field.fetched for field in fields if isinstance(field, RemoteField))


def _cut(found: Mapping[int, memoryview], start: int, size: int) -> memoryview:
    """`size` bytes from byte `start` on, of the blocks that they lie in."""
    blocks = blocks_under(start, size)
    if not blocks:
        return memoryview(b"")
    data = found[blocks[0]] if len(blocks) == 1 else memoryview(b"".join(found[block] for block in blocks))
    return data[start - blocks[0] * BLOCK_SIZE :][:size]
