"""Counter-based random words: Philox4x64-10, as NumPy runs it.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The key is [seed, step * 2^32 +
stream], so that every operator of every step has a stream of its own. NumPy increments the 256-bit counter
before it makes a block, hence block b comes from counter b + 1. The four 64-bit words of a block are read
as eight 32-bit words, low half first:

    element i = half (i mod 2) of word ((i // 2) mod 4) of block (i // 8).

`uniform` makes numbers of them in a compiled loop; `philox_word` computes one element in plain integers, as a
contract does, and shares no code with it.
"""

import math
from collections.abc import Sequence

import torch

from roundlog.kernels.philox import BLOCK, uniform_blocks
from roundlog.randomness.errors import RandomnessError

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_MASK64 = (1 << 64) - 1


def stream_key(seed: int, step: int, stream: int) -> tuple[int, int]:
    """The generator's key, two integers of 64 bits. Raises RandomnessError if the seed does not fit 64 bits, or the
    step or the stream 32."""
    if not 0 <= seed < 1 << 64:
        raise RandomnessError(f"seed {seed} is not a 64-bit unsigned integer")
    if not 0 <= step < 1 << 32 or not 0 <= stream < 1 << 32:
        raise RandomnessError(f"step {step} and stream {stream} have to be 32-bit unsigned integers")
    return seed, (step << 32) + stream


def uniform(seed: int, step: int, stream: int, shape: Sequence[int], *, first: int = 0) -> torch.Tensor:
    """Uniform random numbers in [0, 1): float32 of `shape`, element i (in C order) = (word first + i >> 8) * 2^-24.

    Both the 24-bit integer and its scaling are exact in FP32. Raises RandomnessError if the seed does not fit 64 bits,
    the step or the stream 32, or there are no such words.
    """
    key, count = stream_key(seed, step, stream), math.prod(shape)
    if count < 0 or not 0 <= first < 1 << 64:
        raise RandomnessError(f"a stream has no {count} words from word {first} on")
    block, skipped = divmod(first, BLOCK)
    made = uniform_blocks(key, block, -(-(skipped + count) // BLOCK))
    values = made if len(made) == count else made[skipped : skipped + count].copy()
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
    """Element `element` of a stream's 32-bit words, alone and in plain integers.

    Raises RandomnessError as `uniform`, and if the element is negative or beyond 64 bits.
    """
    if not 0 <= element < 1 << 64:
        raise RandomnessError(f"element {element} is not a 64-bit unsigned integer")
    block, within = divmod(element, BLOCK)
    word = philox4x64((block + 1, 0, 0, 0), stream_key(seed, step, stream))[within // 2]
    return word >> 32 if within % 2 else word & 0xFFFFFFFF
