"""Fields of a data set: rows of numbers, as they are stored, and summaries of those that have been read once: the
tree, down to its 32 bytes for each block, and whether there is a NaN."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.commitments import BLOCK_SIZE, BlockTree, CommitmentError, MerkleTree
from roundlog.number_format import BFLOAT16
from roundlog.program import DType, FieldType, Stored, TensorType, as_array


class DataError(ValueError):
    """Something that cannot be a field; the message says why, and what to give."""


_NUMPY: dict[Stored, np.dtype[np.generic]] = {
    Stored.U8: np.dtype("u1"),
    Stored.I8: np.dtype("i1"),
    Stored.I16: np.dtype("<i2"),
    Stored.U16: np.dtype("<u2"),
    Stored.I32: np.dtype("<i4"),
}
_AS_READ: dict[DType, np.dtype[np.generic]] = {
    DType.F32: np.dtype("<f4"),
    DType.F16: np.dtype("<f2"),
    DType.I64: np.dtype("<i8"),
    DType.BOOL: np.dtype("?"),
}


_WORDS: np.dtype[np.generic] = np.dtype("<i2")
"""NumPy has no BF16: arrays hold the encodings of its numbers, as `as_array` gives them."""


def storage_dtype(kind: FieldType) -> np.dtype[np.generic]:
    """NumPy's dtype of a field's stored elements; of BF16, that of their encodings."""
    found = _AS_READ.get(kind.row.dtype, _WORDS) if kind.stored is Stored.AS_READ else _NUMPY[kind.stored]
    return found


def has_nan(kind: FieldType, data: bytes | memoryview) -> bool:
    """Whether some stored elements of a field have a NaN among them. data: theirs, at least one."""
    numbers = np.frombuffer(data, storage_dtype(kind))
    if kind.row.dtype is DType.BF16:
        return bool((numbers & (BFLOAT16.sign - 1)).max() > BFLOAT16.infinity)
    # The maximum of anything with a NaN is NaN: one pass, and no mask.
    return numbers.dtype.kind == "f" and bool(np.isnan(numbers.max()))


def type_of(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> FieldType:
    """The type of a field whose rows have a shape, are stored in a dtype, and stand one behind the other. Raises
    KeyError for a dtype that no program has."""
    for read, known in _AS_READ.items():
        if dtype == known:
            return FieldType(TensorType(shape, read), Stored.AS_READ, prod(shape))
    stored = next((stored for stored, known in _NUMPY.items() if dtype == known), None)
    if stored is None:
        raise KeyError(dtype)
    return FieldType(TensorType(shape, DType.I64), stored, prod(shape))


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
        into, stored = as_array(result).reshape(len(rows), self.kind.row.numel), storage_dtype(self.kind)
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
        numbers = self._elements
        if self.dtype == torch.bfloat16:
            return torch.from_numpy(numbers).view(torch.bfloat16).view(self.shape)
        return torch.from_numpy(numbers).view(self.shape)

    def take(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if self._whole is None:
            return super().take(rows, out)
        return torch.index_select(self._whole, 0, rows, out=out)


def as_field(tensor: torch.Tensor) -> HeldField:
    """A field of a tensor [rows, ...] of a dtype that programs have. A contiguous one on the CPU is not copied. Raises
    ProgramError for another dtype."""
    plain = tensor.detach().cpu().resolve_neg().contiguous()
    kind = TensorType(tuple(plain.shape[1:]), DType.of(plain.dtype))
    return HeldField(FieldType(kind, Stored.AS_READ, kind.numel), len(plain), as_array(plain.reshape(-1)))


_PIECE = 1024 * BLOCK_SIZE
"""Bytes that are read at a time."""


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """The tree over a field's chunks, and whether one of its numbers is NaN."""

    tree: BlockTree
    has_nan: bool


def summarised(field: Field) -> FieldSummary:
    """The summary of a field, from its bytes, in memory that does not grow with them. Read once, and kept with the
    field. Raises CommitmentError for a bool that is neither 0 nor 1, StorageError if it cannot be read."""
    if field.summary is None:
        pieces = _Pieces(field)
        field.summary = FieldSummary(BlockTree.over(field.nbytes, pieces), pieces.has_nan)
    return field.summary


def is_unchanged(field: Field) -> bool:
    """Whether a summarised field that lies in memory still is what was summarised. The owner of the memory may have
    written to it. True of a field that is checked whenever it is used."""
    if not isinstance(field, HeldField) or field.is_own or field.summary is None:
        return True
    return BlockTree.over(field.nbytes, _Pieces(field)).root == field.summary.tree.root


class _Pieces(Iterable[bytes | memoryview]):
    """The bytes of a field, a piece after the other, looked at as they pass."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self.has_nan = False

    def __iter__(self) -> Iterator[bytes | memoryview]:
        is_bool = self._field.kind.row.dtype is DType.BOOL
        for start in range(0, self._field.nbytes, _PIECE):
            piece = self._field.read(start, min(_PIECE, self._field.nbytes - start))
            if is_bool and np.frombuffer(piece, np.uint8).max() > 1:
                raise CommitmentError("a field of bools with a byte other than 0 and 1 has no root")
            self.has_nan = self.has_nan or (not is_bool and has_nan(self._field.kind, piece))
            yield piece


def data_tree(fields: Iterable[Field]) -> MerkleTree:
    """The Merkle tree whose leaf payloads are the tensor roots of a data set's fields, in program order; its root is
    the data root. Raises as `summarised`."""
    return MerkleTree([summarised(field).tree.root for field in fields])
