"""Sums of products are rounded correctly."""

from __future__ import annotations

import warnings
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import exact_sums as sums
from roundlog.arithmetic import round_sums
from roundlog.number_format import FLOAT32, Format, narrow_float32

TINIEST, LARGEST = 2.0**-149, float(np.float32(3.4028234663852886e38))


FORMATS = (FLOAT32, narrow_float32(24))


def bits(x: np.float32) -> int:
    return int(np.float32(x).view(np.uint32))


def expected(terms: list[float], format: Format = FLOAT32) -> int:
    return ieee.rounded(sum(map(Fraction, terms), Fraction(0)), format)


def rounds_as_it_should(terms: list[float]) -> None:
    for format in FORMATS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (result,) = round_sums(np.array([terms], dtype=np.float64), format)
        assert bits(result) == expected(terms, format), terms


# A number, half of its last place, and something that decides: a tie, and both sides of it, from 2^-23 down to 2^-274
# relatively. The last is the smallest product of two FP32 numbers.
TIES = [
    [1.0, 2.0**-24],
    [1.0, 2.0**-16],  # with 24 bits
    [1 + 2.0**-23, 2.0**-24],
    [-1.0, -(2.0**-24)],
    [-1 - 2.0**-23, -(2.0**-24)],
    [1.0, -(2.0**-25)],  # below a power of two the last place is half as wide
    [2.0**-149, 2.0**-150],
    [2.0**-150],
    [-(2.0**-150)],
    [3 * 2.0**-150],
    [2.0**-126, -(2.0**-150)],  # the largest subnormal and the smallest normal number
    [LARGEST, 2.0**103],
    [-LARGEST, -(2.0**103)],
    [2.0**128, -(2.0**103)],
    [2.0**128],
    [0.0],
    [-0.0, -0.0],
    [1.0, -1.0],
]
NUDGES = [0.0, 2.0**-53, 2.0**-75, 2.0**-149, 2.0**-298]
CANCELLED = [0.0, 1.0, 2.0**60, 2.0**150, LARGEST * LARGEST]


@pytest.mark.parametrize("tie", TIES, ids=str)
def test_a_tie_and_what_lies_just_beside_it_round_correctly_whatever_cancels(tie: list[float]) -> None:
    rng = Random(str(tie))
    for nudge in NUDGES:
        for sign in (1, -1):
            for big in CANCELLED:
                terms = [*tie, sign * nudge, big, -big]
                rounds_as_it_should(terms)
                rng.shuffle(terms)
                rounds_as_it_should(terms)


@pytest.mark.parametrize("k", [1, 2, 3, 8, 17, 257, 1000])
def test_every_length_of_sum_rounds_correctly(k: int) -> None:
    rng = np.random.default_rng(k)
    n = max(2, 2000 // k)
    wide = np.ldexp(rng.standard_normal((n, k)).astype(np.float32).astype(np.float64), rng.integers(-270, 230, (n, k)))
    near = rng.choice([1.0, -1.0, 2.0**-24, -(2.0**-24), 2.0**-77, -(2.0**-77), 2.0**80, -(2.0**80)], (n, k))
    for terms in (wide, near, np.zeros((n, k)), np.full((n, k), -LARGEST * LARGEST)):
        assert [bits(x) for x in round_sums(terms)] == [expected(row) for row in terms.tolist()]


def test_a_sum_of_no_terms_is_positive_zero() -> None:
    assert [bits(x) for x in round_sums(np.zeros((3, 0)))] == [0, 0, 0]
    assert round_sums(np.zeros((0, 4))).shape == (0,)


def test_rows_are_independent_across_the_blocks_of_the_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = np.random.default_rng(6).standard_normal((29, 7))
    whole = round_sums(terms)
    monkeypatch.setattr(sums, "_AT_ONCE", 3)
    assert whole.tobytes() == round_sums(terms).tobytes()
