"""Sources of the fields of a task: tensors, NumPy arrays and memory maps, and streams that are cut into windows.
Nothing that lies in a file is copied."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.data.field import DataError, Field, HeldField, as_field, type_of
from roundlog.data.files import FileField
from roundlog.program import FieldType, ProgramError, TensorType
from roundlog.program.program_text import MAX_ELEMENTS

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

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{4} [0-9a-f]+ \S+ \d+\s+(/.*)")
"""A line of /proc/self/maps, see proc(5): begin, end, path, to which " (deleted)" is added once nothing else has it."""


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
        "what roundlog.windows gives"
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
    if _was_replaced(array.ctypes.data, Path(whole.filename)):
        return None
    if whole.mode != "r":
        whole.flush()
    mapped = np.frombuffer(whole._mmap, np.uint8)  # type: ignore[attr-defined]
    begin = whole.offset - whole.offset % mmap.ALLOCATIONGRANULARITY
    return Path(whole.filename), begin + array.ctypes.data - mapped.ctypes.data


def _was_replaced(address: int, path: Path) -> bool:
    """Whether an address of this process shows a file that has been removed, moved or replaced by another one since it
    was mapped from `path`. On other systems than Linux nobody can tell, and this says no."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    for match in filter(None, map(_MAPPING.fullmatch, lines)):
        begin, end, mapped = match.groups()
        if int(begin, 16) <= address < int(end, 16):
            with suppress(OSError):
                return not Path(mapped).samefile(path)
            return True
    return False


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


def micro_batches(batch: Mapping[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    """The `count` equal parts of a batch, in order."""
    if count == 1:
        return [dict(batch)]
    rows = len(next(iter(batch.values()))) // count
    return [{name: field[i * rows : (i + 1) * rows] for name, field in batch.items()} for i in range(count)]
