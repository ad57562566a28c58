"""Groups of tensor cores on a chain, against the reference: drawn by the rules of the vectors, and of any patterns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from make_arithmetic_vectors import packed
from make_tensor_core_vectors import RULES, Draws, Group, result
from roundlog.adjudication import binary32 as ieee
from roundlog.definitions.tensor_core import ARITHMETICS, OPERAND_FORMATS, TensorCoreArithmetic
from roundlog.number_format import FLOAT32, Format
from web3 import Web3

from tests.client.adjudication.contract_answers import deployed_harness

BATCH = 250
SETS = [(one, format) for one in ARITHMETICS.values() for format in one.terms]


@pytest.fixture(scope="module")
def harness(web3: Web3) -> Any:
    return deployed_harness(web3, "TensorCoreHarness")


def any_number(rng: Random, format: Format) -> int:
    """Any encoding, near the ends of the range, or a zero."""
    exponents, fractions = 1 << format.exponent_bits, 1 << format.fraction_bits
    exponent = rng.choice(
        [rng.randrange(exponents), rng.randrange(3), exponents - 2 - rng.randrange(2), exponents // 2]
    )
    fraction = rng.choice([0, rng.randrange(fractions), 1 << rng.randrange(format.fraction_bits), fractions - 1])
    word = rng.getrandbits(1) * format.sign + exponent * fractions + fraction
    return format.in_float32(rng.choice([word, word, word, 0, format.sign]))


def anything(rng: Random, arithmetic: TensorCoreArithmetic, name: str, count: int) -> Iterator[Group]:
    format = OPERAND_FORMATS[name]
    for _ in range(count):
        a, b = ([any_number(rng, format) for _ in range(arithmetic.terms[name])] for _ in range(2))
        for number in rng.sample(range(len(a)), len(a) // 2):
            # Most partners bring a product's exponent near 2^0.
            exponent = 127 - ((a[number] >> 23 & 0xFF) - 127) + rng.randrange(-20, 20)
            low, high = format.least_exponent + 127, format.largest_exponent + 127
            b[number] = b[number] & ~ieee.INFINITY | min(max(exponent, low), high) << 23
            b[number] &= ~((1 << 23 - format.fraction_bits) - 1)
        yield rng.choice([0, any_number(rng, FLOAT32), ieee.negate(ieee.multiply(a[0], b[0]))]), a, b


def check(harness: Any, arithmetic: TensorCoreArithmetic, name: str, cases: Sequence[Group]) -> int:
    """How many of the groups have a value, which are the contract's too."""
    format, found = OPERAND_FORMATS[name], 0
    rule = (
        arithmetic.fraction_bits,
        arithmetic.terms[name],
        format.least_exponent + 127,
        name in arithmetic.subnormals,
    )
    for start in range(0, len(cases), BATCH):
        some = cases[start : start + BATCH]
        data = b"".join(packed(c, *a, *b) for c, a, b in some)
        answers = harness.functions.groups(rule, data).call({"gas": 10**9})
        for position, case in enumerate(some):
            answer = int.from_bytes(answers[4 * position : 4 * position + 4], "big")
            assert answer == result(arithmetic, name, case), (arithmetic.name, name, case)
            found += answer != ieee.NAN
    return found


@pytest.mark.parametrize(("arithmetic", "name"), SETS, ids=lambda one: getattr(one, "name", one))
def test_a_group_is_what_the_reference_says(harness: Any, arithmetic: TensorCoreArithmetic, name: str) -> None:
    draws = Draws(f"on a chain {arithmetic.name} {name}")
    format, terms = OPERAND_FORMATS[name], arithmetic.terms[name]
    cases = [RULES[i % len(RULES)](draws, format, terms, arithmetic.fraction_bits) for i in range(BATCH)]
    assert check(harness, arithmetic, name, cases) > BATCH // 2
    cases = list(anything(Random(f"{arithmetic.name} {name}"), arithmetic, name, BATCH))
    assert 0 < check(harness, arithmetic, name, cases) < BATCH


@pytest.mark.long
def test_very_many_groups_are_what_the_reference_says(harness: Any) -> None:
    for seed in range(40):
        for arithmetic, name in SETS:
            check(harness, arithmetic, name, list(anything(Random(seed), arithmetic, name, BATCH)))
