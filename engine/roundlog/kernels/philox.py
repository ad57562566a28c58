"""Philox4x64-10 as FP32 numbers, in one loop: what `roundlog.randomness.philox` says they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from roundlog.kernels.threads import in_parts

BLOCK = 8
"""Numbers that come of one block of the generator: four words of 64 bits, low half first."""

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ROUNDS = 10
_ONE, _HALF, _DROPPED = np.uint64(1), np.uint64(32), np.uint32(8)
_PLACE = np.float32(2.0**-24)

_RUN = 64
"""Blocks that are made at once, before vector instructions make numbers of their words."""


@intrinsic
def _high(typingctx: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of the product of two uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(a, b), generate


high: Any = _high


@njit(inline="always")
def _block(k0: Any, k1: Any, c0: Any) -> Any:
    """The four words of the block that this counter gives."""
    c1, c2, c3 = np.uint64(0), np.uint64(0), np.uint64(0)
    for _ in range(_ROUNDS):
        high_0, low_0 = high(_MULTIPLIER_0, c0), _MULTIPLIER_0 * c0
        high_1, low_1 = high(_MULTIPLIER_1, c2), _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0 += _WEYL_0
        k1 += _WEYL_1
    return c0, c1, c2, c3


@njit(cache=True, nogil=True, error_model="numpy")
def _blocks(key_0: Any, key_1: Any, first: Any, out: Any, start: int, stop: int) -> None:
    words = np.empty((_RUN, BLOCK), dtype=np.uint32)
    for begin in range(start, stop, _RUN):
        end = min(begin + _RUN, stop)
        for block in range(begin, end):
            # The counter is incremented before a block is made.
            c0, c1, c2, c3 = _block(key_0, key_1, first + np.uint64(block) + _ONE)
            word = words[block - begin]
            word[0], word[1], word[2], word[3] = c0, c0 >> _HALF, c1, c1 >> _HALF
            word[4], word[5], word[6], word[7] = c2, c2 >> _HALF, c3, c3 >> _HALF
        flat, target = words.reshape(-1), out[BLOCK * begin : BLOCK * end]
        for i in range(len(target)):
            target[i] = np.float32(np.int32(flat[i] >> _DROPPED)) * _PLACE


def uniform_blocks(key: tuple[int, int], first: int, count: int) -> npt.NDArray[np.float32]:
    """float32[8 * count]: the upper 24 bits of every 32-bit word of `count` blocks, times 2^-24. key: two integers of
    64 bits; first: the first block, an integer far below 2^64."""
    out = np.empty(BLOCK * count, dtype=np.float32)
    key_0, key_1, begin = (np.uint64(number) for number in (*key, first))
    # A number costs about four times what reading it does.
    in_parts(lambda start, stop: _blocks(key_0, key_1, begin, out, start, stop), count, 4 * out.size)
    return out
