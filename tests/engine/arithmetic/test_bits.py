"""Rounding to 32 bits and fewer: once, to nearest even, against fractions, for every width; intervals, and the order
of FP32."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import adjacent, in_format, neighbour, round_interval, round_to
from roundlog.arithmetic.formats import ordinal
from roundlog.number_format import narrow_float32

from tests.engine.oracle.array import from_torch

WIDTHS = range(23, 33)
widths = st.sampled_from(WIDTHS)
patterns = st.integers(0, 2**32 - 1).filter(ieee.is_finite)


def double(*items: float) -> torch.Tensor:
    return torch.tensor(items, dtype=torch.float64)


def f32(*patterns: int) -> torch.Tensor:
    return torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32))


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


def of_format(pattern: int, width: int) -> int:
    return pattern >> 32 - width << 32 - width


def midpoint_above(pattern: int, width: int) -> Fraction:
    """Half-way between a positive number of the format and the next one."""
    return ieee.value(pattern) + Fraction(2) ** (max((pattern >> 23) - 127, -126) - (width - 9) - 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_edge_of_every_width_rounds_as_its_fraction(width: int) -> None:
    step = 1 << 32 - width
    edges = [0, step, 2 * step, 0x7FFFFF, 0x800000, 0x800000 - step, 0x3F800000, 0x3F800000 - step, ieee.LARGEST]
    numbers = []
    for pattern in (of_format(edge, width) for edge in edges):
        for exact in (ieee.value(pattern), midpoint_above(pattern, width)):
            near = float(exact)
            assert Fraction(near) == exact
            numbers += [near, np.nextafter(near, 0.0), np.nextafter(near, np.inf)]
    numbers += [-x for x in numbers] + [2.0**128, 1e300, 5e-324]
    assert from_torch(round_to(double(*numbers), narrow_float32(width))).items == tuple(
        ieee.rounded(Fraction(x), narrow_float32(width)) for x in numbers
    )
    kept = round_to(double(float("inf"), float("-inf"), float("nan"), -0.0), narrow_float32(width))
    assert kept[0] == float("inf") and kept[1] == float("-inf") and bool(kept[2].isnan())
    assert not bool(torch.signbit(kept[3]))


@given(patterns, widths, st.booleans(), st.integers(-3, 3))
@settings(max_examples=200)
def test_a_double_beside_a_boundary_rounds_once(pattern: int, width: int, half: bool, off: int) -> None:
    """Through FP32 first, numbers just beside a midpoint of the narrower format would become that midpoint."""
    exact = midpoint_above(of_format(pattern & 0x7FFFFFFF, width), width) if half else ieee.value(pattern)
    x = float(exact)
    x = float((double(x).view(torch.int64) + off).view(torch.float64)) if x else x
    assert from_torch(round_to(double(x), narrow_float32(width))).items == (
        ieee.rounded(Fraction(x), narrow_float32(width)),
    )


@given(patterns, widths)
@settings(max_examples=100)
def test_neighbours_are_of_the_format_adjacent_and_ordered(pattern: int, width: int) -> None:
    x, kind = f32(of_format(pattern, width)), narrow_float32(width)
    above, below = neighbour(x, 1, kind), neighbour(x, -1, kind)
    assert bool(below < x) and bool(x < above)
    assert bool(adjacent(x, above, kind)) and bool(adjacent(below, x, kind)) and not bool(adjacent(below, above, kind))
    assert bool(in_format(torch.cat([x, above, below]), kind).all())
    # All of the open interval rounds to one of its ends.
    if bool(above.isfinite()):
        middle = (x.double() + above.double()) / 2
        assert width == 32 or not in_format(middle.float(), kind)
        for y in (middle, torch.nextafter(middle, x.double()), torch.nextafter(middle, above.double())):
            assert round_to(y, kind).item() in (x.item(), above.item())


@given(
    st.one_of(finite.filter(lambda y: abs(y) < 1e300), beside),
    st.one_of(st.just(0.0), st.floats(0, 1e300), st.integers(-70, -20)),
    st.sampled_from([1.0, 4.0]),
)
@settings(max_examples=200)
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


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_the_ordinal_has_the_order_of_the_numbers(a: int, b: int) -> None:
    if ieee.is_nan(a) or ieee.is_nan(b):
        return
    x, y = int(ordinal(f32(a))), int(ordinal(f32(b)))
    assert (x < y) == ieee.less(a, b) and (x == y) == ieee.equal(a, b)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_both_zeros_lie_between_the_smallest_numbers(zero: float) -> None:
    z = torch.tensor([zero])
    assert bool(adjacent(f32(0x80000001), z)) and bool(adjacent(z, f32(1)))
    assert not bool(adjacent(f32(0x80000001), f32(1)))
