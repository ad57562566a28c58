"""Philox4x64-10 as `roundlog.randomness` defines it, on CUDA, in Triton. Imports triton: only
`roundlog.kernels.cuda` and who asks it import this. Integers alone, but for the last step, which is exact."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCKS = tl.constexpr(128)
"""Blocks of eight 32-bit words that one program makes."""

_M0, _M1 = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0xCA5A826395121157)
_W0, _W1 = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBB67AE8584CAA73B)


@triton.jit
def _put(out, at, word, size):
    """The two halves of a 64-bit word, low half first, as numbers in [0, 1)."""
    low, high = (word >> 8) & 0xFFFFFF, word >> 40
    tl.store(out + at, low.to(tl.int32).to(tl.float32) * 2.0**-24, mask=at < size)
    tl.store(out + at + 1, high.to(tl.int32).to(tl.float32) * 2.0**-24, mask=at + 1 < size)


@triton.jit
def _uniform(out, size, seed: tl.uint64, stream: tl.uint64):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    m0, m1 = tl.full([BLOCKS], _M0, tl.uint64), tl.full([BLOCKS], _M1, tl.uint64)
    w0, w1 = tl.full([BLOCKS], _W0, tl.uint64), tl.full([BLOCKS], _W1, tl.uint64)
    none = tl.full([BLOCKS], 0, tl.uint64)
    # NumPy increments the counter before it makes a block.
    c0, c1, c2, c3 = block.to(tl.uint64) + 1, none, none, none
    k0, k1 = none + seed.to(tl.uint64), none + stream.to(tl.uint64)
    for _ in tl.static_range(10):
        high0, high1 = tl.umulhi(m0, c0), tl.umulhi(m1, c2)
        low0, low1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + w0, k1 + w1
    at = block * 8
    _put(out, at, c0, size)
    _put(out, at + 2, c1, size)
    _put(out, at + 4, c2, size)
    _put(out, at + 6, c3, size)


def uniform(key: tuple[int, int], size: int, device: torch.device) -> torch.Tensor:
    """float32[size], element i = (word i of the stream >> 8) * 2^-24. key: two integers of 64 bits."""
    out = torch.empty(size, device=device)
    if size:
        with torch.cuda.device_of(out):
            _uniform[(triton.cdiv(size, 8 * BLOCKS.value),)](out, size, *key, enable_fp_fusion=False)
    return out
