"""The contract's fixed-point functions: their intervals hold the value, and they decide what the engine decides."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import mpmath
import numpy as np
import pytest
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication import fixed_point as fixed
from roundlog.adjudication.adjudicate import function_value
from roundlog.arithmetic import round_function
from roundlog.definitions import Family, of_family
from roundlog.number_format import narrow_float32
from roundlog.program import DType

from tests.engine.operators import operands as of

NAMES = [one.name for one in of_family(Family.FUNCTION)]

INTERESTING = [
    (-104.5, -86.0), (86.0, 90.0), (-20.0, 20.0), (-1.0, 1.0), (0.5, 2.0), (-(2.0**-12), 2.0**-12),
    (-4.1, 4.1), (-10.5, 10.5), (1e3, 1e9), (-(2.0**-25), 2.0**-25),
]  # fmt: skip


def bits_of(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def arguments(rng: Random, count: int) -> list[int]:
    chosen = [bits_of(x) for x in of.CORNERS] + [ieee.INFINITY, ieee.SIGN | ieee.INFINITY]
    # Around every threshold of the algorithms, and around every power of two.
    for edge in (128.0, 104.0, 88.7228, 32.0, 17.0, 10.0, 4.0, 1.0, 2.0**-13, 2.0**-26, 0.69314718, 1.5707964):
        near = bits_of(edge)
        chosen += [sign | (near + off) for off in range(-3, 4) for sign in (0, ieee.SIGN)]
    chosen += [sign | (e << 23) for e in range(255) for sign in (0, ieee.SIGN)]
    for low, high in INTERESTING:
        chosen += [bits_of(rng.uniform(low, high)) for _ in range(count)]
    chosen += [rng.getrandbits(32) for _ in range(count)]
    return [x for x in chosen if not ieee.is_nan(x)]


def value(bits: int) -> float:
    return float(of.f32(bits))


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_decides_every_function_as_the_engine_does(name: str) -> None:
    xs = arguments(Random(f"functions {name}"), 30)
    with np.errstate(all="ignore"):
        right = round_function(name, np.array(xs, dtype=np.uint32).view(np.float32)).view(np.uint32).tolist()
    for x, expected in zip(xs, right, strict=True):
        expected = ieee.NAN if ieee.is_nan(expected) else expected
        assert fixed.evaluate(name, x) == expected, (name, hex(x), value(x), hex(expected))


@pytest.mark.slow_but("exp-23", "sin-31")
@pytest.mark.parametrize("width", [23, 31])
@pytest.mark.parametrize("name", NAMES)
def test_narrower_formats_are_rounded_to_once(name: str, width: int) -> None:
    """Arguments may be any FP32 number: some are midpoints of the narrower format, and tiny ones are all but values."""
    xs = arguments(Random(f"narrow {name} {width}"), 5)
    with np.errstate(all="ignore"):
        patterns = np.array(xs, dtype=np.uint32).view(np.float32)
        right = round_function(name, patterns, narrow_float32(width)).view(np.uint32).tolist()
    for x, expected in zip(xs, right, strict=True):
        expected = ieee.NAN if ieee.is_nan(expected) else expected
        assert fixed.evaluate(name, x, narrow_float32(width)) == expected, (name, hex(x), value(x), hex(expected))


@pytest.mark.parametrize("name", NAMES)
def test_every_interval_holds_the_value_with_room_to_spare(name: str) -> None:
    """The argued error bounds are at least twice what is found, and fine enough to decide."""
    function = getattr(mpmath, name)
    found = 0
    for x in arguments(Random(f"intervals {name}"), 30):
        interval = fixed._FUNCTIONS[name](x) if ieee.is_finite(x) else 0
        if isinstance(interval, int) or not interval.error:
            continue
        with mpmath.workprec(700):
            exact = function(mpmath.mpf(value(x)))
            scaled = mpmath.ldexp(exact, -interval.exponent)
            distance = abs(scaled - interval.number)
            assert 2 * distance < interval.error, (name, hex(x), distance, interval.error)
            assert interval.error < abs(interval.number) * mpmath.mpf(2) ** -76, (name, hex(x))
        found += 1
    assert found > 100


def test_no_intermediate_number_needs_more_than_255_bits() -> None:
    """A signed word of Solidity holds 255 bits; tried are the largest products, at the largest arguments."""
    y, k = fixed._exponential(False, 0xFFFFFF, -17)
    assert (y << k).bit_length() <= 255 or k > 128
    assert (fixed._fixed(0xFFFFFF, -17, fixed.FRACTION_BITS) << fixed.GUARD_BITS).bit_length() <= 255
    assert (((1 << 128) - 1) << fixed.FRACTION_BITS).bit_length() <= 255
    e28, k28 = fixed._exponential(False, 0xA00000, -19)  # x = 20: the largest argument of tanh, doubled
    assert (((e28 << k28) - fixed.ONE) << fixed.TANH_BITS).bit_length() <= 255
    square = fixed._fixed(0xFFFFFF * 0xFFFFFF, -44, fixed.ERF_BITS)
    terms = [1 << fixed.ERF_BITS]
    while terms[-1]:
        assert (terms[-1] * square).bit_length() <= 255
        terms.append(terms[-1] * square // (len(terms) << fixed.ERF_BITS))
    assert len(terms) <= 98


def test_an_interval_that_holds_a_boundary_is_not_decided() -> None:
    halfway = (1 << 24) + 1  # beyond 2^24, FP32 has the even integers only
    assert fixed.round_interval(fixed.Interval(halfway, 1, 0)) is None
    assert fixed.round_interval(fixed.Interval(halfway << 4, 1, -4)) is None
    assert fixed.round_interval(fixed.Interval((halfway << 4) + 2, 1, -4)) == ieee.rounded(Fraction(halfway + 1))
    assert fixed.round_interval(fixed.Interval(0, 1, -300)) == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_the_contract_is_given_is_what_fixed_point_decides(name: str) -> None:
    rng = Random("referee")
    for _ in range(30):
        x = rng.randrange(1 << 31) & 0xBFFFFFFF
        for dtype in (DType.BF16, DType.F16):
            format, short = dtype.number_format(), x >> 16
            decided = fixed.evaluate(name, format.in_float32(short), format)
            assert decided is not None and function_value(name, short, dtype) == format.of_float32(decided)
        for bits in (24, 32):
            decided = fixed.evaluate(name, x, narrow_float32(bits))
            found = function_value(name, x, DType.F32, narrow_float32(bits))
            assert found == decided or not np.isfinite(np.uint32(found).view(np.float32)), (name, hex(x))
