"""Formats of numbers, and the reference of rounding, against PyTorch's conversions and against a search in a table of
all numbers of a format."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format, narrow_float32

E5M2 = Format(5, 2)
TORCH = {BFLOAT16: torch.bfloat16, FLOAT16: torch.float16, E5M2: torch.float8_e5m2, FLOAT32: torch.float32}
SHORT = (BFLOAT16, FLOAT16, E5M2)
shorts = st.sampled_from(SHORT)


def words(kind: Format, x: torch.Tensor) -> list[int]:
    """Encodings that PyTorch gives FP32 numbers in a format."""
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32}[kind.itemsize]
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32}[kind.itemsize]
    return [int(word) for word in x.to(TORCH[kind]).view(signed).numpy().view(unsigned)]


def numbers(kind: Format) -> torch.Tensor:
    """FP32 numbers of all encodings of a short format, in their order, as PyTorch reads them."""
    if kind.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(TORCH[kind]).float()
    return torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16)).view(TORCH[kind]).float()


@cache
def magnitudes(kind: Format) -> list[Fraction]:
    """All finite magnitudes, ascending, and the power of two that would come next."""
    found = [Fraction(float(x)) for x in numbers(kind)[: kind.infinity]]
    return [*found, 2 * found[-1] - found[-2]]


def searched(kind: Format, number: Fraction) -> int:
    """Encoding of the nearest number, by a search among all of them; ties go to the even encoding."""
    table, magnitude = magnitudes(kind), abs(number)
    below = min(bisect_right(table, magnitude), len(table) - 1) - 1
    down, up = magnitude - table[below], table[below + 1] - magnitude
    word = below + (up < down or (up == down and below % 2 == 1))
    return word | (kind.sign if number < 0 else 0)


@pytest.mark.slow_but("*exponent_bits=8*")
@pytest.mark.parametrize("kind", SHORT, ids=str)
def test_encodings_stand_for_pytorchs_numbers_and_come_back(kind: Format) -> None:
    read = numbers(kind)
    for word in (*range(0, len(read), 5), *range(kind.infinity - 3, kind.infinity + 2), kind.sign):
        x = read[word]
        assert kind.is_finite(word) == bool(x.isfinite())
        if kind.is_finite(word):
            number = Fraction(float(x))
            assert kind.value(word) == number
            assert kind.nearest(number) == (0 if number == 0 else word)


@pytest.mark.parametrize("kind", TORCH, ids=str)
def test_ends_of_the_range_are_pytorchs(kind: Format) -> None:
    info = torch.finfo(TORCH[kind])
    assert (kind.width <= info.bits, kind.itemsize * 8) == (True, info.bits)
    assert kind.largest == info.max and kind.limit > kind.largest
    assert 2.0**kind.least_exponent == info.smallest_normal
    assert 2.0**kind.least_place == info.smallest_normal * info.eps
    infinity, nan = torch.tensor([torch.inf, -torch.inf]), torch.tensor([torch.nan])
    assert words(kind, infinity) == [kind.infinity, kind.sign | kind.infinity]
    assert bool(torch.isnan(nan.to(TORCH[kind]))) and not kind.is_finite(kind.nan) and kind.nan != kind.infinity


@given(shorts, st.integers(0, 2**15 - 1), st.integers(-300, 0), st.sampled_from([-1, 0, 1]), st.booleans())
@settings(max_examples=200)
def test_what_fp32_does_not_hold_rounds_once(kind: Format, at: int, place: int, off: int, negative: bool) -> None:
    """Beside a midpoint by less than FP32, or FP64, can tell: rounding twice would take the midpoint's way."""
    table = magnitudes(kind)
    at %= len(table) - 1
    number = (table[at] + table[at + 1]) / 2 + off * Fraction(2) ** (kind.least_place - 2 + place)
    number = -number if negative else number
    assert kind.nearest(number) == searched(kind, number)


@pytest.mark.parametrize("kind", SHORT, ids=str)
def test_overflow_begins_half_a_place_past_the_largest_number(kind: Format) -> None:
    largest = Fraction(kind.largest)
    middle = (largest + Fraction(kind.limit)) / 2
    assert kind.nearest(largest) == kind.nearest(middle - Fraction(1, 10**60)) == kind.infinity - 1
    assert kind.nearest(middle) == kind.nearest(Fraction(10) ** 60) == kind.infinity
    assert kind.nearest(-middle) == kind.sign | kind.infinity
    half_of_least = Fraction(2) ** (kind.least_place - 1)
    assert kind.nearest(half_of_least) == 0 and kind.nearest(-half_of_least) == kind.sign
    assert kind.nearest(half_of_least * Fraction(10**40 + 1, 10**40)) == 1


def test_narrow_formats_are_fp32_numbers_with_less_fraction() -> None:
    assert narrow_float32(32) == FLOAT32 and narrow_float32(23) == Format(8, 14)
    for bits in range(23, 33):
        kind = narrow_float32(bits)
        assert (kind.width, kind.itemsize, kind.limit) == (bits, 4, FLOAT32.limit)
        assert kind.infinity << 32 - bits == FLOAT32.infinity and kind.nan << 32 - bits == FLOAT32.nan
        word = 0x3F800001 >> 32 - bits
        assert kind.value(word) == FLOAT32.value(word << 32 - bits)
    for bits in (22, 33):
        with pytest.raises(ValueError, match=f"^{bits} bits are outside 23..32$"):
            narrow_float32(bits)
    for sizes in ((9, 10), (1, 5), (8, 24), (5, 0)):
        with pytest.raises(ValueError, match="numbers that are not FP32 numbers"):
            Format(*sizes)
