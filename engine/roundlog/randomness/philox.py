"""Random words and the order of data.

Random words are counter-based: Philox4x64-10, as NumPy runs it. Salmon et al., "Parallel random numbers: as easy as
1, 2, 3" (SC 2011). The key is [seed, step * 2^32 + stream], so that every operator of every step has a stream of its
own. NumPy increments the 256-bit counter before it makes a block, hence block b comes from counter b + 1. The four
64-bit words of a block are read as eight 32-bit words, low half first:

    element i = half (i mod 2) of word ((i // 2) mod 4) of block (i // 8).

NumPy makes the words for `uniform`, and promises to keep their stream (NEP 19). `philox_word` computes one element in
plain integers, as a contract does, and shares no code with `uniform`.

The order is the swap-or-not shuffle of the Ethereum consensus specs, one epoch after the other:
`compute_shuffled_index` (consensus-specs, phase0/beacon-chain.md; Hoang, Morris, Rogaway, "An enciphering scheme
based on a card shuffle", 2012) with the 90 rounds of mainnet. One index costs 180 hashes and no table, so a contract
can tell which row stands at a position. The rows of an epoch are a permutation: every row is used once before any is
used twice.

Callers have checked that numbers fit: seeds, epochs, positions and elements 64 bits, steps and streams 32, and that
there are 1 to 2^40 rows, since a shuffle hashes position // 256 as a uint32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from roundlog.kernels.hashing import HASH_SIZE, hash_pieces
from roundlog.kernels.threads import in_parts

BLOCK = 8
"""Numbers of one block of the generator: four words of 64 bits, low half first."""

_RUN = 1 << 12
"""Blocks of words that are made at once: 128 KiB, which stay in the cache until they are numbers."""

_PLACE = np.float32(2.0**-24)

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_MASK64 = (1 << 64) - 1


def stream_key(seed: int, step: int, stream: int) -> tuple[int, int]:
    """The generator's key, two integers of 64 bits."""
    return seed, (step << 32) + stream


def uniform(seed: int, step: int, stream: int, shape: Sequence[int], *, first: int = 0) -> torch.Tensor:
    """Uniform random numbers in [0, 1): float32 of `shape`, element i (in C order) = (word first + i >> 8) * 2^-24.

    Both the 24-bit integer and its scaling are exact in FP32.
    """
    words, count = np.array(stream_key(seed, step, stream), dtype=np.uint64), math.prod(shape)
    block, skipped = divmod(first, BLOCK)
    blocks = -(-(skipped + count) // BLOCK)
    out = np.empty(BLOCK * blocks, dtype=np.float32)

    def part(start: int, stop: int) -> None:
        # NumPy increments the counter before it makes a block.
        generator = np.random.Philox(key=words, counter=block + start)
        for begin in range(start, stop, _RUN):
            end = min(begin + _RUN, stop)
            halves = generator.random_raw(BLOCK // 2 * (end - begin)).astype("<u8", copy=False).view("<u4")
            np.multiply((halves >> 8).view(np.int32), _PLACE, out=out[BLOCK * begin : BLOCK * end], casting="same_kind")

    # A number costs about four times what reading it does.
    in_parts(part, blocks, 4 * out.size)
    values = out if len(out) == count else out[skipped : skipped + count].copy()
    return torch.from_numpy(values).reshape(tuple(shape))


def philox4x64(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """One block of Philox4x64-10 in plain integers: four 64-bit words from a counter of four and a key of
    two.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 64) ^ c1 ^ k0,
            product1 & _MASK64,
            (product0 >> 64) ^ c3 ^ k1,
            product0 & _MASK64,
        )
        k0 = (k0 + _WEYL[0]) & _MASK64
        k1 = (k1 + _WEYL[1]) & _MASK64
    return c0, c1, c2, c3


def philox_word(seed: int, step: int, stream: int, element: int) -> int:
    """Element `element` of a stream's 32-bit words, alone and in plain integers."""
    block, within = divmod(element, BLOCK)
    word = philox4x64((block + 1, 0, 0, 0), stream_key(seed, step, stream))[within // 2]
    return word >> 32 if within % 2 else word & 0xFFFFFFFF


SHUFFLE_ROUNDS = 90

_POSITIONS_PER_HASH = 256


def shuffled_index(index: int, count: int, seed: bytes) -> int:
    """The row at position `index` of the permutation of `count` rows keyed by the 32-byte `seed`."""
    for round_number in range(SHUFFLE_ROUNDS):
        prefix = seed + bytes([round_number])
        pivot = int.from_bytes(sha256(prefix).digest()[:8], "little") % count
        flip = (pivot - index) % count
        position = max(index, flip)
        source = sha256(prefix + (position // 256).to_bytes(4, "little")).digest()
        if source[position % 256 // 8] >> (position % 8) & 1:
            index = flip
    return index


def shuffled_rows(positions: ArrayLike, count: int, seed: bytes) -> NDArray[np.int64]:
    """`shuffled_index` of every element of `positions` (any shape, integers): int64 of the same shape.

    Hashes only the blocks of 256 positions that are read: a batch costs about two hashes a row and round, a
    whole epoch one in 256.
    """
    rows = np.asarray(positions).astype(np.int64)
    all_blocks = np.arange(-(-count // _POSITIONS_PER_HASH)) if rows.size * _POSITIONS_PER_HASH >= count else None
    for round_number in range(SHUFFLE_ROUNDS):
        prefix = seed + bytes([round_number])
        pivot = int.from_bytes(sha256(prefix).digest()[:8], "little") % count
        flip = (pivot - rows) % count
        position = np.maximum(rows, flip)
        block = position // _POSITIONS_PER_HASH
        if all_blocks is None:
            blocks, slot = np.unique(block, return_inverse=True)
            slot = slot.reshape(block.shape)
        else:
            blocks, slot = all_blocks, block
        hashes = hash_pieces(prefix, blocks.astype("<u4").tobytes(), 4)
        sources = np.frombuffer(hashes, np.uint8).reshape(-1, HASH_SIZE)
        byte = sources[slot, position % _POSITIONS_PER_HASH // 8]
        rows = np.where(byte >> (position % 8).astype(np.uint8) & 1, flip, rows)
    return rows


def epoch_seed(seed: int, epoch: int) -> bytes:
    """The 32-byte shuffle seed of an epoch: SHA-256("tiebreak/epoch" || uint64be(seed) || uint64be(epoch))."""
    return sha256(b"tiebreak/epoch" + seed.to_bytes(8, "big") + epoch.to_bytes(8, "big")).digest()


def row_of_position(seed: int, position: int, rows: int) -> int:
    """The row at one position of the endless order: the scalar that a contract computes."""
    epoch, index = divmod(position, rows)
    return shuffled_index(index, rows, epoch_seed(seed, epoch))


def batch_rows(seed: int, step: int, batch_size: int, rows: int) -> NDArray[np.int64]:
    """The dataset rows of the batch of step `step` (counted from 0): int64[batch_size].

    Sample j stands at position step * batch_size + j of the endless order, epoch = position // rows; a
    batch may reach into the next epoch.
    """
    parts = []
    position, end = step * batch_size, (step + 1) * batch_size
    while position < end:
        epoch, index = divmod(position, rows)
        length = min(end - position, rows - index)
        parts.append(shuffled_rows(np.arange(index, index + length), rows, epoch_seed(seed, epoch)))
        position += length
    return np.concatenate(parts)
