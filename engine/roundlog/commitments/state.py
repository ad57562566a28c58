"""State roots and data roots: Merkle roots over tensor roots."""

from collections.abc import Iterable, Sequence

from roundlog.commitments.errors import CommitmentError
from roundlog.commitments.merkle import MerkleTree
from roundlog.commitments.tensors import Tensor, tensor_root


def state_tree(tensors: Iterable[Tensor]) -> MerkleTree:
    """The Merkle tree whose leaf payloads are the tensor roots of all state slots, in program order."""
    return MerkleTree([tensor_root(tensor) for tensor in tensors])


def state_root(tensors: Iterable[Tensor]) -> bytes:
    """The 32-byte commitment to a whole state: parameters, buffers and optimizer slots in program order."""
    return state_tree(tensors).root


def data_root(fields: Sequence[Tensor]) -> bytes:
    """The 32-byte commitment to a dataset: the Merkle root whose leaf payloads are the tensor roots of its fields, in
    program order. How rows stand in a field is said by the program.

    `fields` are tensors of shape [N, ...] with one common N >= 1. Raises CommitmentError if they disagree on N, and as
    `tensor_bytes` does."""
    counts = {int(field.shape[0]) if field.ndim else 0 for field in fields}
    if len(counts) != 1 or 0 in counts:
        raise CommitmentError(f"the fields of a dataset need one common number of rows above 0, not {sorted(counts)}")
    return state_root(fields)
