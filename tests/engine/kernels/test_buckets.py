"""Emptied buckets against integers: the limbs, and what they are rounded to, where roundings go wrong if they do."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from roundlog.arithmetic.exact_sums import round_scaled_integer
from roundlog.kernels.buckets import BUCKETS, COLUMNS, LANES, fold
from roundlog.kernels.superaccumulator import LAST_PLACE, LIMBS, MASK

SUMS = COLUMNS * LANES
MOST = 1 << 62
"""Below what a bucket may hold."""


@njit
def folded(buckets: np.ndarray, digits: np.ndarray, out: np.ndarray) -> None:
    fold(buckets.ctypes.data, digits.ctypes.data, out.ctypes.data)


def spread(total: int, rng: np.random.Generator) -> list[int]:
    """The contents of buckets that are so much together, as different as they can be."""
    contents = [int(v) for v in rng.integers(-(1 << 58), 1 << 58, BUCKETS - 1)]
    contents = [v if rng.random() < 0.7 else 0 for v in contents]
    rest = total - sum(v << 4 * i for i, v in enumerate(contents))
    for i in reversed(range(BUCKETS - 1)):
        # As much as there is room for, from above.
        some = max(min(rest >> 4 * i, MOST - contents[i]), -MOST - contents[i])
        contents[i] += some
        rest -= some << 4 * i
    assert rest == 0
    return [*contents, 0]


def digits_of(total: int) -> list[int]:
    """Its magnitude's digits to base 16, with its sign, and in the last bucket all that is above."""
    sign, magnitude = (-1 if total < 0 else 1), abs(total)
    last = BUCKETS - 1
    return [sign * (magnitude >> 4 * i & 15) for i in range(last)] + [sign * (magnitude >> 4 * last)]


def check(totals: list[int], rng: np.random.Generator, dense: bool) -> None:
    for begin in range(0, len(totals), SUMS):
        some = totals[begin : begin + SUMS]
        some += [0] * (SUMS - len(some))
        if dense:
            contents = [spread(total, rng) for total in some]
        else:
            contents = [digits_of(total) for total in some]
        buckets = np.array(contents, np.int64).T.copy()
        digits, out = np.full((LIMBS, SUMS), -7), np.empty(SUMS, np.float32)
        folded(buckets, digits, out)
        assert not buckets.any()
        for lane, total in enumerate(some):
            limbs = [int(v) for v in digits[:, lane]]
            assert all(0 <= v <= MASK for v in limbs[:-1])
            assert sum(v << 32 * i for i, v in enumerate(limbs)) == total
            right = round_scaled_integer(total, LAST_PLACE)
            assert out[lane].view(np.uint32) == right.view(np.uint32), (hex(total), out[lane], right)


EDGES = sorted(
    {
        sign * (base + (1 << place) * nudge + (1 << low) * tiny)
        for place in (*range(0, 434, 7), 147, 148, 149, 150, 172, 173)
        for base in (0, 1 << place + 24, (1 << place + 25) - (1 << place), 1 << place + 40)
        for nudge in (-1, 0, 1, 3)
        for low in (0, max(place - 40, 0))
        for tiny in (-1, 0, 1)
        for sign in (-1, 1)
    }
)
"""Ties and what is just beside them, powers of two, and numbers of a single bit, of every sign, and wherever in a
limb they can lie."""


@pytest.mark.parametrize("dense", [False, True])
def test_ties_and_what_is_beside_them(dense: bool) -> None:
    check(EDGES, np.random.default_rng(0), dense)


@pytest.mark.parametrize("dense", [False, True])
def test_every_power_of_two_and_its_neighbours(dense: bool) -> None:
    powers = [
        sign * ((1 << place) + beside)
        for place in range(560 if dense else 500)
        for beside in (-1, 0, 1)
        for sign in (-1, 1)
    ]
    check(powers, np.random.default_rng(1), dense)


def test_sums_of_any_size_and_length() -> None:
    rng = np.random.default_rng(2)
    totals = []
    for _ in range(4000):
        bits, zeros = int(rng.integers(1, 100)), int(rng.integers(0, 450))
        number = int.from_bytes(rng.bytes(13), "little") >> 104 - bits
        totals.append((number if rng.random() < 0.5 else -number) << zeros)
    check(totals, rng, True)


def test_buckets_as_full_as_512_products_make_them() -> None:
    full = 512 * ((1 << 24) - 1) ** 2 * 64
    rng = np.random.default_rng(3)
    buckets = rng.choice([full, -full, 0], (BUCKETS, SUMS))
    buckets[:, 0], buckets[:, 1], buckets[:, 2], buckets[127:] = full, -full, 0, 0
    totals = [sum(int(v) << 4 * i for i, v in enumerate(buckets[:, lane])) for lane in range(SUMS)]
    digits, out = np.empty((LIMBS, SUMS), np.int64), np.empty(SUMS, np.float32)
    folded(buckets.copy(), digits, out)
    for lane, total in enumerate(totals):
        assert sum(int(v) << 32 * i for i, v in enumerate(digits[:, lane])) == total
        assert out[lane].view(np.uint32) == round_scaled_integer(total, LAST_PLACE).view(np.uint32)
