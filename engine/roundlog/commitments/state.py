"""State roots over tensor roots, and the data root over rows."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from roundlog.commitments.errors import CommitmentError
from roundlog.commitments.merkle import MerkleTree, leaf_hash, leaf_hashes
from roundlog.commitments.tensors import Tensor, tensor_bytes, tensor_root

_ROW_BLOCK_BYTES = 1 << 22


def state_tree(tensors: Iterable[Tensor]) -> MerkleTree:
    """The Merkle tree whose leaf payloads are the tensor roots of all state slots, in program order."""
    return MerkleTree([tensor_root(tensor) for tensor in tensors])


def state_root(tensors: Iterable[Tensor]) -> bytes:
    """The 32-byte commitment to a whole state: parameters, buffers and optimizer slots in program order."""
    return state_tree(tensors).root


def data_tree(fields: Sequence[Tensor]) -> MerkleTree:
    """The Merkle tree over dataset rows: leaf payload i = the bytes of row i of every field, in program
    order.

    `fields` are tensors of shape [N, ...] with one common N >= 1. Raises CommitmentError if they disagree
    on N, and as `tensor_bytes` does.
    """
    return MerkleTree.of_leaf_hashes(_rows(fields))


def data_root(fields: Sequence[Tensor]) -> bytes:
    """The 32-byte commitment to a dataset. Arguments and errors as `data_tree`."""
    return data_tree(fields).root


def _rows(fields: Sequence[Tensor]) -> Iterator[bytes]:
    """The leaves' hashes, many at a time."""
    counts = {int(field.shape[0]) if field.ndim else 0 for field in fields}
    if len(counts) != 1 or 0 in counts:
        raise CommitmentError(f"the fields of a dataset need one common number of rows above 0, not {sorted(counts)}")
    (count,) = counts
    columns = [np.frombuffer(tensor_bytes(field), np.uint8).reshape(count, -1) for field in fields]
    width = sum(column.shape[1] for column in columns)
    # Fields are interleaved a block of rows at a time, so that the dataset is never held twice.
    block = max(1, _ROW_BLOCK_BYTES // max(width, 1))
    for start in range(0, count, block):
        rows = np.concatenate([column[start : start + block] for column in columns], axis=1)
        yield leaf_hashes(np.ascontiguousarray(rows).reshape(-1).data, width) if width else leaf_hash(b"") * len(rows)
