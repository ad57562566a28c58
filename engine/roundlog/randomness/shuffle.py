"""Data order: the swap-or-not shuffle of the Ethereum consensus specs, one epoch after the other.

`compute_shuffled_index` (consensus-specs, phase0/beacon-chain.md, "compute_shuffled_index"; Hoang, Morris,
Rogaway, "An enciphering scheme based on a card shuffle", 2012) with the 90 rounds of mainnet. One index
costs 180 hashes and no table, so a contract can tell which row stands at a position. The rows of an epoch
are a permutation: every row is used once before any is used twice.
"""

from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from roundlog.randomness.philox import RandomnessError

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

SHUFFLE_ROUNDS = 90

MAX_COUNT = 1 << 40
"""The spec hashes position // 256 as a uint32."""

_POSITIONS_PER_HASH = 256


def _check(count: int, seed: bytes) -> None:
    if not 0 < count <= MAX_COUNT:
        raise RandomnessError(f"a shuffle of {count} rows is outside 1..2^40")
    if len(seed) != 32:
        raise RandomnessError(f"a shuffle seed has 32 bytes, not {len(seed)}")


def shuffled_index(index: int, count: int, seed: bytes) -> int:
    """The row at position `index` of the permutation of `count` rows keyed by the 32-byte `seed`.

    Raises RandomnessError if the index is not below the count, the count outside 1..2^40 or the seed not 32
    bytes.
    """
    _check(count, seed)
    if not 0 <= index < count:
        raise RandomnessError(f"position {index} is outside a shuffle of {count} rows")
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
    whole epoch one in 256. Raises RandomnessError as `shuffled_index`.
    """
    _check(count, seed)
    array = np.asarray(positions)
    if array.size and array.dtype.kind not in "iu":
        raise RandomnessError(f"positions are integers, not {array.dtype}")
    rows = array.astype(np.int64)
    if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise RandomnessError(f"a position in {rows.min()}..{rows.max()} is outside a shuffle of {count} rows")
    all_blocks = np.arange(-(-count // _POSITIONS_PER_HASH)) if rows.size * _POSITIONS_PER_HASH >= count else None
    for round_number in range(SHUFFLE_ROUNDS):
        prefix = sha256(seed + bytes([round_number]))
        pivot = int.from_bytes(prefix.digest()[:8], "little") % count
        flip = (pivot - rows) % count
        position = np.maximum(rows, flip)
        block = position // _POSITIONS_PER_HASH
        if all_blocks is None:
            blocks, slot = np.unique(block, return_inverse=True)
            slot = slot.reshape(block.shape)
        else:
            blocks, slot = all_blocks, block
        sources = _sources(prefix, blocks)
        byte = sources[slot, position % _POSITIONS_PER_HASH // 8]
        rows = np.where(byte >> (position % 8).astype(np.uint8) & 1, flip, rows)
    return rows


def _sources(prefix: "Hash", blocks: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The source hash of each block: uint8[len(blocks), 32]."""
    digests = bytearray()
    for suffix in blocks.astype("<u4").view("V4").tolist():
        state = prefix.copy()
        state.update(suffix)
        digests += state.digest()
    return np.frombuffer(bytes(digests), np.uint8).reshape(-1, 32)


def epoch_seed(seed: int, epoch: int) -> bytes:
    """The 32-byte shuffle seed of an epoch: SHA-256("tiebreak/epoch" || uint64be(seed) || uint64be(epoch)).

    Raises RandomnessError if the seed or the epoch does not fit 64 bits.
    """
    if not 0 <= seed < 1 << 64 or not 0 <= epoch < 1 << 64:
        raise RandomnessError(f"seed {seed} and epoch {epoch} have to be 64-bit unsigned integers")
    return sha256(b"tiebreak/epoch" + seed.to_bytes(8, "big") + epoch.to_bytes(8, "big")).digest()


def row_of_position(seed: int, position: int, rows: int) -> int:
    """The row at one position of the endless order: the scalar that a contract computes.

    Raises RandomnessError as `shuffled_index` and `epoch_seed`.
    """
    if rows < 1:
        raise RandomnessError(f"a shuffle of {rows} rows is outside 1..2^40")
    epoch, index = divmod(position, rows)
    return shuffled_index(index, rows, epoch_seed(seed, epoch))


def batch_rows(seed: int, step: int, batch_size: int, rows: int) -> NDArray[np.int64]:
    """The dataset rows of the batch of step `step` (counted from 0): int64[batch_size].

    Sample j stands at position step * batch_size + j of the endless order, epoch = position // rows; a
    batch may reach into the next epoch. Raises RandomnessError for a negative step, a batch size below 1,
    and as `shuffled_index` and `epoch_seed`.
    """
    if step < 0 or batch_size < 1 or rows < 1:
        raise RandomnessError(f"step {step}, batch size {batch_size} and {rows} rows do not make a batch")
    parts = []
    position, end = step * batch_size, (step + 1) * batch_size
    while position < end:
        epoch, index = divmod(position, rows)
        length = min(end - position, rows - index)
        parts.append(shuffled_rows(np.arange(index, index + length), rows, epoch_seed(seed, epoch)))
        position += length
    return np.concatenate(parts)
