"""Fields that stay where they are stored, in a file for one: nothing of them is in memory but the rows that are read,
and their bytes are checked each time that they are used."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from roundlog.commitments import BLOCK_SIZE, BlockTree
from roundlog.data.field import Field
from roundlog.program import FieldType
from roundlog.storage import StorageError, open_regular, read_at

_PIECE = 1024 * BLOCK_SIZE
"""Bytes of blocks that are held at a time, if a row is not longer."""


class StoredField(Field):
    """A field that is read again whenever it is used. Once it has been summarised, all that is used of it is what was
    summarised, whoever writes to its file meanwhile: rows are read with the blocks that they lie in."""

    @abstractmethod
    def changed(self, start: int) -> StorageError:
        """The error that the block from byte `start` on is not what it was."""

    def pieces(self, spans: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """The bytes of each span (first byte, number of bytes, at least one). Raises as `read`."""
        return [self.read(start, size) for start, size in spans]

    def parts_of(self, starts: Sequence[int], size: int) -> Iterable[bytes | memoryview]:
        """As of any field; raises StorageError besides for bytes that are not those that were summarised."""
        if self.summary is None or size == 0:
            return super().parts_of(starts, size)
        return self._checked(self.summary.tree, starts, size)

    def _checked(self, tree: BlockTree, starts: Sequence[int], size: int) -> Iterator[memoryview]:
        # So many bytes lie in at most size // BLOCK_SIZE + 2 blocks.
        group = max(1, _PIECE // (size + 2 * BLOCK_SIZE))
        for first in range(0, len(starts), group):
            yield from self._checked_group(tree, starts[first : first + group], size)

    def _checked_group(self, tree: BlockTree, starts: Sequence[int], size: int) -> Iterator[memoryview]:
        blocks = sorted({block for start in starts for block in blocks_under(start, size)})
        pieces = self.pieces([_span(tree, run) for run in _runs(blocks)])
        data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        wrong = tree.first_wrong(blocks, data)
        if wrong is not None:
            raise self.changed(tree.span(wrong)[0])
        places = {block: place * BLOCK_SIZE for place, block in enumerate(blocks)}
        for start in starts:
            # Blocks that follow each other in the field do so in `data`.
            begin = places[start // BLOCK_SIZE] + start % BLOCK_SIZE
            yield data[begin : begin + size]


def blocks_under(start: int, size: int) -> range:
    """The blocks that `size` bytes, at least one, from byte `start` on lie in."""
    return range(start // BLOCK_SIZE, (start + size - 1) // BLOCK_SIZE + 1)


def _runs(blocks: Sequence[int]) -> Iterator[range]:
    """Ascending numbers as the fewest ranges."""
    begin = 0
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or blocks[place] != blocks[place - 1] + 1:
            yield range(blocks[begin], blocks[place - 1] + 1)
            begin = place


def _span(tree: BlockTree, run: range) -> tuple[int, int]:
    """(first byte, bytes) of consecutive blocks."""
    (start, _), (last, length) = tree.span(run[0]), tree.span(run[-1])
    return start, last + length - start


class FileField(StoredField):
    """A field whose bytes stand one behind the other in a file, from a byte on.

    The file stays open, and is read by position (pread), never mapped: a mapped file that somebody truncates ends the
    process by SIGBUS, and its pages count as the process's memory."""

    def __init__(self, kind: FieldType, rows: int, path: Path, offset: int, file: BufferedReader | None = None) -> None:
        """file: the one at `path`, already open. Raises StorageError if it cannot be opened or is too short."""
        super().__init__(kind, rows)
        self.path, self.offset = path, offset
        try:
            self._file = open_regular(path) if file is None else file
            size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise StorageError(path, f"cannot be read: {error.strerror}") from error
        if size < offset + self.nbytes:
            raise StorageError(path, f"has {size} bytes where its field needs {offset + self.nbytes}")

    def read(self, start: int, size: int) -> memoryview:
        return read_at(self._file, self.path, self.offset + start, size)

    def changed(self, start: int) -> StorageError:
        return changed_at(self.path, self.offset + start)

    def recut(self, kind: FieldType, rows: int) -> FileField:
        return FileField(kind, rows, self.path, self.offset, self._file)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileField, (self.kind, self.rows, self.path, self.offset)


def changed_at(path: Path, start: int) -> StorageError:
    """The error that a file has other bytes at byte `start` than when it was summarised."""
    return StorageError(path, f"has changed, at byte {start} or soon after, since its root was taken: restore it")
