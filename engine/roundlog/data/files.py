"""Data sets in files: fields that stay where they are stored, so that nothing of them is in memory but the rows that
are read, and whose bytes are checked each time that they are used; and safetensors files, written and read a few
megabytes at a time.

Format: https://github.com/huggingface/safetensors#format; integers keep the width that they are stored in."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np

from roundlog.commitments import BLOCK_SIZE, BlockTree
from roundlog.data.field import Field, HeldField, storage_dtype
from roundlog.program import FieldType, Stored
from roundlog.storage import (
    DTYPE_NAMES,
    StorageError,
    TensorEntry,
    header_of,
    most_tensor_bytes,
    open_regular,
    open_tensors,
    read_at,
    replace_file,
)

_CHECKED_BYTES = 1024 * BLOCK_SIZE
"""Bytes of blocks that are held at a time, if a row is not longer."""


class StoredField(Field):
    """A field that is read again whenever it is used. Once it has been summarised, all that is used of it is what was
    summarised, even if its file is written to meanwhile: rows are read with the blocks that they lie in."""

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
        group = max(1, _CHECKED_BYTES // (size + 2 * BLOCK_SIZE))
        for first in range(0, len(starts), group):
            yield from self._checked_group(tree, starts[first : first + group], size)

    def _checked_group(self, tree: BlockTree, starts: Sequence[int], size: int) -> Iterator[memoryview]:
        blocks = sorted({block for start in starts for block in blocks_under(start, size)})
        pieces = self.pieces([_span(tree, run) for run in runs(blocks, len(blocks))])
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


def runs(blocks: Sequence[int], most: int) -> Iterator[range]:
    """Return ascending numbers as ranges of at most `most` consecutive ones."""
    for _, group in groupby(enumerate(blocks), lambda pair: pair[1] - pair[0]):
        run = [block for _, block in group]
        yield from (range(run[at], run[min(at + most, len(run)) - 1] + 1) for at in range(0, len(run), most))


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
        where = f"at byte {self.offset + start} or soon after"
        return StorageError(self.path, f"has changed, {where}, since its root was taken: restore it")

    def recut(self, kind: FieldType, rows: int) -> FileField:
        return FileField(kind, rows, self.path, self.offset, self._file)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileField, (self.kind, self.rows, self.path, self.offset)


HELD_BYTES = 256 << 20
"""Bytes of a data set up to which it is held in memory; of a larger one only the rows that are used."""

_PIECE = 16 << 20


def entry_of(kind: FieldType, rows: int) -> TensorEntry:
    """A field's tensor in a file: [rows, ...], or flat if its rows overlap or leave gaps."""
    plain = kind.stride == kind.row.numel
    name = DTYPE_NAMES[kind.row.dtype] if kind.stored is Stored.AS_READ else kind.stored.name
    return TensorEntry(name, (rows, *kind.row.shape) if plain else (kind.elements(rows),), kind.nbytes(rows))


def starts_of(entries: Mapping[str, TensorEntry]) -> dict[str, int]:
    """The byte of the file at which each field begins, in a file of `write_fields` with these fields."""
    starts = accumulate((entry.nbytes for entry in entries.values()), initial=len(header_of(entries)))
    return dict(zip(entries, starts, strict=False))


def write_fields(path: Path, fields: Mapping[str, Field]) -> None:
    """Replaces the file at `path`, durably and as a whole, in memory that does not grow with the data. The same fields
    make the same bytes. Raises OSError, and StorageError if a field cannot be read, or has changed since it was
    summarised."""
    with replace_file(path) as file:
        for piece in file_pieces(fields):
            file.write(piece)


def most_data_bytes(kinds: Mapping[str, FieldType], rows: int) -> int:
    """Most bytes of a file of such fields that a reader takes."""
    return most_tensor_bytes({name: entry_of(kind, rows) for name, kind in kinds.items()})


def file_pieces(fields: Mapping[str, Field]) -> Iterator[bytes | memoryview]:
    """The content of the file of these fields, in pieces of at most 16 MiB; its header comes first, in one. Of fields
    that were summarised, it is what was summarised. Raises as `write_fields`."""
    yield header_of({name: entry_of(field.kind, field.rows) for name, field in fields.items()})
    for field in fields.values():
        for start in range(0, field.nbytes, _PIECE):
            yield from field.parts_of([start], min(_PIECE, field.nbytes - start))


def read_fields(path: Path, kinds: Mapping[str, FieldType], rows: int) -> dict[str, Field]:
    """The fields in the file at `path`, in the order of `kinds`: in memory if there are at most `HELD_BYTES` of them,
    else left in the file.

    The file has to hold exactly these tensors, where `write_fields` puts them, without holes, overlaps, metadata or
    trailing bytes, which is checked before anything is allocated. Raises StorageError naming the file and the
    tensor."""
    entries = {name: entry_of(kind, rows) for name, kind in kinds.items()}
    file, starts = open_tensors(path, entries)
    if starts != starts_of(entries):
        # Readers to whom the file lies elsewhere do not look at its header.
        raise StorageError(path, "has its fields in other places than they are written to: make it again")
    left = {name: FileField(kind, rows, path, starts[name], file) for name, kind in kinds.items()}
    if sum(field.nbytes for field in left.values()) > HELD_BYTES:
        if hasattr(os, "posix_fadvise"):  # macOS has none
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return dict(left)
    return {name: taken(field) for name, field in left.items()}


def taken(field: Field) -> HeldField:
    """A field, read into memory."""
    elements = np.empty(field.kind.elements(field.rows), storage_dtype(field.kind))
    into = elements.view(np.uint8)
    # A read of all of it would hold it twice.
    for start in range(0, field.nbytes, _PIECE):
        size = min(_PIECE, field.nbytes - start)
        into[start : start + size] = np.frombuffer(field.read(start, size), np.uint8)
    return HeldField(field.kind, field.rows, elements, is_own=True)
