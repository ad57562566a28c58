"""The program root: a Merkle root over operator descriptors (design, section 3)."""

from roundlog.commitments.merkle import MerkleTree
from roundlog.program.model import Program
from roundlog.program.text import descriptor


def program_root(program: Program) -> bytes:
    """32 bytes; leaf i is the canonical descriptor of operator i."""
    return MerkleTree(descriptor(node) for node in program.nodes).root
