"""Columns of Arrow tables as fields, read where the tables have them: in memory, or in files that they map.

A column is stored in batches. Each has its numbers one behind the other
(https://arrow.apache.org/docs/format/Columnar.html). A field of it reads across them."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from roundlog.data.field import DataError, Field, type_of
from roundlog.data.files import StoredField, changed_at
from roundlog.program import FieldType
from roundlog.storage import StorageError

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


class ArrowField(StoredField):
    """A field whose bytes come in parts, of memory or of files that are mapped there."""

    def __init__(self, kind: FieldType, rows: int, parts: Sequence[bytes | memoryview]) -> None:
        """parts: at least the field's bytes."""
        super().__init__(kind, rows)
        self.parts = [part for part in parts if len(part)]
        self._starts = [0, *accumulate(map(len, self.parts))]
        assert self._starts[-1] >= self.nbytes

    def read(self, start: int, size: int) -> bytes:
        pieces: list[bytes | memoryview] = []
        number = bisect_right(self._starts, start) - 1
        while size:
            skipped = start - self._starts[number]
            pieces.append(self.parts[number][skipped : skipped + size])
            start, size, number = start + len(pieces[-1]), size - len(pieces[-1]), number + 1
        # A copy: whoever writes to the file that is mapped changes nothing that was checked.
        return b"".join(pieces)

    def changed(self, start: int) -> StorageError:
        return changed_at(Path("an Arrow table"), start)

    def recut(self, kind: FieldType, rows: int) -> ArrowField:
        return ArrowField(kind, rows, self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowField, (self.kind, self.rows, list(map(bytes, self.parts)))


def arrow_fields(table: object, names: Sequence[str] | None = None) -> dict[str, Field]:
    """The columns of a `pyarrow.Table` or of a `datasets.Dataset` of Hugging Face, by name: float32, float16, or
    integers of up to 64 bits (unsigned ones of up to 16), or lists of them that are equally long in all rows. Nothing
    is copied. names: of some; None: all, in the table's order. Raises DataError."""
    columns = _table_of(table)
    wanted = list(columns.column_names) if names is None else list(names)
    for name in wanted:
        if columns.column_names.count(name) != 1:
            known = ", ".join(columns.column_names)
            raise DataError(f"the table has not one column {name}: it has {known}")
    if not wanted or columns.num_rows == 0:
        raise DataError("the table is empty: give at least one column and one row")
    return {name: _field_of(name, columns.column(name)) for name in wanted}


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


def _field_of(name: str, column: Any) -> ArrowField:
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
    parts = [_part(values, dtype.itemsize) for values, _, _ in flat]
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


def _part(values: Any, width: int) -> memoryview:
    """The numbers of a primitive array without nulls, of `width` bytes each."""
    first, size = values.offset * width, len(values) * width
    return memoryview(values.buffers()[1]).cast("B")[first : first + size]
