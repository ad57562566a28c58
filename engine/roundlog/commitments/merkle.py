"""The one Merkle scheme of the project: SHA-256, domain separated, padded to a power of two.

    leaf = SHA-256(0x00 || payload)      node = SHA-256(0x01 || left || right)      PAD = SHA-256(0x02)

The prefixes keep the three kinds of hash input apart, so that no payload can pose as an inner node (RFC
6962, section 2.1) and no payload hashes to PAD. `n` leaves are padded with PAD to 2^depth, depth =
ceil(log2(max(n, 1))), and every proof has exactly `depth` siblings. PAD alone does not bind `n`: a
root is kept with its count (the training spec does so), and `verify` refuses an index that is not below
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from roundlog.kernels.hashing import HASH_SIZE, hash_pieces


class CommitmentError(ValueError):
    """A value that has no commitment, or a position that a tree does not have; the message says which and
    why.
    """


Bytes = bytes | bytearray | memoryview

MAX_DEPTH = 64

_LEAF_PREFIX = sha256(b"\x00")

PAD = sha256(b"\x02").digest()


def leaf_hash(payload: Bytes) -> bytes:
    """The 32-byte hash of a leaf. `payload` is any contiguous bytes-like object; it is not copied."""
    # Copying a primed hash is cheaper than building one, and leaves the payload where it is.
    state = _LEAF_PREFIX.copy()
    state.update(payload)
    return state.digest()


def leaf_hashes(data: Bytes, size: int) -> bytes:
    """The hashes of leaves whose payloads are the pieces of `size` bytes of `data`, one behind the other. The last
    piece may be shorter; no bytes are one empty payload."""
    return hash_pieces(b"\x00", data, size) or leaf_hash(b"")


def node_hash(left: bytes, right: bytes) -> bytes:
    """The 32-byte hash of an inner node over its two 32-byte children."""
    return sha256(b"\x01" + left + right).digest()


def _pad_nodes() -> list[bytes]:
    nodes = [PAD]
    for _ in range(MAX_DEPTH):
        nodes.append(node_hash(nodes[-1], nodes[-1]))
    return nodes


_PAD_NODES = _pad_nodes()
"""_PAD_NODES[h]: root of a subtree of height h in which every leaf is PAD."""


def depth_of(count: int) -> int:
    """Siblings in a proof of a tree with `count` leaves: ceil(log2(max(count, 1)))."""
    return max(count - 1, 0).bit_length()


class MerkleTree:
    """The whole tree over `payloads`, kept so that the children of any node can be revealed in a game.

    Heights count from the leaves: `node(0, i)` is leaf i, `node(depth, 0)` the root. Only nodes above at
    least one real leaf are stored (64 bytes a leaf in all); padding is computed.
    """

    def __init__(self, payloads: Iterable[Bytes]) -> None:
        self._build(b"".join(map(leaf_hash, payloads)))

    @classmethod
    def of_leaf_hashes(cls, hashes: Iterable[bytes]) -> MerkleTree:
        """The tree over payloads, from their leaf hashes alone: 32 bytes each, one or several an item."""
        tree = cls.__new__(cls)
        tree._build(b"".join(hashes))
        return tree

    def _build(self, leaves: bytes) -> None:
        self.count = len(leaves) // HASH_SIZE
        self.depth = depth_of(self.count)
        self._levels = [leaves]
        for height in range(self.depth):
            self._levels.append(level_above(self._levels[-1], height))
        self.root = self.node(self.depth, 0)

    def node(self, height: int, index: int) -> bytes:
        """The 32-byte node `index` (from the left) at `height`; padding nodes included.

        Raises CommitmentError if the tree has no such node.
        """
        if not 0 <= height <= self.depth or not 0 <= index < 1 << (self.depth - height):
            raise CommitmentError(f"a tree of depth {self.depth} has no node {index} at height {height}")
        return node_at(self._levels[height], index, height)

    def proof(self, index: int) -> list[bytes]:
        """The `depth` siblings of leaf `index`, from the leaf upwards. Raises CommitmentError if there is
        no such leaf.
        """
        if not 0 <= index < self.count:
            raise CommitmentError(f"a tree of {self.count} leaves has no leaf {index}")
        return [self.node(height, (index >> height) ^ 1) for height in range(self.depth)]


def node_at(level: bytes, index: int, height: int) -> bytes:
    """A node of a level at a height; of padding where there is no more."""
    return level[index * HASH_SIZE : (index + 1) * HASH_SIZE] or _PAD_NODES[height]


def level_above(level: bytes, height: int) -> bytes:
    """The nodes above those at a height, 32 bytes each; the last one may have padding below it."""
    if len(level) % (2 * HASH_SIZE):
        level += _PAD_NODES[height]
    return hash_pieces(b"\x01", level, 2 * HASH_SIZE)


def verify(root: bytes, payload: Bytes, index: int, count: int, proof: Sequence[bytes]) -> bool:
    """Whether `payload` is leaf `index` of the tree of `count` leaves with this root.

    True only for an index below `count` and a proof of exactly `depth_of(count)` 32-byte siblings, from the
    leaf upwards; bit i of the index says whether the node at height i is a right child. Never raises on
    hostile values.
    """
    if not 0 <= index < count or len(proof) != depth_of(count):
        return False
    if len(root) != HASH_SIZE or any(len(sibling) != HASH_SIZE for sibling in proof):
        return False
    node = leaf_hash(payload)
    for height, sibling in enumerate(proof):
        node = node_hash(sibling, node) if index >> height & 1 else node_hash(node, sibling)
    return node == root
