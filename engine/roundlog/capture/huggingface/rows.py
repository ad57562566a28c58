"""The rows of a `Trainer`'s data: what its collator makes of each row of its dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from roundlog.capture.errors import CaptureError, a_kind
from roundlog.capture.spill_file import SpillFile
from roundlog.capture.task import STORED
from roundlog.data import Field, FileField
from roundlog.program import DType, FieldType, Stored, TensorType

_FIXED = (
    'give all rows one size, as by tokenizer(..., padding="max_length", truncation=True), or by '
    "SFTConfig(max_length=size, pad_to_multiple_of=size)"
)


def rows_of(dataset: Any, collate: Callable[[list[Any]], Any], batch_size: int) -> dict[str, torch.Tensor | Field]:
    """Field name -> all rows, [rows, ...], each collated by itself. They are kept in a file, so that they may be larger
    than memory; small integers, whose dtype no field keeps, in memory.

    All rows are collated again in batches of `batch_size`, in order: a collator whose rows depend on their neighbours
    (padding to the longest) or on chance (masking) has no rows that a job could hold. Raises CaptureError."""
    count = _length(dataset)
    columns: dict[str, _Column] = {}
    for row in range(count):
        made = _collated(dataset, collate, [row])
        if not columns:
            columns = {name: _Column(field) for name, field in made.items()}
        _require_alike(columns, made, f"row {row}", "row 0")
        for name, field in made.items():
            columns[name].append(field)
    for first in range(0, count, batch_size):
        several = range(first, min(first + batch_size, count))
        made = _collated(dataset, collate, several)
        _require_alike(columns, made, f"rows {several[0]} to {several[-1]} together", "each alone")
        for name, field in made.items():
            if not _same_bits(field, columns[name].rows(several)):
                raise CaptureError(
                    f"the collator gives other values of {name} for rows {several[0]} to {several[-1]} together than "
                    "for each alone, so that it draws at random or looks at neighbours: do that once, before the "
                    "Trainer is made, and keep the result in the dataset"
                )
    return {name: column.source(count) for name, column in columns.items()}


class _Column:
    """The rows of one field, one behind the other."""

    def __init__(self, like: torch.Tensor) -> None:
        self.shape, self.dtype = like.shape[1:], like.dtype
        self._file = SpillFile("the collated rows")

    def append(self, rows: torch.Tensor) -> None:
        """rows: [n, ...], of the shape and dtype of the first."""
        self._file.append(rows)

    def rows(self, which: range) -> torch.Tensor:
        """[n, ...]: consecutive rows, of those that were appended."""
        size = self.shape.numel() * self.dtype.itemsize
        return self._file.read(which.start * size, torch.Size((len(which), *self.shape)), self.dtype)

    def source(self, count: int) -> torch.Tensor | Field:
        """All `count` rows, as a task takes them."""
        if self.dtype not in STORED:
            return self.rows(range(count))
        kind = TensorType(tuple(self.shape), DType.of(self.dtype))
        field = FieldType(kind, Stored.AS_READ, kind.numel)
        return FileField(field, count, self._file.place, 0, self._file.reader)


def _length(dataset: Any) -> int:
    try:
        count = len(dataset)
    except TypeError:
        raise CaptureError(
            f"the train_dataset, {a_kind(dataset)}, has no length: give one with len() and rows by number"
        ) from None
    if not count:
        raise CaptureError("the train_dataset is empty: give at least one row")
    return count


def _collated(dataset: Any, collate: Callable[[list[Any]], Any], rows: Sequence[int]) -> dict[str, torch.Tensor]:
    name = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
    try:
        made = collate([dataset[row] for row in rows])
    except Exception as error:
        raise CaptureError(
            f"the data fails at {name} with {type(error).__name__} ({error}): correct the dataset or the collator"
        ) from error
    if not isinstance(made, Mapping) or not made:
        raise CaptureError(
            f"the collator gives {a_kind(made)} for {name}: let it give a mapping of field names to tensors"
        )
    for field, tensor in made.items():
        if not isinstance(tensor, torch.Tensor):
            raise CaptureError(
                f"the collator gives {a_kind(tensor)} for {field} of {name}: let it give a torch.Tensor, or "
                "leave that field out"
            )
        if tensor.ndim == 0 or len(tensor) != len(rows):
            raise CaptureError(
                f"the collator gives {field} of shape {list(tensor.shape)} for {name}, which is not one entry a row: "
                "use a collator that stacks rows"
            )
    return {str(field): tensor.detach().cpu() for field, tensor in made.items()}


def _require_alike(columns: Mapping[str, _Column], made: Mapping[str, torch.Tensor], which: str, other: str) -> None:
    if columns.keys() != made.keys():
        odd = sorted(columns.keys() ^ made.keys())[0]
        raise CaptureError(f"the collator gives {odd} for some rows and not for others ({which}): give it for all")
    for name, field in made.items():
        sizes, wanted = list(field.shape[1:]), list(columns[name].shape)
        if sizes != wanted:
            raise CaptureError(
                f"the collator gives {name} of size {sizes} for {which} and {wanted} for {other}: {_FIXED}"
            )
        if field.dtype != columns[name].dtype:
            raise CaptureError(
                f"the collator gives {name} as {field.dtype} for {which} and {columns[name].dtype} for {other}: give "
                "all rows one dtype"
            )


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same; a NaN is equal to itself."""
    both = ((one == two) | ((one != one) & (two != two))) if one.is_floating_point() else one == two
    return bool(both.all())
