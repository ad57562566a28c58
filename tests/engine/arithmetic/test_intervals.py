"""Rounding FP64 to FP32, intervals, and the order of FP32."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import adjacent, round_f32, round_interval
from roundlog.arithmetic.formats import ordinal

from tests.engine.oracle.array import from_torch

finite = st.floats(allow_nan=False, allow_infinity=False)
# Beside the numbers and the midpoints of FP32, by a few last places of FP64.
beside = st.tuples(
    st.integers(0, 2**31 - 1).filter(ieee.is_finite), st.booleans(), st.booleans(), st.integers(-4, 4)
).map(lambda t: _beside(*t))


def _beside(pattern: int, half: bool, negative: bool, off: int) -> float:
    number = ieee.value(pattern)
    if half:
        number += Fraction(2) ** (max((pattern >> 23) - 150, -149) - 1)
    x = torch.tensor([float(number)], dtype=torch.float64)
    x = (x.view(torch.int64) + off).view(torch.float64) if number else x
    return -float(x) if negative else float(x)


def f32(pattern: int) -> torch.Tensor:
    signed = pattern - 2**32 if pattern >= 2**31 else pattern
    return torch.tensor([signed], dtype=torch.int32).view(torch.float32)


def double(x: float) -> torch.Tensor:
    return torch.tensor([x], dtype=torch.float64)


@given(st.one_of(finite, beside))
@settings(max_examples=400)
def test_a_double_rounds_to_nearest_even_and_zero_is_positive(x: float) -> None:
    assert from_torch(round_f32(double(x))).items == (ieee.rounded(Fraction(x)),)


def test_rounding_leaves_its_argument_alone_and_keeps_what_is_not_finite() -> None:
    y = torch.tensor([-0.0, float("inf"), -float("inf"), float("nan")], dtype=torch.float64)
    result = round_f32(y)
    assert bool(torch.signbit(y[0])) and not bool(torch.signbit(result[0]))
    assert result[1] == float("inf") and result[2] == -float("inf") and bool(result[3].isnan())


@given(
    st.one_of(finite.filter(lambda y: abs(y) < 1e300), beside),
    st.one_of(st.just(0.0), st.floats(0, 1e300), st.integers(-70, -20)),
    st.sampled_from([1.0, 4.0]),
)
@settings(max_examples=500)
def test_an_interval_holds_the_rounding_of_every_number_in_it_and_not_much_more(
    y: float, distance: float | int, scale: float
) -> None:
    d = abs(y) * 2.0**distance if isinstance(distance, int) else distance
    low, high = round_interval(double(y), double(d), scale)
    (lo,), (hi,) = from_torch(low).items, from_torch(high).items
    reach = Fraction(scale) * Fraction(d)
    wide = reach * (1 + Fraction(1, 2**38)) + 4 * Fraction(1, 2**53) * abs(Fraction(y))
    assert not ieee.less(ieee.rounded(Fraction(y) - reach), lo)
    assert not ieee.less(hi, ieee.rounded(Fraction(y) + reach))
    assert not ieee.less(lo, ieee.rounded(Fraction(y) - wide))
    assert not ieee.less(ieee.rounded(Fraction(y) + wide), hi)


def test_an_interval_broadcasts_its_distance() -> None:
    y = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    low, high = round_interval(y, torch.tensor([[0.5], [0.0]], dtype=torch.float64))
    assert low.tolist() == [[0.5, 1.5], [3.0, 4.0]] and high.tolist() == [[1.5, 2.5], [3.0, 4.0]]


def test_the_interval_of_an_exact_zero_is_zero() -> None:
    low, high = round_interval(double(-0.0), double(0.0))
    assert from_torch(low).items == from_torch(high).items == (0,)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
@settings(max_examples=300)
def test_the_ordinal_has_the_order_of_the_numbers(a: int, b: int) -> None:
    if ieee.is_nan(a) or ieee.is_nan(b):
        return
    x, y = int(ordinal(f32(a))), int(ordinal(f32(b)))
    assert (x < y) == ieee.less(a, b) and (x == y) == ieee.equal(a, b)


@given(st.integers(0, 0x7F7FFFFF))
@settings(max_examples=200)
def test_neighbours_are_adjacent_and_nothing_else_is(pattern: int) -> None:
    up, upper = f32(pattern + 1), f32(min(pattern + 2, 0x7F800000))
    assert bool(adjacent(f32(pattern), up))
    assert bool(adjacent(-up, -f32(pattern)))
    assert not bool(adjacent(up, f32(pattern)))
    assert not bool(adjacent(f32(pattern), f32(pattern)))
    assert bool(adjacent(f32(pattern), upper)) == (pattern + 1 == 0x7F800000)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_both_zeros_lie_between_the_smallest_numbers(zero: float) -> None:
    z = torch.tensor([zero])
    assert bool(adjacent(f32(0x80000001), z)) and bool(adjacent(z, f32(1)))
    assert not bool(adjacent(f32(0x80000001), f32(1)))
