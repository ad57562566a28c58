"""Merkle commitments to tensors, states and data, and the proofs that open them."""

from roundlog.commitments.errors import CommitmentError
from roundlog.commitments.merkle import PAD, MerkleTree, depth_of, leaf_hash, node_hash, verify
from roundlog.commitments.state import data_root, state_root, state_tree
from roundlog.commitments.tensors import CHUNK_SIZE, canonical, tensor_bytes, tensor_chunk, tensor_root, tensor_tree

__all__ = [
    "CHUNK_SIZE",
    "PAD",
    "CommitmentError",
    "MerkleTree",
    "canonical",
    "data_root",
    "depth_of",
    "leaf_hash",
    "node_hash",
    "state_root",
    "state_tree",
    "tensor_bytes",
    "tensor_chunk",
    "tensor_root",
    "tensor_tree",
    "verify",
]
