"""Where a run stops, the contract finds no value; by the same cases as the reference in Python."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from adjudication_cases import Bits, descriptor_of
from contract_answers import Memory, compare
from hostile_numbers import INEXACT, hostile
from roundlog.adjudication import Descriptor, Family, Input, Row, Scalar, encode_descriptor
from roundlog.adjudication.adjudicate import Outcome, Step, adjudicate, encode
from roundlog.adjudication.check import SIGNATURES
from roundlog.adjudication.descriptor import Copy
from roundlog.commitments import CHUNK_SIZE, leaf_hash
from roundlog.program import DType

INFINITY, LARGEST, TINY, ONE, SIGN = 0x7F800000, 0x7F7FFFFF, 1, 0x3F800000, 0x80000000
PATTERNS = [0, SIGN, ONE, TINY, LARGEST, LARGEST | SIGN, INFINITY, INFINITY | SIGN, 0x7F000000, 0x60000000]
STEP = Step(step=0, seed=0, batch_size=1, data_rows=1)
SETTING = (
    (
        1,
        1,
        b"p" * 32,
        1,
        b"i" * 32,
        1,
        b"d" * 32,
        1,
        1,
        b"s" * 32,
        0,
        CHUNK_SIZE,
        0,
        32,
        4,
        1,
        "0x" + "11" * 20,
        "0x" + "22" * 20,
    ),
    0,
    bytes(32),
)
VALUE, STOPS = 0, 1


class Operands:
    """One-element tensors of one chunk each."""

    def __init__(self, operands: list[tuple[DType, int]]) -> None:
        self.data = [encode(dtype, bits) for dtype, bits in operands]

    def payload(self, chunk: Any) -> bytes:
        return self.data[chunk.tensor]


def both(adjudicator: Any, descriptor: Descriptor, operands: list[tuple[DType, int]]) -> int | Outcome:
    """The reference's answer, which has to be the contract's."""
    held = Operands(operands)
    answer = adjudicate(descriptor, 0, STEP, held)
    roots = [leaf_hash(data) for data in held.data]
    openings = [(number, 0, data, []) for number, data in enumerate(held.data)]
    asked = (encode_descriptor(descriptor), roots, 0)
    finding, bits = adjudicator.functions.compute(SETTING, asked, openings).call()
    assert finding == (STOPS if answer is Outcome.NO_VALUE else VALUE), (descriptor.code, operands)
    if not isinstance(answer, Outcome):
        assert bits == answer, (descriptor.code, operands)
    return answer


def reading(family: Family, code: int, dtype: DType, *inputs: DType) -> Descriptor:
    items = tuple(Input(number, kind, (1,), (Row(0, ()),)) for number, kind in enumerate(inputs))
    return Descriptor(family=family, code=code, dtype=dtype, iteration=(), inputs=items)


@pytest.mark.parametrize("code", [code for code in Scalar if code <= Scalar.F32_MINIMUM], ids=lambda code: code.name)
def test_an_infinity_has_to_come_in(adjudicator: Any, code: Scalar) -> None:
    kinds, dtype = SIGNATURES[code]
    descriptor = reading(Family.MAP, code, dtype, *kinds)
    rng = Random(code.name)
    pairs = [(a, b) for a in PATTERNS for b in PATTERNS]
    answers = [both(adjudicator, descriptor, list(zip(kinds, pair, strict=False))) for pair in rng.sample(pairs, 40)]
    assert any(not isinstance(answer, Outcome) for answer in answers)


def test_what_is_stored_has_to_be_finite(adjudicator: Any) -> None:
    stored = reading(Family.COPY, Copy.FINITE, DType.F32, DType.F32)
    copied = replace(stored, code=Copy.ANY)
    for bits in PATTERNS:
        infinite = bits & ~SIGN == INFINITY
        assert both(adjudicator, stored, [(DType.F32, bits)]) == (Outcome.NO_VALUE if infinite else bits)
        assert both(adjudicator, copied, [(DType.F32, bits)]) == bits


@pytest.mark.parametrize("name", INEXACT)
def test_infinities_stop_an_inexact_operator_where_they_stop_the_engine(adjudicator: Any, name: str) -> None:
    """The engine is held against the reference in tests/engine/adjudication/test_infinities.py, by such cases."""
    rng = Random(f"infinities on a chain {name}")
    for case in hostile(name, rng, 6, nan=True):
        descriptor, held = descriptor_of(name, case.inputs, case.attributes), Bits(case.inputs)
        memory = Memory(values=dict(enumerate(held.data)))
        answers = [adjudicate(descriptor, element, STEP, held) for element in range(descriptor.elements)]
        stops = [element for element, answer in enumerate(answers) if answer is Outcome.NO_VALUE]
        values = [element for element in range(descriptor.elements) if element not in stops]
        for element in (*stops[:1], *rng.sample(values, min(2, len(values)))):
            assert compare(adjudicator, descriptor, element, STEP, memory) == answers[element]
