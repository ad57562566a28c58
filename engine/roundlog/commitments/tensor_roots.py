"""Tensor roots: the Merkle root over the 1 KiB chunks of a tensor's little-endian bytes.

Shape and dtype are not hashed: the program, whose root stands in the spec, fixes them for every tensor that
has a root.

`BlockTree` is such a tree over a long tensor that keeps only the roots of blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.arithmetic import format_of, is_short
from roundlog.commitments.merkle import Bytes, CommitmentError, MerkleTree, depth_of, leaf_hashes, level_above, node_at
from roundlog.kernels.hashing import HASH_SIZE
from roundlog.kernels.reducing import all_finite
from roundlog.number_format import FLOAT32

CHUNK_SIZE = 1024
"""Bytes in a leaf of a tensor tree; the last one may be shorter."""

Tensor = torch.Tensor | NDArray[np.generic]

_KINDS = "fiub"
"""NumPy kinds that have a root: real floats, integers, bool."""


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes that are committed to: C order, little-endian, bool as one byte of 0 or 1.

    A contiguous CPU tensor is viewed, not copied. Zeros keep their sign (-0.0 and +0.0 are different bytes).

    Raises CommitmentError for a NaN that is not the canonical one (NaN bits differ between machines: see `canonical`),
    for a bool whose byte is neither 0 nor 1, and for a dtype without one little-endian layout
    (complex, quantised, strings, objects).
    """
    if isinstance(tensor, torch.Tensor) and is_short(tensor.dtype):
        return _short_bytes(tensor)
    array = _as_array(tensor)
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > 8:
        raise CommitmentError(f"a tensor of dtype {array.dtype} has no root; use float, integer or bool")
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    if array.size == 0:
        return memoryview(b"")
    if array.dtype.kind == "f" and _has_other_nan(array):
        raise CommitmentError(
            "a tensor with a NaN other than 0x7fc00000 has no root, since NaN bits differ between machines"
        )
    flat = array.reshape(-1).view(np.uint8)
    if array.dtype.kind == "b" and flat.max() > 1:
        raise CommitmentError("a bool tensor with a byte other than 0 and 1 has no root")
    return flat.data


def _short_bytes(tensor: torch.Tensor) -> memoryview:
    """`tensor_bytes` of numbers of 16 bits."""
    assert sys.byteorder == "little", "PyTorch tensors are in host byte order"
    kind = format_of(tensor.dtype)
    words = tensor.detach().cpu().contiguous().reshape(-1).view(torch.int16).numpy().view(np.uint16)
    if bool(((words & (kind.sign - 1) > kind.infinity) & (words != kind.nan)).any()):
        raise CommitmentError(
            f"a tensor with a NaN other than {kind.nan:#x} has no root, since NaN bits differ between machines"
        )
    return words.view(np.uint8).data if words.size else memoryview(b"")


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its format's one NaN, 0x7FC00000 of FP32, for every NaN, which is the one that a step's values
    are committed to with: which one a processor makes is its own affair. Itself, where there is none."""
    words = _WORDS.get(tensor.dtype)
    if words is None or not tensor.numel() or not bool(tensor.isnan().any()):
        return tensor
    quiet = torch.tensor(format_of(tensor.dtype).nan, dtype=words, device=tensor.device)
    return torch.where(tensor.isnan(), quiet, tensor.contiguous().view(words)).view(tensor.dtype)


_NAN = FLOAT32.nan
_WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""Integers as wide as the numbers of a dtype."""


def _has_other_nan(array: NDArray[np.generic]) -> bool:
    """Whether a contiguous array of floats, not empty, has a NaN that is not the canonical one."""
    if array.dtype != np.float32:
        # The maximum of anything with a NaN is NaN: one pass, and no mask as large as the tensor.
        return bool(np.isnan(array.max()))
    flat = array.reshape(-1)
    if all_finite(flat.view(np.float32)):
        return False
    return bool((flat.view(np.uint32)[np.isnan(flat)] != _NAN).any())


def _as_array(tensor: Tensor) -> NDArray[np.generic]:
    if isinstance(tensor, np.ndarray):
        return tensor
    assert sys.byteorder == "little", "PyTorch tensors are in host byte order"
    try:
        array: NDArray[np.generic] = tensor.detach().cpu().contiguous().numpy()
    except (TypeError, RuntimeError) as error:
        raise CommitmentError(f"a tensor of dtype {tensor.dtype} has no root; use float, integer or bool") from error
    return array


def tensor_tree(tensor: Tensor) -> MerkleTree:
    """The Merkle tree over the chunks of a tensor of any shape, for openings: at least one, so that an empty tensor has
    an empty chunk. Raises as `tensor_bytes`."""
    return MerkleTree.of_leaf_hashes([leaf_hashes(tensor_bytes(tensor), CHUNK_SIZE)])


def tensor_root(tensor: Tensor) -> bytes:
    """The 32-byte commitment to a tensor of any shape on any device. Raises as `tensor_bytes`."""
    return tensor_tree(tensor).root


def state_tree(tensors: Iterable[Tensor]) -> MerkleTree:
    """The Merkle tree whose leaf payloads are the tensor roots of all state slots, in program order."""
    return MerkleTree([tensor_root(tensor) for tensor in tensors])


def state_root(tensors: Iterable[Tensor]) -> bytes:
    """The 32-byte commitment to a whole state: parameters, buffers and optimizer slots in program order."""
    return state_tree(tensors).root


BLOCK_HEIGHT = 4
BLOCK_SIZE = CHUNK_SIZE << BLOCK_HEIGHT
"""Bytes of a block: 16 KiB, 16 chunks. A root takes a 512th of its block, and few bytes beside a row are read to
check it."""


class BlockTree:
    """The tree over the chunks of a tensor (`tensor_tree`), as the roots of its blocks: the nodes at `BLOCK_HEIGHT`. 20
    GB have 40 MB of them. What lies below a block's root is computed again from the block's bytes.

    A tensor of at most one block has a tree of its own depth, whose root is its only block's."""

    def __init__(self, size: int, roots: bytes) -> None:
        """size: bytes of the tensor. roots: of all its blocks, 32 bytes each."""
        self.size = size
        self.roots = roots
        self.count = max(1, -(-size // CHUNK_SIZE))
        self._height = min(depth_of(self.count), BLOCK_HEIGHT)
        self._above = _levels(roots, self._height, depth_of(self.count))

    @classmethod
    def over(cls, size: int, pieces: Iterable[Bytes]) -> BlockTree:
        """The tree of a tensor whose `size` bytes come in pieces; all but the last are whole blocks."""
        return cls(size, b"".join(block_roots(piece, size) for piece in pieces) or block_roots(b"", 0))

    @property
    def root(self) -> bytes:
        """The tensor root."""
        return self._above[-1]

    def block(self, chunk: int) -> int:
        """The block that a chunk lies in."""
        return chunk >> BLOCK_HEIGHT

    def span(self, block: int) -> tuple[int, int]:
        """(first byte, number of bytes) of a block."""
        start = block * BLOCK_SIZE
        return start, min(BLOCK_SIZE, self.size - start)

    def first_wrong(self, blocks: Sequence[int], data: Bytes) -> int | None:
        """The first of some blocks, in ascending order, whose bytes `data`, as many as they have, does not have; None
        if it has those of all, one behind the other."""
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
        below = _levels(leaf_hashes(data, CHUNK_SIZE), 0, self._height)
        place, siblings = chunk - (block << BLOCK_HEIGHT), []
        for height in range(self._height):
            siblings.append(node_at(below[height], (place >> height) ^ 1, height))
        for height, level in enumerate(self._above[:-1]):
            siblings.append(node_at(level, (block >> height) ^ 1, self._height + height))
        return siblings


def blocks_of(size: int) -> int:
    """Blocks of a tensor of so many bytes: at least one."""
    return max(1, -(-size // BLOCK_SIZE))


def block_roots(data: Bytes, size: int) -> bytes:
    """Roots of the blocks of a tensor of `size` bytes; the last block may be shorter."""
    height = min(depth_of(max(1, -(-size // CHUNK_SIZE))), BLOCK_HEIGHT)
    return _levels(leaf_hashes(data, CHUNK_SIZE), 0, height)[-1]


def _levels(nodes: bytes, first: int, last: int) -> list[bytes]:
    """Levels from some nodes at height `first` up to height `last`; the last node of a level may have padding below
    it."""
    levels = [nodes]
    for height in range(first, last):
        levels.append(level_above(levels[-1], height))
    return levels
