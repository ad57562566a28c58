"""Merkle commitments to tensors, states and data, and the proofs that open them."""

from roundlog.commitments.merkle import PAD, CommitmentError, MerkleTree, depth_of, leaf_hash, node_hash, verify
from roundlog.commitments.tensor_roots import (
    BLOCK_SIZE,
    CHUNK_SIZE,
    BlockTree,
    blocks_of,
    canonical,
    state_root,
    state_tree,
    tensor_bytes,
    tensor_root,
    tensor_tree,
)
