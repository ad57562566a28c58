"""Sources of the fields of a task: tensors, NumPy arrays and memory maps, safetensors files, and streams that are cut
into windows (Arrow tables: `roundlog.data.arrow`). Nothing that lies in a file is copied."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.data.arrow import was_replaced
from roundlog.data.field import DataError, Field, HeldField, as_field, type_of
from roundlog.data.files import FileField, layout_named
from roundlog.json_text import parse_json
from roundlog.program import FieldType, ProgramError, TensorType
from roundlog.program.program_text import MAX_ELEMENTS
from roundlog.storage import StorageError, open_regular

# Whether the numbers of a tensor are in memory. PyTorch does not look before it reads them: a process that touches
# memory which was given back ends by a signal, or reads what is not the tensor's. And memory may hold something else
# than the tensor's numbers: a lazy negative or conjugate has those of another tensor, a lazy zero has no memory at all.


def absence(tensor: torch.Tensor) -> str | None:
    """Why the numbers of a plain tensor are nowhere, in one clause; None if they are in memory."""
    if tensor.is_meta:
        return "is on the meta device, where tensors have no numbers"
    if not tensor.numel():
        return None
    if tensor._is_zerotensor():
        return "is a lazy zero of PyTorch's, which has no memory"
    if tensor.untyped_storage().nbytes() < (tensor.storage_offset() + reach(tensor) + 1) * tensor.element_size():
        return "has given its memory back (.resize_ of its storage), as FSDP does between steps"
    return None


def is_lazy_view(tensor: torch.Tensor) -> bool:
    """Whether the memory of a plain tensor does not hold its numbers: PyTorch's efficient zeros, and what `.conj()` and
    `.imag` of it give."""
    return tensor._is_zerotensor() or tensor.is_neg() or tensor.is_conj()


def materialized(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy of one whose memory does not hold its numbers."""
    return tensor.clone() if is_lazy_view(tensor) else tensor


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a plain tensor. That of zeros, as optimizers begin with, takes memory only where it is written into."""
    flat = materialized(tensor).contiguous().view(-1).view(torch.uint8)
    if not flat.numel() or bool(flat.any()):
        return tensor.clone()
    return torch.from_numpy(np.zeros(flat.numel(), np.uint8)).view(tensor.dtype).view(tensor.shape)


def reach(tensor: torch.Tensor) -> int:
    """Places in memory from the first element of a plain tensor, which has some, to its last one."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


_DTYPES = "give float32, bfloat16, float16, bool, or integers of up to 64 bits (unsigned ones of up to 16)"
STORED = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
"""Dtypes of states and data in a program."""

NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)
"""Dtypes of tensors that a field holds as int64."""

_MOST_HEADER = 100_000_000  # bytes, as the library has it


def widened(field: torch.Tensor) -> torch.Tensor:
    """A field as programs hold it: small integers as int64."""
    return field.to(torch.int64) if field.dtype in NARROW else field


def field_of(name: str, source: object) -> Field:
    """The field that a task means by a tensor or array [rows, ...], or a field itself. Raises DataError."""
    if isinstance(source, Field):
        return source
    if isinstance(source, torch.Tensor):
        if source.layout == torch.strided and not source.is_nested:
            source = materialized(source)
            if why := absence(source):
                raise DataError(f"dataset field {name} {why}: give a tensor that has its values")
        try:
            return as_field(widened(source))
        except ProgramError as error:
            raise DataError(f"dataset field {name} is {source.dtype}: {_DTYPES}") from error
    if isinstance(source, np.ndarray):
        return _of_array(name, source)
    raise DataError(
        f"dataset field {name} is a {type(source).__name__}: make it a torch.Tensor, a NumPy array or memory map, or "
        "what roundlog.windows, safetensors_fields or arrow_fields gives"
    )


def fields_of(dataset: Mapping[str, object]) -> dict[str, Field]:
    """The fields of a data set, in its order. Raises DataError."""
    return {name: field_of(name, source) for name, source in dataset.items()}


def _of_array(name: str, array: NDArray[np.generic]) -> Field:
    if array.ndim == 0:
        raise DataError(f"dataset field {name} is empty: give at least one row")
    try:
        kind = type_of(array.dtype, tuple(array.shape[1:]))
    except KeyError as error:
        raise DataError(f"dataset field {name} is {array.dtype}: {_DTYPES}") from error
    if not array.flags.c_contiguous:
        raise DataError(f"dataset field {name} is not contiguous: give all of it, or np.ascontiguousarray of it")
    place = _place_in_file(array)
    if place is not None:
        return FileField(kind, len(array), *place)
    return HeldField(kind, len(array), array.reshape(-1))


def _place_in_file(array: NDArray[np.generic]) -> tuple[Path, int] | None:
    """(file, first byte) of a memory map, or of a contiguous part of one. None for what is in memory, or was perhaps
    changed there and not in the file, and for a file that is no longer the one at its path."""
    whole: Any = array
    while isinstance(whole, np.ndarray) and not isinstance(getattr(whole, "_mmap", None), mmap.mmap):
        whole = whole.base
    if not isinstance(whole, np.memmap) or whole.filename is None or whole.mode == "c":
        return None
    if was_replaced(array.ctypes.data, Path(whole.filename)):
        return None
    if whole.mode != "r":
        whole.flush()
    mapped = np.frombuffer(whole._mmap, np.uint8)  # type: ignore[attr-defined]
    begin = whole.offset - whole.offset % mmap.ALLOCATIONGRANULARITY
    return Path(whole.filename), begin + array.ctypes.data - mapped.ctypes.data


def windows(source: object, *, window: int, stride: int) -> Field:
    """A field whose rows are windows of a stream of numbers (tokens, samples): row i is the `window` elements from i *
    stride on. Windows may overlap, or leave gaps; nothing is copied, and what is committed to is the stream.

    source: what a field may be, with one axis. Elements after the last whole window are left out. Raises DataError."""
    stream = field_of("stream", source)
    if len(stream.shape) != 1 or stream.kind.stride != 1:
        raise DataError(f"a stream of shape {list(stream.shape)} cannot be cut into windows: give one axis of numbers")
    for name, number in (("window", window), ("stride", stride)):
        if type(number) is not int or not 1 <= number <= MAX_ELEMENTS:
            raise DataError(f"the {name} of a stream is {number!r}: give a whole number from 1 to 2^40")
    if stream.rows < window:
        raise DataError(f"a stream of {stream.rows} elements has no window of {window}: choose a smaller one")
    rows = (stream.rows - window) // stride + 1
    row = TensorType((window,), stream.kind.row.dtype)
    return stream.recut(FieldType(row, stream.kind.stored, stride), rows)


def safetensors_fields(path: str | Path, names: Sequence[str] | None = None) -> dict[str, Field]:
    """The tensors [rows, ...] of a safetensors file of one's own, by name, left in the file. names: of some; None: all,
    in the order of the file. Raises DataError."""
    path = Path(path)
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MOST_HEADER:
                raise DataError(f"{path} is no safetensors file: its header would have {length} bytes")
            header = _header(path, file.read(length))
        if not isinstance(header, dict):
            raise DataError(f"{path} is no safetensors file: its header is no JSON object")
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        fields: dict[str, Field] = {}
        for name in entries if names is None else names:
            if name not in entries:
                raise DataError(f"{path} has no tensor {name!r}: look at its names")
            kind, rows, start = _tensor_of(f"tensor {name} of {path}", entries[name])
            fields[name] = FileField(kind, rows, path, 8 + length + start)
        return fields
    except (OSError, StorageError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _header(path: Path, text: bytes) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{path} is no safetensors file: its header {error}") from error


def _tensor_of(what: str, entry: object) -> tuple[FieldType, int, int]:
    """(type, rows, first byte after the header) that an entry of a safetensors file's header says."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if all(
            type(number) is int and number >= 0 for number in (*shape, begin, end)
        ):
            pass
        case _:
            raise DataError(f"{what} has no dtype, shape and place as the format says: write the file again")
    layout = layout_named(dtype)
    if layout is None:
        raise DataError(f"{what} is {dtype}: {_DTYPES}")
    if not shape:
        raise DataError(f"{what} is a single number: give one of tensors with rows")
    read, stored = layout
    kind = FieldType(TensorType(tuple(shape[1:]), read), stored, prod(shape[1:]))
    if end - begin != kind.nbytes(shape[0]):
        raise DataError(f"{what} has {end - begin} bytes where its shape needs {kind.nbytes(shape[0])}: write it again")
    return kind, shape[0], begin


def micro_batches(batch: Mapping[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    """The `count` equal parts of a batch, in order."""
    if count == 1:
        return [dict(batch)]
    rows = len(next(iter(batch.values()))) // count
    return [{name: field[i * rows : (i + 1) * rows] for name, field in batch.items()} for i in range(count)]
