"""Summaries of fields that have been read once: the tree, of which 32 bytes a block are kept, and whether there is a
NaN."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from roundlog.commitments import BLOCK_SIZE, BlockTree, CommitmentError, MerkleTree
from roundlog.data.field import Field, HeldField, storage_dtype

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
    """Whether a summarised field that lies in memory still is what was summarised. Whoever gave the memory may have
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
        dtype = storage_dtype(self._field.kind)
        for start in range(0, self._field.nbytes, _PIECE):
            piece = self._field.read(start, min(_PIECE, self._field.nbytes - start))
            numbers = np.frombuffer(piece, np.uint8 if dtype.kind == "b" else dtype)
            if dtype.kind == "b" and numbers.max() > 1:
                raise CommitmentError("a field of bools with a byte other than 0 and 1 has no root")
            # The maximum of anything with a NaN is NaN: one pass, and no mask.
            self.has_nan = self.has_nan or (dtype.kind == "f" and bool(np.isnan(numbers.max())))
            yield piece


def data_tree(fields: Iterable[Field]) -> MerkleTree:
    """The Merkle tree whose leaf payloads are the tensor roots of a data set's fields, in program order; its root is
    the data root. Raises as `summarised`."""
    return MerkleTree([summarised(field).tree.root for field in fields])
