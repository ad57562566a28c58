"""Trees over long tensors that keep only the roots of blocks."""

from collections.abc import Callable, Iterable, Sequence

from roundlog.commitments.merkle import PAD, Bytes, CommitmentError, depth_of, leaf_hashes, node_hash
from roundlog.commitments.tensor_roots import CHUNK_SIZE
from roundlog.kernels.hashing import HASH_SIZE, hash_pieces

BLOCK_HEIGHT = 4
BLOCK_SIZE = CHUNK_SIZE << BLOCK_HEIGHT
"""Bytes of a block: 16 KiB, 16 chunks. A root takes a 512th of its block, and few bytes beside a row are read to
check it."""

_NODE = b"\x01"


class BlockTree:
    """The tree over the chunks of a tensor (`tensor_tree`), as the roots of its blocks: the nodes at `BLOCK_HEIGHT`. 20
    GB have 40 MB of them. What lies below a block's root is computed again from the block's bytes.

    A tensor of at most one block has a tree of its own depth, whose root is its only block's."""

    def __init__(self, size: int, roots: bytes) -> None:
        """size: bytes of the tensor. roots: of all its blocks, 32 bytes each. Raises CommitmentError for another number
        of them."""
        if len(roots) != blocks_of(size) * HASH_SIZE:
            raise CommitmentError(f"a tensor of {size} bytes has {blocks_of(size)} blocks, not {len(roots) / 32:g}")
        self.size = size
        self.roots = roots
        self.count = max(1, -(-size // CHUNK_SIZE))
        self._height = min(depth_of(self.count), BLOCK_HEIGHT)
        self._above = _levels(roots, self._height)

    @classmethod
    def over(cls, size: int, pieces: Iterable[Bytes]) -> "BlockTree":
        """The tree of a tensor whose bytes come in pieces, of which all but the last are whole blocks. Raises
        CommitmentError if they are not `size` bytes."""
        roots, seen = bytearray(), 0
        for piece in pieces:
            if seen % BLOCK_SIZE:
                raise CommitmentError("a piece ends inside of a block")
            roots += block_roots(piece, size)
            seen += len(piece)
        if seen != size:
            raise CommitmentError(f"a tensor of {size} bytes has {seen}")
        return cls(size, bytes(roots) if size else block_roots(b"", 0))

    @property
    def root(self) -> bytes:
        """The tensor root."""
        return self._above[-1]

    def block(self, chunk: int) -> int:
        """The block that a chunk lies in."""
        return chunk >> BLOCK_HEIGHT

    def span(self, block: int) -> tuple[int, int]:
        """(first byte, number of bytes) of a block. Raises CommitmentError if there is none of that number."""
        if not 0 <= block < blocks_of(self.size):
            raise CommitmentError(f"a tensor of {blocks_of(self.size)} blocks has no block {block}")
        start = block * BLOCK_SIZE
        return start, min(BLOCK_SIZE, self.size - start)

    def first_wrong(self, blocks: Sequence[int], data: Bytes) -> int | None:
        """The first of some blocks, in ascending order, of which `data` does not have the bytes; None if it has all of
        them, one behind the other. Raises CommitmentError for another number of bytes."""
        if len(data) != sum(self.span(block)[1] for block in blocks):
            raise CommitmentError(f"{len(blocks)} blocks have other than {len(data)} bytes")
        found = block_roots(data, self.size)
        for place, block in enumerate(blocks):
            if found[place * HASH_SIZE :][:HASH_SIZE] != self.roots[block * HASH_SIZE :][:HASH_SIZE]:
                return block
        return None

    def proof(self, chunk: int, read: Callable[[int, int], Bytes]) -> list[bytes]:
        """The siblings of a chunk, from the leaf upwards. read(first byte, bytes) gives the tensor's bytes. Raises
        CommitmentError if there is no such chunk, or if what was read is not the tensor."""
        if not 0 <= chunk < self.count:
            raise CommitmentError(f"a tensor of {self.count} chunks has no chunk {chunk}")
        block = self.block(chunk)
        data = read(*self.span(block))
        if self.first_wrong([block], data) is not None:
            raise CommitmentError(f"block {block} of a tensor has changed since its root was taken")
        below = _padded(leaf_hashes(data, CHUNK_SIZE), self._height)
        place, siblings = chunk - (block << BLOCK_HEIGHT), []
        for height in range(self._height):
            siblings.append(_node_at(below[height], (place >> height) ^ 1, height))
        for height, level in enumerate(self._above[:-1]):
            siblings.append(_node_at(level, (block >> height) ^ 1, self._height + height))
        return siblings


def blocks_of(size: int) -> int:
    """Blocks of a tensor of so many bytes: at least one."""
    return max(1, -(-size // BLOCK_SIZE))


def block_roots(data: Bytes, size: int) -> bytes:
    """Roots of the blocks that bytes are cut into, the last of which may be shorter, of a tensor of `size` bytes."""
    height = min(depth_of(max(1, -(-size // CHUNK_SIZE))), BLOCK_HEIGHT)
    return _padded(leaf_hashes(data, CHUNK_SIZE), height)[height]


def _padded(leaves: bytes, height: int) -> list[bytes]:
    """Levels 0 to `height` above some leaves; the last node of a level may have padding below it."""
    levels = [leaves]
    for level in range(height):
        nodes = levels[-1]
        if len(nodes) % (2 * HASH_SIZE):
            nodes += _pad(level)
        levels.append(hash_pieces(_NODE, nodes, 2 * HASH_SIZE))
    return levels


def _levels(nodes: bytes, height: int) -> list[bytes]:
    """Levels from nodes at a height up to the root."""
    levels = [nodes]
    while len(levels[-1]) > HASH_SIZE:
        nodes = levels[-1]
        if len(nodes) % (2 * HASH_SIZE):
            nodes += _pad(height + len(levels) - 1)
        levels.append(hash_pieces(_NODE, nodes, 2 * HASH_SIZE))
    return levels


def _node_at(level: bytes, index: int, height: int) -> bytes:
    return level[index * HASH_SIZE :][:HASH_SIZE] or _pad(height)


def _pad(height: int) -> bytes:
    """The root of a subtree of a height that has nothing but padding."""
    node = PAD
    for _ in range(height):
        node = node_hash(node, node)
    return node
