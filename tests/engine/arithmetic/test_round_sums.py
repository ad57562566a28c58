"""Sums of products are rounded correctly, and the double-double stage keeps what its proof promises."""

from __future__ import annotations

import warnings
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import exact_sums as sums
from roundlog.arithmetic import round_sums
from roundlog.kernels.summing import sum_terms

TINIEST, LARGEST = 2.0**-149, float(np.float32(3.4028234663852886e38))
UNIT = Fraction(1, 2**53)

f32s = st.integers(0, 2**32 - 1).filter(ieee.is_finite).map(lambda bits: float(ieee.value(bits)))
products = st.tuples(f32s, f32s).map(lambda pair: pair[0] * pair[1])


def bits(x: np.float32) -> int:
    return int(np.float32(x).view(np.uint32))


def expected(terms: list[float]) -> int:
    return ieee.rounded(sum(map(Fraction, terms), Fraction(0)))


def rounds_as_it_should(terms: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = round_sums(np.array([terms], dtype=np.float64))
    assert bits(result) == expected(terms), terms


# A number, half of its last place, and something that decides: a tie, and both sides of it, from 2^-23 down to 2^-274
# relatively. The last is the smallest product of two FP32 numbers.
TIES = [
    [1.0, 2.0**-24],
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
NUDGES = [0.0, 2.0**-30, 2.0**-53, 2.0**-60, 2.0**-75, 2.0**-105, 2.0**-149, 2.0**-298]
CANCELLED = [0.0, 1.0, 1e10, 2.0**60, 2.0**106, 2.0**150, LARGEST, LARGEST * LARGEST]


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


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 257, 1000])
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
    monkeypatch.setattr(sums, "_BLOCK_ELEMENTS", 20)
    assert whole.tobytes() == round_sums(terms).tobytes()


def _families(rng: np.random.Generator, k: int) -> list[np.ndarray]:
    """Sums that make TwoSum's errors large, many, and cancelling."""
    n = 12
    exponents = rng.integers(-290, 250, (n, k))
    wide = np.ldexp(rng.integers(1, 2**48, (n, k)).astype(np.float64), exponents - 48)
    paired = wide * np.where(np.arange(k) % 2, -1.0, 1.0)
    paired[:, 1::2] = -np.ldexp(1 + rng.random((n, k // 2)) * 2.0**-40, 0) * paired[:, 0 : 2 * (k // 2) : 2]
    halves = 1.0 + np.ldexp(rng.integers(0, 2**47, (n, k)).astype(np.float64), -47)
    stair = np.ldexp(1.0 + rng.random((n, k)), -np.arange(k) % 400 - 100)
    return [wide, paired, halves, halves * rng.choice([1, -1], (n, k)), stair]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 31, 64, 65, 700])
def test_the_double_double_sum_lies_within_its_error_and_its_low_part_is_low(k: int) -> None:
    rng = np.random.default_rng(k)
    for terms in _families(rng, k):
        high, low, error = sums.double_double(*sum_terms(terms), terms.shape[1])
        for row, *parts in zip(terms.tolist(), high.tolist(), low.tolist(), error.tolist(), strict=True):
            exact = sum(map(Fraction, row), Fraction(0))
            h, rest, e = map(Fraction, parts)
            # Half of the promised error: the other half is room for the rounding of the error itself.
            assert 2 * abs(exact - h - rest) <= e
            assert abs(rest) <= UNIT * abs(h)


EDGES = [sign | edge for edge in (0, 1, 2, 0x7FFFFF, 0x800000, 0x3F800000, ieee.LARGEST) for sign in (0, ieee.SIGN)]


@pytest.mark.slow
@given(
    st.one_of(st.sampled_from(EDGES), st.integers(0, 2**32 - 1).filter(ieee.is_finite)),
    st.sampled_from([0, 1, -1]),
    st.sampled_from([1, -1]),
    st.one_of(st.integers(-400, -50), st.integers(-54, -50)),
    st.integers(-400, -50),
    st.floats(-1, 1),
    st.floats(0, 1),
)
@example(ieee.LARGEST, 1, -1, -50, -49, 0.0, 1.0)
@example(ieee.LARGEST | ieee.SIGN, -1, -1, -50, -49, 0.0, 1.0)
@settings(max_examples=400)
def test_a_decided_double_double_rounds_alike_at_both_ends_of_its_error(
    pattern: int, side: int, towards: int, offset: int, error_exponent: int, low_part: float, error_part: float
) -> None:
    # Start on a boundary of FP32 or on a number, and move away by a relative 2^offset.
    number = ieee.value(pattern)
    half = Fraction(2) ** (max((pattern >> 23 & 0xFF) - 150, -149) - 1)
    scale = float(max(abs(number), Fraction(2) ** -149))
    high = float(number + side * half) + towards * (1 if number >= 0 else -1) * scale * 2.0**offset
    low = low_part * abs(high) * 2.0**-53
    error = error_part * scale * 2.0**error_exponent
    arrays = [np.array([x]) for x in (high, low, error)]
    (rounded,), (undecided,) = sums.round_double_double(*arrays)
    if not undecided:
        middle = Fraction(high) + Fraction(low)
        assert {ieee.rounded(middle + s * Fraction(error)) for s in (-1, 0, 1)} == {bits(rounded)}


def test_most_sums_are_decided_without_exact_integers() -> None:
    rng = np.random.default_rng(11)
    terms = rng.standard_normal((2000, 100))
    assert int(sums.round_double_double(*sums.double_double(*sum_terms(terms), terms.shape[1]))[1].sum()) == 0
