"""What a party holds at one level of a game: the payloads that it believes in, and the tree over them."""

from __future__ import annotations

from collections.abc import Sequence

from roundlog.commitments import MerkleTree

from tiebreak.chain.records import NO_CHILDREN, Children, LeafOpening, NextRoot

Place = tuple[int, ...]
"""Where a tree hangs: the disputed leaf of every level above it. The tree at () is the claim itself, the one at (i,)
is over the steps of interval i; a deeper level has a longer place and nothing else that is new.
"""


class Leaves:
    """The payloads (32 bytes each) of one tree and their Merkle tree.

    Raises ValueError if there are none: every tree of a game has a leaf.
    """

    def __init__(self, payloads: Sequence[bytes]) -> None:
        if not payloads:
            raise ValueError("a tree without leaves cannot be disputed: give at least one payload")
        self.payloads = tuple(payloads)
        self._tree = MerkleTree(self.payloads)

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def root(self) -> bytes:
        return self._tree.root

    def children(self, height: int, index: int) -> Children:
        """The children of node `index` (from the left) at `height`; none at height 0."""
        if height == 0:
            return NO_CHILDREN
        left = self._tree.node(height - 1, 2 * index)
        return Children(left=left, right=self._tree.node(height - 1, 2 * index + 1))

    def open(self, index: int, agreed_before: bytes) -> LeafOpening:
        """The opening of leaf `index`. `agreed_before` stands before leaf 0."""
        if index == 0:
            return LeafOpening(payload=self.payloads[0], agreed=agreed_before, agreed_proof=())
        proof = tuple(self._tree.proof(index - 1))
        return LeafOpening(payload=self.payloads[index], agreed=self.payloads[index - 1], agreed_proof=proof)

    def as_next_root(self) -> NextRoot:
        """The root, tied to the level above by the proof of its last leaf."""
        return NextRoot(root=self.root, last_leaf_proof=tuple(self._tree.proof(len(self) - 1)))
