"""Data sets as safetensors files, written and read a few megabytes at a time. Format:
https://github.com/huggingface/safetensors#format; integers keep the width that they are stored in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path

import numpy as np

from roundlog.data.field import Field, HeldField, storage_dtype
from roundlog.data.stored_field import FileField
from roundlog.program import DType, FieldType, Stored
from roundlog.storage import Entry, StorageError, header_of, most_tensor_bytes, open_tensors, replace_file

HELD_BYTES = 256 << 20
"""Bytes of a data set up to which it is held in memory; of a larger one only the rows that are used."""

_PIECE = 16 << 20
_NAMES = {
    Stored.U8: "U8",
    Stored.I8: "I8",
    Stored.I16: "I16",
    Stored.U16: "U16",
    Stored.I32: "I32",
}
_AS_READ = {DType.F32: "F32", DType.I64: "I64", DType.BOOL: "BOOL"}


def entry_of(kind: FieldType, rows: int) -> Entry:
    """A field's tensor in a file: [rows, ...], or flat if its rows overlap or leave gaps."""
    plain = kind.stride == kind.row.numel
    name = _AS_READ[kind.row.dtype] if kind.stored is Stored.AS_READ else _NAMES[kind.stored]
    return Entry(name, (rows, *kind.row.shape) if plain else (kind.elements(rows),), kind.nbytes(rows))


def starts_of(entries: Mapping[str, Entry]) -> dict[str, int]:
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


def file_bytes(fields: Mapping[str, Field]) -> int:
    """Size of the file of these fields."""
    return len(_header(fields)) + sum(field.nbytes for field in fields.values())


def most_data_bytes(kinds: Mapping[str, FieldType], rows: int) -> int:
    """Most bytes of a file of such fields that a reader takes."""
    return most_tensor_bytes({name: entry_of(kind, rows) for name, kind in kinds.items()})


def file_pieces(fields: Mapping[str, Field]) -> Iterator[bytes | memoryview]:
    """The content of the file of these fields, in pieces of at most 16 MiB; its header comes first, in one. Of fields
    that were summarised, it is what was summarised. Raises as `write_fields`."""
    yield _header(fields)
    for field in fields.values():
        for start in range(0, field.nbytes, _PIECE):
            yield from field.parts_of([start], min(_PIECE, field.nbytes - start))


def _header(fields: Mapping[str, Field]) -> bytes:
    return header_of({name: entry_of(field.kind, field.rows) for name, field in fields.items()})


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
