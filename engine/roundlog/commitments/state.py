"""State roots: Merkle roots over tensor roots."""

from collections.abc import Iterable

from roundlog.commitments.merkle import MerkleTree
from roundlog.commitments.tensors import Tensor, tensor_root


def state_tree(tensors: Iterable[Tensor]) -> MerkleTree:
    """The Merkle tree whose leaf payloads are the tensor roots of all state slots, in program order."""
    return MerkleTree([tensor_root(tensor) for tensor in tensors])


def state_root(tensors: Iterable[Tensor]) -> bytes:
    """The 32-byte commitment to a whole state: parameters, buffers and optimizer slots in program order."""
    return state_tree(tensors).root
