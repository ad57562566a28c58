"""Fields of a data set: rows of numbers, as they are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.program import DType, FieldType, Stored, TensorType

if TYPE_CHECKING:
    from roundlog.data.summary import FieldSummary

_NUMPY: dict[Stored, np.dtype[np.generic]] = {
    Stored.U8: np.dtype("u1"),
    Stored.I8: np.dtype("i1"),
    Stored.I16: np.dtype("<i2"),
    Stored.U16: np.dtype("<u2"),
    Stored.I32: np.dtype("<i4"),
}
_AS_READ: dict[DType, np.dtype[np.generic]] = {
    DType.F32: np.dtype("<f4"),
    DType.I64: np.dtype("<i8"),
    DType.BOOL: np.dtype("?"),
}


def storage_dtype(kind: FieldType) -> np.dtype[np.generic]:
    """NumPy's dtype of a field's stored elements."""
    found: np.dtype[np.generic] = _AS_READ[kind.row.dtype] if kind.stored is Stored.AS_READ else _NUMPY[kind.stored]
    return found


def type_of(dtype: np.dtype[np.generic], shape: tuple[int, ...], stride: int | None = None) -> FieldType:
    """The type of a field whose rows have a shape and are stored in a dtype. stride: elements from a row to the next;
    None: rows stand one behind the other. Raises KeyError for a dtype that no program has."""
    for read, known in _AS_READ.items():
        if dtype == known:
            return FieldType(TensorType(shape, read), Stored.AS_READ, prod(shape) if stride is None else stride)
    stored = next((stored for stored, known in _NUMPY.items() if dtype == known), None)
    if stored is None:
        raise KeyError(dtype)
    return FieldType(TensorType(shape, DType.I64), stored, prod(shape) if stride is None else stride)


class Field(ABC):
    """A field of a data set: `rows` rows of one type. Its *bytes* are its stored elements, little-endian; row i begins
    with element i * stride."""

    def __init__(self, kind: FieldType, rows: int) -> None:
        self.kind = kind
        self.rows = rows
        self.summary: FieldSummary | None = None
        """Summary of all its bytes, once they have been read (`roundlog.data.summarised`)."""

    @abstractmethod
    def read(self, start: int, size: int) -> bytes | memoryview:
        """`size` bytes from byte `start` on, which the field has. Raises StorageError if they cannot be read."""

    @abstractmethod
    def recut(self, kind: FieldType, rows: int) -> Field:
        """The first bytes of this field as rows of another type, of elements that are stored alike. Nothing is
        copied."""

    @property
    def nbytes(self) -> int:
        return self.kind.nbytes(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, ...], as operators see it."""
        return (self.rows, *self.kind.row.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that operators see."""
        return self.kind.row.dtype.torch_dtype

    def __len__(self) -> int:
        return self.rows

    def take(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Some rows, [n, ...], on the CPU. rows: int64[n], each below `self.rows`. out: memory for them, of their shape
        and dtype. Raises StorageError as `parts_of`."""
        result = torch.empty((len(rows), *self.kind.row.shape), dtype=self.dtype) if out is None else out
        into, stored = result.numpy().reshape(len(rows), self.kind.row.numel), storage_dtype(self.kind)
        step, size = self.kind.stride * stored.itemsize, self.kind.row.numel * stored.itemsize
        starts = [row * step for row in rows.tolist()]
        for place, data in enumerate(self.parts_of(starts, size)):
            into[place] = np.frombuffer(data, stored)
        return result

    def parts_of(self, starts: Sequence[int], size: int) -> Iterable[bytes | memoryview]:
        """`size` bytes from each of `starts` on, in that order. Raises as `read`."""
        return (self.read(start, size) for start in starts)

    def part(self, start: int, size: int) -> bytes | memoryview:
        """`size` bytes from byte `start` on. Raises as `parts_of`."""
        (found,) = self.parts_of([start], size)
        return found

    def __getitem__(self, index: int | slice | torch.Tensor) -> torch.Tensor:
        """A row, or some rows, on the CPU."""
        rows = torch.arange(self.rows)[index]
        return self.take(rows.reshape(1))[0] if rows.ndim == 0 else self.take(rows)


class HeldField(Field):
    """A field in memory."""

    def __init__(self, kind: FieldType, rows: int, elements: NDArray[np.generic], *, is_own: bool = False) -> None:
        """elements: all of it, flat and contiguous, in its storage dtype. is_own: nobody else has this memory."""
        super().__init__(kind, rows)
        self.is_own = is_own
        assert elements.ndim == 1 and elements.nbytes == self.nbytes and elements.dtype == storage_dtype(kind)
        self._elements = elements

    def read(self, start: int, size: int) -> memoryview:
        return self._bytes[start : start + size].data

    def recut(self, kind: FieldType, rows: int) -> HeldField:
        return HeldField(kind, rows, self._elements[: kind.elements(rows)], is_own=self.is_own)

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return self._elements.view(np.uint8)

    @cached_property
    def _whole(self) -> torch.Tensor | None:
        """[rows, ...] without a copy, if its rows are stored as they are read and one behind the other."""
        if self.kind.stored is not Stored.AS_READ or self.kind.stride != self.kind.row.numel:
            return None
        return torch.from_numpy(self._elements).view(self.shape)

    def take(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if self._whole is None:
            return super().take(rows, out)
        return torch.index_select(self._whole, 0, rows, out=out)


def held(tensor: torch.Tensor) -> HeldField:
    """A field of a tensor [rows, ...] of float32, int64 or bool, of which a contiguous one on the CPU is not copied.
    Raises ProgramError for another dtype."""
    plain = tensor.detach().cpu().resolve_neg().contiguous()
    kind = TensorType(tuple(plain.shape[1:]), DType.of(plain.dtype))
    return HeldField(FieldType(kind, Stored.AS_READ, kind.numel), len(plain), plain.reshape(-1).numpy())
