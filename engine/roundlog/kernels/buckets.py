"""The buckets of `roundlog.kernels.exact_products`: putting products into them, and emptying them into limbs.

Products are put in by two loads, a multiplication and an addition to memory for each, and nothing else. Runs are named
by positions, not by slices: references to these would be counted, which takes as long as ten products. No branch
depends on what the numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from roundlog.kernels.superaccumulator import LIMBS, MASK

LANES = 16
"""Sums whose buckets lie side by side: what two vector registers of AVX-512 hold."""
BUCKETS = 128
"""They are 4 bits apart."""
_EACH = 8
"""Buckets that begin in one limb."""


@njit(cache=True, nogil=True, error_model="numpy")
def fold(buckets: Any, digits: Any, room: Any) -> None:
    """buckets: int64[BUCKETS * LANES] or more, the sums of at most 512 products, which are 0 afterwards. They become
    digits, int64[LIMBS * LANES], the limbs of numbers in two's complement. room: int64[4, LANES]."""
    low, high, above, carry = room[0], room[1], room[2], room[3]
    above[:] = 0
    carry[:] = 0
    for limb in range(LIMBS):
        low[:] = 0
        high[:] = 0
        if limb < BUCKETS // _EACH:
            for number in range(_EACH):
                first = (limb * _EACH + number) * LANES
                for lane in range(LANES):
                    value = buckets[first + lane]
                    buckets[first + lane] = 0
                    low[lane] += value << (4 * number)
                    high[lane] += value >> (32 - 4 * number)
        for lane in range(LANES):
            total = (low[lane] & MASK) + above[lane] + carry[lane]
            digits[limb * LANES + lane] = total if limb == LIMBS - 1 else total & MASK
            carry[lane] = total >> 32
            # Bits from the 32nd on. `high` lacks the carries of the bits that its shifts cut: 0 to 7, by the low word.
            above[lane] = high[lane] + (((low[lane] >> 32) - high[lane]) & MASK)


@njit(inline="always")
def _multiply(a: Any, b: Any, of_a: Any, of_b: Any, buckets: Any, lane: Any) -> None:
    one = np.uint64(1)
    bucket = np.uint64(a[of_a + one] + b[of_b + one]) + lane
    buckets[bucket] += np.int64(a[of_a]) * np.int64(b[of_b])


@njit(inline="always")
def _four(lanes: Any, at: int, pitch: int) -> Any:
    """Begins of the runs of four sums."""
    return (
        np.uint64(lanes[np.uint64(at)] * pitch),
        np.uint64(lanes[np.uint64(at + 1)] * pitch),
        np.uint64(lanes[np.uint64(at + 2)] * pitch),
        np.uint64(lanes[np.uint64(at + 3)] * pitch),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def scatter(a: Any, b: Any, of_a: Any, of_b: Any, first: int, some: int, pitch: int, buckets: Any, count: int) -> None:
    """a, b: flat int32, in which run r begins at r * pitch: (factor, code) for each of its `count` numbers, and more.
    of_a, of_b: the runs of every sum. buckets: int64[n]. Takes `some` sums, rounded up to a multiple of 4, from the
    first one on: of the i-th of them, a product is added to the bucket whose number is i and both codes together. Four
    sums at a time: terms of one often go to the same bucket, and would wait for each other."""
    for lane in range(0, some, 4):
        a0, a1, a2, a3 = _four(of_a, first + lane, pitch)
        b0, b1, b2, b3 = _four(of_b, first + lane, pitch)
        l0, l1, l2, l3 = np.uint64(lane), np.uint64(lane + 1), np.uint64(lane + 2), np.uint64(lane + 3)
        for k in range(count):
            t = np.uint64(2 * k)
            _multiply(a, b, a0 + t, b0 + t, buckets, l0)
            _multiply(a, b, a1 + t, b1 + t, buckets, l1)
            _multiply(a, b, a2 + t, b2 + t, buckets, l2)
            _multiply(a, b, a3 + t, b3 + t, buckets, l3)
