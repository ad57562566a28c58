"""Putting products into the buckets of `roundlog.kernels.exact_products`: for each two loads, a multiplication and an
addition to memory, and nothing else.

Runs are named by positions, not by slices: references to these would be counted, which takes as long as ten products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(inline="always")
def _multiply(factor: Any, code: Any, words: Any, at: Any, buckets: Any, lane: Any) -> None:
    bucket = np.uint64(code + words[at + np.uint64(1)]) + lane
    buckets[bucket] += np.int64(factor) * np.int64(words[at])


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
def _scatter_four(
    a: Any, b: Any, of_a: Any, of_b: Any, at: int, pitch: int, buckets: Any, lane: int, count: int
) -> None:
    """Four sums at a time: terms of one often go to the same bucket, and would wait for each other."""
    a0, a1, a2, a3 = _four(of_a, at, pitch)
    b0, b1, b2, b3 = _four(of_b, at, pitch)
    l0, l1, l2, l3 = np.uint64(lane), np.uint64(lane + 1), np.uint64(lane + 2), np.uint64(lane + 3)
    one = np.uint64(1)
    for k in range(count):
        t = np.uint64(2 * k)
        _multiply(a[a0 + t], a[a0 + t + one], b, b0 + t, buckets, l0)
        _multiply(a[a1 + t], a[a1 + t + one], b, b1 + t, buckets, l1)
        _multiply(a[a2 + t], a[a2 + t + one], b, b2 + t, buckets, l2)
        _multiply(a[a3 + t], a[a3 + t + one], b, b3 + t, buckets, l3)


@njit(cache=True, nogil=True, error_model="numpy")
def _scatter_row(
    a: Any, b: Any, of_a: Any, of_b: Any, at: int, pitch: int, buckets: Any, lane: int, count: int
) -> None:
    """`_scatter_four` where all have the same run of a."""
    a0 = np.uint64(of_a[np.uint64(at)] * pitch)
    b0, b1, b2, b3 = _four(of_b, at, pitch)
    l0, l1, l2, l3 = np.uint64(lane), np.uint64(lane + 1), np.uint64(lane + 2), np.uint64(lane + 3)
    for k in range(count):
        t = np.uint64(2 * k)
        factor, code = a[a0 + t], a[a0 + t + np.uint64(1)]
        _multiply(factor, code, b, b0 + t, buckets, l0)
        _multiply(factor, code, b, b1 + t, buckets, l1)
        _multiply(factor, code, b, b2 + t, buckets, l2)
        _multiply(factor, code, b, b3 + t, buckets, l3)


@njit(inline="always")
def _same(slots: Any, at: int) -> Any:
    first = slots[np.uint64(at)]
    others = (slots[np.uint64(at + 1)] ^ first) | (slots[np.uint64(at + 2)] ^ first)
    return others | (slots[np.uint64(at + 3)] ^ first) == 0


@njit(cache=True, nogil=True, error_model="numpy")
def scatter(a: Any, b: Any, of_a: Any, of_b: Any, first: int, some: int, pitch: int, buckets: Any, count: int) -> None:
    """a, b: flat int32, in which run r begins at r * pitch: (factor, code) for each of its `count` numbers, and more.
    of_a, of_b: the runs of every sum. buckets: int64[n]. Takes `some` sums, rounded up to a multiple of 4, from the
    first one on: of the i-th of them, a product is added to the bucket whose number is i and both codes together."""
    for lane in range(0, some, 4):
        at = first + lane
        if _same(of_a, at):
            _scatter_row(a, b, of_a, of_b, at, pitch, buckets, lane, count)
        elif _same(of_b, at):
            _scatter_row(b, a, of_b, of_a, at, pitch, buckets, lane, count)
        else:
            _scatter_four(a, b, of_a, of_b, at, pitch, buckets, lane, count)
