"""The program root: the Merkle root over the encoded descriptors of a program's operators."""

from __future__ import annotations

from roundlog.commitments import MerkleTree
from roundlog.descriptors.describe import describe
from roundlog.descriptors.encoding import encode_descriptor
from roundlog.program import Program


def program_tree(program: Program) -> MerkleTree:
    """The tree whose leaf i has the encoded descriptor of operator i as payload. The program has to have passed
    `roundlog.operators.check`. Raises DescriptorError, naming the operator that no contract could compute."""
    return MerkleTree(encode_descriptor(describe(program, index)) for index in range(len(program.nodes)))


def program_root(program: Program) -> bytes:
    """32 bytes. Arguments and errors as `program_tree`."""
    return program_tree(program).root
