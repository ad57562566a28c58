"""Infinities and NaN, and where a run stops at them: the contract finds what the reference in Python finds."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from roundlog.adjudication.adjudicate import DisputedStep, NoAnswer, adjudicate, encode
from roundlog.definitions import FLOATS, Copy
from roundlog.descriptors import Descriptor, Family, Input, Row
from roundlog.program import DType

from tests.client.adjudication.contract_answers import Memory, compare
from tests.engine.adjudication.adjudication_cases import Bits, descriptor_of
from tests.engine.operators.hostile_numbers import INEXACT, hostile

INFINITY, SIGN = 0x7F800000, 0x80000000
NUMBERS = [0, SIGN, 0x3F800000, 1, 0x7F7FFFFF, 0x7F7FFFFF | SIGN]
SPECIAL = [INFINITY, INFINITY | SIGN, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF]
STEP = DisputedStep(step=0, seed=0, batch_size=1, data_rows=1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_stored_has_to_be_finite(adjudicator: Any, dtype: DType) -> None:
    format = dtype.number_format()
    assert format is not None
    operand = Input(0, dtype, (1,), (Row(0, ()),))
    stored = Descriptor(family=Family.COPY, code=Copy.FINITE, dtype=dtype, iteration=(), inputs=(operand,))
    copied, infinity = replace(stored, code=Copy.ANY), format.infinity
    for bits in (0, 1, infinity - 1, infinity, infinity | format.sign, format.nan, infinity + 1, 2 * format.sign - 1):
        memory = Memory(values={0: encode(dtype, bits)})
        is_finite = bits & ~format.sign < infinity
        assert compare(adjudicator, stored, 0, STEP, memory) == (bits if is_finite else NoAnswer.NO_VALUE)
        assert compare(adjudicator, copied, 0, STEP, memory) == bits


@pytest.mark.slow_but("matmul", "exp")
@pytest.mark.parametrize("name", INEXACT)
def test_an_inexact_operator_has_the_engines_infinities(adjudicator: Any, name: str) -> None:
    """The engine is held against the reference in tests/engine/adjudication/test_against_kernels.py, by such cases."""
    rng = Random(f"infinities on a chain {name}")
    for case in hostile(name, rng, 3, nan=True):
        descriptor, held = descriptor_of(name, case.inputs, case.attributes), Bits(case.inputs)
        memory = Memory(values=dict(enumerate(held.data)))
        answers = [adjudicate(descriptor, element, STEP, held) for element in range(descriptor.elements)]
        special = [e for e, answer in enumerate(answers) if isinstance(answer, int) and answer & ~SIGN >= INFINITY]
        others = [element for element in range(descriptor.elements) if element not in special]
        for element in (*rng.sample(special, min(2, len(special))), *rng.sample(others, min(2, len(others)))):
            assert compare(adjudicator, descriptor, element, STEP, memory) == answers[element]


@pytest.mark.parametrize("inputs", [1, 2])
def test_a_long_sum_has_an_answer_segment_by_segment(adjudicator: Any, inputs: int) -> None:
    rng = Random(f"long sums {inputs}")
    terms, found = 150, set()
    for _ in range(8):
        pool = [*rng.sample(NUMBERS, 4), *rng.choices(SPECIAL, k=rng.choice([0, 0, 1, 2]))]
        data = [
            b"".join(encode(DType.F32, rng.choice(pool if rng.random() < 0.02 else pool[:4])) for _ in range(terms))
            for _ in range(inputs)
        ]
        items = tuple(Input(number, DType.F32, (terms,), (Row(0, (1,)),)) for number in range(inputs))
        descriptor = Descriptor(
            family=Family.SUM, dtype=DType.F32, segment=64, iteration=(), reduction=(terms,), inputs=items
        )
        answer = compare(adjudicator, descriptor, 0, STEP, Memory(values=dict(enumerate(data))))
        assert isinstance(answer, int)
        found.add(answer if answer & ~SIGN >= INFINITY else 0)
    assert len(found) > 2, found
