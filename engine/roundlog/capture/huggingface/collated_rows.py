"""The rows that a collator makes of a dataset, as fields of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from roundlog.capture.errors import CaptureError, a_kind
from roundlog.capture.spill_file import SpillFile
from roundlog.data import STORED, Field, FileField
from roundlog.program import DType, FieldType, Stored, TensorType

Collate = Callable[[list[Any]], Any]


def rows_of(dataset: Any, collate: Collate, batch_size: int) -> dict[str, torch.Tensor | Field]:
    """Field name -> all rows, [rows, ...]. They are kept in a file, so that they may be larger than memory; small
    integers, whose dtype no field keeps, in memory.

    Rows are collated in batches of `batch_size`, in order, and each by itself: a collator whose rows depend on their
    neighbours (padding to the longest) or on chance (masking) has no rows that a job could hold: CaptureError."""
    count = _length(dataset)
    columns: dict[str, _Column] = {}
    for first in range(0, count, batch_size):
        numbers = range(first, min(first + batch_size, count))
        alone = [_collated(dataset, collate, [number]) for number in numbers]
        columns = columns or {name: _Column(field) for name, field in alone[0].items()}
        for number, made in zip(numbers, alone, strict=True):
            _require_alike(columns, made, f"row {number}", "row 0")
        told, together = f"rows {numbers[0]} to {numbers[-1]} together", _collated(dataset, collate, numbers)
        _require_alike(columns, together, told, "each alone")
        for name, field in together.items():
            if not _same_bits(field, torch.cat([made[name] for made in alone])):
                raise CaptureError(
                    f"the collator gives other values of {name} for {told} than for each alone, so that it draws at "
                    "random or looks at neighbours: do that once, before the Trainer is made, and keep the result in "
                    "the dataset"
                )
            columns[name].file.append(field)
    return {name: column.source(count) for name, column in columns.items()}


class _Column:
    """The rows of one field, one behind the other."""

    def __init__(self, like: torch.Tensor) -> None:
        self.shape, self.dtype = like.shape[1:], like.dtype
        self.file = SpillFile("the collated rows")

    def source(self, count: int) -> torch.Tensor | Field:
        """All `count` rows, as a task takes them."""
        if self.dtype not in STORED:
            return self.file.read(0, torch.Size((count, *self.shape)), self.dtype)
        kind = TensorType(tuple(self.shape), DType.of(self.dtype))
        return FileField(FieldType(kind, Stored.AS_READ, kind.numel), count, self.file.place, 0, self.file.reader)


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


def _collated(dataset: Any, collate: Collate, rows: Sequence[int]) -> dict[str, torch.Tensor]:
    """Field name -> tensor [rows, ...]. Raises CaptureError for anything else."""
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
                f"the collator gives {a_kind(tensor)} for {field} of {name}: let it give a torch.Tensor, or leave that "
                "field out"
            )
        if tensor.ndim == 0 or len(tensor) != len(rows):
            raise CaptureError(
                f"the collator gives {field} of shape {list(tensor.shape)} for {name}, which is not one entry a row: "
                "use a collator that stacks rows"
            )
    return {str(field): tensor.detach().cpu() for field, tensor in made.items()}


def _require_alike(columns: Mapping[str, _Column], made: Mapping[str, torch.Tensor], which: str, other: str) -> None:
    if odd := sorted(columns.keys() ^ made.keys()):
        raise CaptureError(f"the collator gives {odd[0]} for some rows and not for others ({which}): give it for all")
    for name, field in made.items():
        sizes, wanted = list(field.shape[1:]), list(columns[name].shape)
        if sizes != wanted:
            raise CaptureError(
                f"the collator gives {name} of size {sizes} for {which} and {wanted} for {other}: give all rows one "
                'size, as by tokenizer(..., padding="max_length", truncation=True), or by SFTConfig(max_length=size, '
                "pad_to_multiple_of=size)"
            )
        if field.dtype != columns[name].dtype:
            raise CaptureError(
                f"the collator gives {name} as {field.dtype} for {which} and {columns[name].dtype} for {other}: give "
                "all rows one dtype"
            )


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same; a NaN is equal to itself."""
    return bool(((one == two) | ((one != one) & (two != two))).all())
