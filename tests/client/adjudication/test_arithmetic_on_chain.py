"""The contract's arithmetic, in transactions, against integers and fractions: cases that hypothesis looks for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.randomness import philox_word, row_of_position
from web3 import Web3

from tests.client.adjudication.contract_answers import deployed_harness

BATCH = 50
OPERATORS = {
    "ADD": ieee.add,
    "SUB": ieee.subtract,
    "MUL": ieee.multiply,
    "DIV": ieee.divide,
    "SQRT": lambda a, b: ieee.root(a),
    "FLOOR": lambda a, b: ieee.floor(a),
    "MAXIMUM": lambda a, b: ieee.NAN if ieee.is_nan(a) or ieee.is_nan(b) else a if ieee.less(b, a) else b,
    "MINIMUM": lambda a, b: ieee.NAN if ieee.is_nan(a) or ieee.is_nan(b) else a if ieee.less(a, b) else b,
    "EQ": ieee.equal,
    "LT": ieee.less,
    "LE": lambda a, b: ieee.less(a, b) or ieee.equal(a, b),
}
"""In the order of ArithmeticHarness.Operator; its last one is FROM_INT64."""

exponents = st.integers(0, 255) | st.sampled_from([0, 1, 2, 24, 102, 126, 127, 128, 149, 150, 151, 254, 255])
fractions = (
    st.integers(0, 0x7FFFFF)
    | st.sampled_from([0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF])
    | st.integers(0, 22).map(lambda bit: 1 << bit)
)
patterns = st.builds(lambda s, e, f: s << 31 | e << 23 | f, st.booleans(), exponents, fractions)
finite = patterns.filter(ieee.is_finite)


@st.composite
def near(draw: st.DrawFn) -> tuple[int, int]:
    """Two patterns whose sum or quotient is likely to lie on a boundary: near exponents, alike fractions."""
    a = draw(patterns)
    exponent = max(0, min(255, (a >> 23 & 0xFF) + draw(st.integers(-27, 27))))
    b = draw(st.booleans()) << 31 | exponent << 23 | draw(fractions)
    return (a, b) if draw(st.booleans()) else (b, a)


chain = settings(
    max_examples=8,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def harness(web3: Web3) -> Any:
    return deployed_harness(web3, "ArithmeticHarness")


def canonical(bits: int) -> int:
    return ieee.NAN if ieee.is_nan(bits) else bits


@pytest.mark.slow
@chain
@given(st.lists(st.tuples(patterns, patterns) | near(), min_size=BATCH, max_size=BATCH))
def test_every_scalar_operator_is_ieee_754(harness: Any, pairs: list[tuple[int, int]]) -> None:
    left, right = zip(*pairs, strict=True)
    for code, (name, function) in enumerate(OPERATORS.items()):
        results = harness.functions.map(code, left, right).call()
        for a, b, result in zip(left, right, results, strict=True):
            expected = int(function(a, b))
            if name not in ("EQ", "LT", "LE"):
                expected = canonical(expected)
            assert result == expected, (name, hex(a), hex(b), hex(result), hex(expected))


@chain
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=BATCH, max_size=BATCH))
def test_integers_become_the_nearest_number(harness: Any, numbers: list[int]) -> None:
    words = [number % 2**64 for number in numbers]
    results = harness.functions.map(len(OPERATORS), words, words).call()
    assert results == [ieee.nearest(Fraction(number)) for number in numbers]


@st.composite
def terms(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Products, some of them taken back but for a bit, so that what is left is far below what was added."""
    drawn = draw(st.lists(st.tuples(finite, finite), max_size=40))
    back = draw(st.lists(st.sampled_from(drawn), max_size=20)) if drawn else []
    return drawn + [(a ^ ieee.SIGN ^ draw(st.integers(0, 1)), b) for a, b in back]


@chain
@given(terms())
def test_sums_of_products_are_exact_and_rounded_once(harness: Any, products: list[tuple[int, int]]) -> None:
    left, right = [a for a, _ in products], [b for _, b in products]
    (high, middle, low), rounded = harness.functions.sum(left, right).call()
    exact = sum(ieee.scaled(a) * ieee.scaled(b) for a, b in products)
    assert (high << 512) + (middle << 256) + low == exact
    assert rounded == ieee.rounded(Fraction(exact, 1 << 298))


uint64, uint32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


@chain
@given(uint64, uint32, uint32, st.lists(st.integers(0, 2**40 - 1), max_size=20))
def test_random_numbers_are_those_of_the_engine(
    harness: Any, seed: int, step: int, stream: int, where: list[int]
) -> None:
    expected = [ieee.nearest(Fraction(philox_word(seed, step, stream, i) >> 8, 1 << 24)) for i in where]
    assert harness.functions.uniform(seed, step, stream, where).call() == expected


@chain
@given(uint64, st.integers(0, 2**50), st.integers(1, 2**40))
def test_rows_are_those_of_the_engine(harness: Any, seed: int, position: int, rows: int) -> None:
    assert harness.functions.rowOfPosition(seed, position, rows).call() == row_of_position(seed, position, rows)
