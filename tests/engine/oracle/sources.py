"""The values of the source operators, and Philox4x64-10 in plain integers (Salmon et al., SC 2011, section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.engine.oracle.array import Array, Index, build

_M64 = (1 << 64) - 1


def _philox(counter: int, key: tuple[int, int]) -> list[int]:
    x = [counter >> 64 * i & _M64 for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * x[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * x[2], 1 << 64)
        x = [high1 ^ x[1] ^ k0, low1, high0 ^ x[3] ^ k1, low0]
        k0, k1 = k0 + 0x9E3779B97F4A7C15 & _M64, k1 + 0xBB67AE8584CAA73B & _M64
    return x


def word(seed: int, step: int, stream: int, element: int) -> int:
    """32-bit word `element` of NumPy's Philox: its first block is counter 1, low halves come first."""
    block = _philox(element // 8 + 1, (seed, (step << 32) + stream))
    return block[element % 8 // 2] >> (32 if element % 2 else 0) & 0xFFFFFFFF


def uniform(attributes: Mapping[str, Any], shape: Index, seed: int, step: int) -> Array:
    flat = iter(range(1 << 62))

    def element(index: Index) -> int:
        mantissa = word(seed, step, attributes["stream"], next(flat)) >> 8
        if mantissa == 0:
            return 0
        # mantissa * 2^-24 with its leading bit hidden.
        length = mantissa.bit_length()
        return (length + 102 << 23) + ((mantissa << 24 - length) - (1 << 23))

    return build(shape, "f32", element)


def iota(attributes: Mapping[str, Any], shape: Index) -> Array:
    return build(shape, "i64", lambda index: attributes["start"] + index[0] * attributes["step"])


def constant(attributes: Mapping[str, Any], shape: Index, dtype: str) -> Array:
    bits = attributes["bits"]
    flat = iter(range(1 << 62))
    return build(shape, dtype, lambda index: bits[0] if len(bits) == 1 else bits[next(flat)])
