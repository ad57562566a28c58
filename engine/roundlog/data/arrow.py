"""Columns of Arrow tables as fields, read from the files that the tables map.

A column is stored in batches. Each has its numbers one behind the other
(https://arrow.apache.org/docs/format/Columnar.html). A field of it reads across them."""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from roundlog.data.field import DataError, Field, type_of
from roundlog.data.files import StoredField, changed_at
from roundlog.program import FieldType
from roundlog.storage import StorageError, open_regular, read_at

_DTYPES = {
    "float": "<f4",
    "halffloat": "<f2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "i1",
    "uint16": "<u2",
    "uint8": "u1",
}
"""Arrow's names of the types that a field may have."""

_ONE_LENGTH = "cut or fill them to one length"

_DELETED = " (deleted)"
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ (\d+)\s+(/.*)")
"""A line of /proc/self/maps, see proc(5): begin, end, permissions, offset in the file, inode, path, which ends
with `_DELETED` once nothing else has it."""


@dataclass(frozen=True, slots=True)
class ArrowPart:
    """Some bytes of a field: in a file from byte `begin` on, or in memory."""

    nbytes: int
    path: Path | None = None
    begin: int = 0
    memory: bytes | memoryview = b""

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowPart, (self.nbytes, self.path, self.begin, bytes(self.memory))


class ArrowField(StoredField):
    """A field whose bytes come in parts, of files or of memory. Files are read by position, as `FileField` does."""

    def __init__(self, kind: FieldType, rows: int, parts: Sequence[ArrowPart]) -> None:
        """Raises StorageError if a file cannot be opened or is too short."""
        super().__init__(kind, rows)
        self.parts = [part for part in parts if part.nbytes]
        self._starts = [0, *accumulate(part.nbytes for part in self.parts)]
        assert self._starts[-1] >= self.nbytes
        self._files = {path: _open(path) for path in {part.path for part in self.parts if part.path is not None}}
        sizes = {path: os.fstat(file.fileno()).st_size for path, file in self._files.items()}
        for part in self.parts:
            if part.path is not None and sizes[part.path] < part.begin + part.nbytes:
                raise StorageError(
                    part.path, f"has {sizes[part.path]} bytes where its field needs {part.begin + part.nbytes}"
                )

    def read(self, start: int, size: int) -> bytes | memoryview:
        pieces: list[bytes | memoryview] = []
        number = bisect_right(self._starts, start) - 1
        while size:
            part, skipped = self.parts[number], start - self._starts[number]
            taken = min(size, part.nbytes - skipped)
            if part.path is None:
                pieces.append(part.memory[skipped : skipped + taken])
            else:
                pieces.append(read_at(self._files[part.path], part.path, part.begin + skipped, taken))
            start, size, number = start + taken, size - taken, number + 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def changed(self, start: int) -> StorageError:
        number = bisect_right(self._starts, start) - 1
        part = self.parts[number]
        return changed_at(part.path or Path("an Arrow table in memory"), part.begin + start - self._starts[number])

    def recut(self, kind: FieldType, rows: int) -> ArrowField:
        return ArrowField(kind, rows, self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowField, (self.kind, self.rows, self.parts)


def _open(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except OSError as error:
        raise StorageError(path, f"cannot be read: {error.strerror}") from error


def arrow_fields(table: object, names: Sequence[str] | None = None) -> dict[str, Field]:
    """The columns of a `pyarrow.Table` or of a `datasets.Dataset` of Hugging Face, by name: float32, float16, or
    integers of up to 64 bits (unsigned ones of up to 16), or lists of them that are equally long in all rows. What the
    table maps from files is left there. names: of some; None: all, in the table's order. Raises DataError."""
    columns = _table_of(table)
    wanted = list(columns.column_names) if names is None else list(names)
    for name in wanted:
        if columns.column_names.count(name) != 1:
            known = ", ".join(columns.column_names)
            raise DataError(f"the table has not one column {name}: it has {known}")
    if not wanted or columns.num_rows == 0:
        raise DataError("the table is empty: give at least one column and one row")
    mapped = _mapped_files()
    try:
        return {name: _field_of(name, columns.column(name), mapped) for name in wanted}
    except StorageError as error:
        raise DataError(str(error)) from error


def _table_of(source: object) -> Any:
    """The pyarrow.Table of a source. Neither library is imported here: a source of its type exists only where it is."""
    pyarrow, datasets = sys.modules.get("pyarrow"), sys.modules.get("datasets")
    if pyarrow is not None and isinstance(source, pyarrow.Table):
        return source
    if datasets is not None and isinstance(source, datasets.DatasetDict):
        raise DataError(f"a DatasetDict has several data sets: choose one of {', '.join(source)}")
    if datasets is not None and isinstance(source, datasets.Dataset):
        # Selecting, sorting and shuffling leave the table, and keep the new order beside it.
        if source._indices is not None:
            raise DataError("the rows of the Dataset stand in another order than its table's: call flatten_indices()")
        if source.format["type"] == "custom":
            raise DataError("the rows of the Dataset are those of with_transform, not its table's: make them by map()")
        return source.data.table
    raise DataError(f"a {type(source).__name__} is no table: give a pyarrow.Table or a datasets.Dataset")


def _field_of(name: str, column: Any, mapped: Sequence[_Mapped]) -> ArrowField:
    """The field of a pyarrow.ChunkedArray with rows."""
    flat = [(*_flat(name, batch), len(batch)) for batch in column.chunks if len(batch)]
    shapes, types = {shape for _, shape, _ in flat}, {str(values.type) for values, _, _ in flat}
    if len(shapes) > 1:
        raise DataError(f"column {name} has {_rows_of(min(shapes))} and {_rows_of(max(shapes))}: {_ONE_LENGTH}")
    (shape,), (found,) = shapes, types
    if found == "bool":
        raise DataError(f"column {name} is bool, and Arrow packs eight of them into a byte: cast it to uint8")
    if found not in _DTYPES:
        raise DataError(
            f"column {name} is {found}: give float32, float16, or integers of up to 64 bits (unsigned ones of up to 16)"
        )
    dtype = np.dtype(_DTYPES[found])
    parts = [_part(values, dtype.itemsize, mapped) for values, _, _ in flat]
    return ArrowField(type_of(dtype, shape), sum(rows for _, _, rows in flat), parts)


def _flat(name: str, batch: Any) -> tuple[Any, tuple[int, ...]]:
    """(all numbers of a batch with rows, shape of a row)."""
    shape: list[int] = []
    while True:
        batch = getattr(batch, "storage", batch)  # of an extension type, such as Array2D
        if batch.null_count:
            raise DataError(f"column {name} has missing values: fill them, or leave such rows out")
        if str(batch.type).startswith("fixed_size_list"):
            shape.append(batch.type.list_size)
        elif str(batch.type).startswith(("list<", "large_list<")):
            lengths = batch.value_lengths().to_numpy()
            if lengths.min() != lengths.max():
                raise DataError(
                    f"column {name} has lists of {lengths.min()} to {lengths.max()} elements: {_ONE_LENGTH}"
                )
            shape.append(int(lengths[0]))
        else:
            return batch, tuple(shape)
        if shape[-1] == 0:
            raise DataError(f"column {name} has rows without numbers: leave it out")
        batch = batch.flatten()


def _rows_of(shape: tuple[int, ...]) -> str:
    return f"rows of shape {list(shape)}"


def _part(values: Any, width: int, mapped: Sequence[_Mapped]) -> ArrowPart:
    """The numbers of a primitive array without nulls."""
    buffer = values.buffers()[1]
    first, size = values.offset * width, len(values) * width
    address = buffer.address + first
    for one in mapped:
        if one.begin <= address and address + size <= one.end:
            return ArrowPart(size, one.path, one.offset + address - one.begin)
    return ArrowPart(size, memory=memoryview(buffer).cast("B")[first : first + size])


@dataclass(frozen=True, slots=True)
class _Mapped:
    """Addresses from `begin` to `end` that show a file from byte `offset` on."""

    begin: int
    end: int
    offset: int
    path: Path


def _mapped_files() -> list[_Mapped]:
    """The files that this process maps and that still lie where they were opened. What is found in none of them, on
    other systems than Linux too, is read from memory."""
    # Nobody else knows. A pyarrow.Table has no paths. `Dataset.cache_files` has those of files that the table was made
    # of, and says neither which columns lie in them, nor whether another file lies there now.
    found = []
    for one, inode, is_private in _mappings():
        if is_private:
            continue  # what is written there is not written to the file
        with suppress(OSError):
            if one.path.stat().st_ino == inode:
                found.append(one)
    return found


def was_replaced(address: int, path: Path) -> bool:
    """Whether an address of this process shows a file that has been removed, moved or replaced by another one since it
    was mapped from `path`. On other systems than Linux nobody can tell, and this says no."""
    for one, _, _ in _mappings():
        if one.begin <= address < one.end:
            if str(one.path).endswith(_DELETED):
                return True
            with suppress(OSError):
                return not one.path.samefile(path)
    return False


def _mappings() -> Iterator[tuple[_Mapped, int, bool]]:
    """(mapping of a file, its inode, whether writes to it go to no file)."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for match in filter(None, map(_MAPPING.fullmatch, lines)):
        begin, end, permissions, offset, inode, path = match.groups()
        is_private = permissions[1] == "w" and permissions[3] == "p"
        yield _Mapped(int(begin, 16), int(end, 16), int(offset, 16), Path(path)), int(inode), is_private
