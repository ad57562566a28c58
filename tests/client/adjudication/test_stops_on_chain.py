"""Infinities and NaN, and where a run stops at them: the contract finds what the reference in Python finds."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from roundlog.adjudication.adjudicate import DisputedStep, NoAnswer, adjudicate, encode
from roundlog.commitments import CHUNK_SIZE, leaf_hash
from roundlog.definitions import FLOATS, Copy, Signature, code_name, of_family
from roundlog.descriptors import Descriptor, Family, Input, Row, encode_descriptor
from roundlog.number_format import Format
from roundlog.program import DType

from tests.client.adjudication.contract_answers import Memory, compare
from tests.engine.adjudication.adjudication_cases import Bits, descriptor_of
from tests.engine.operators.hostile_numbers import INEXACT, hostile

INFINITY, LARGEST, TINY, ONE, SIGN = 0x7F800000, 0x7F7FFFFF, 1, 0x3F800000, 0x80000000
NANS = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF]
PATTERNS = [0, SIGN, ONE, TINY, LARGEST, LARGEST | SIGN, INFINITY, INFINITY | SIGN, 0x7F000000, 0x60000000, *NANS]
STEP = DisputedStep(step=0, seed=0, batch_size=1, data_rows=1)
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


def both(adjudicator: Any, descriptor: Descriptor, operands: list[tuple[DType, int]]) -> int | NoAnswer:
    """The reference's answer, which has to be the contract's."""
    held = Operands(operands)
    answer = adjudicate(descriptor, 0, STEP, held)
    roots = [leaf_hash(data) for data in held.data]
    openings = [(number, 0, data, []) for number, data in enumerate(held.data)]
    asked = (encode_descriptor(descriptor), roots, 0)
    finding, bits = adjudicator.functions.compute(SETTING, asked, openings).call()
    assert finding == (STOPS if answer is NoAnswer.NO_VALUE else VALUE), (descriptor.code, operands)
    if not isinstance(answer, NoAnswer):
        assert bits == answer, (descriptor.code, operands)
    return answer


def reading(family: Family, code: int, dtype: DType, *inputs: DType) -> Descriptor:
    items = tuple(Input(number, kind, (1,), (Row(0, ()),)) for number, kind in enumerate(inputs))
    return Descriptor(family=family, code=code, dtype=dtype, iteration=(), inputs=items)


def format_of(dtype: DType) -> Format:
    format = dtype.number_format()
    assert format is not None
    return format


def patterns(dtype: DType) -> list[int]:
    """PATTERNS as numbers of a dtype's format, its ends and NaN of any bits among them."""
    format = format_of(dtype)
    others = [format.infinity + 1, format.infinity - 1, 1, 2 * format.sign - 1]
    return PATTERNS if dtype == DType.F32 else [*map(format.of_float32, PATTERNS), *others]


OF_NUMBERS = [
    each
    for one in of_family(Family.MAP)
    for each in one.formats
    if each.output in FLOATS and all(dtype in FLOATS for dtype in each.inputs)
]


def called(signature: Signature) -> str:
    return "-".join([code_name(Family.MAP, signature.code), *map(str, (*signature.inputs[:1], signature.output))])


@pytest.mark.slow_but("FLOAT_ADD-bf16-bf16", "FLOAT_MUL-f16-f16", "FLOAT_ADD-f32-f32", "FLOAT_TO_FLOAT-f32-*")
@pytest.mark.parametrize("signature", OF_NUMBERS, ids=called)
def test_an_exact_operator_has_a_value_whatever_comes_in(adjudicator: Any, signature: Signature) -> None:
    kinds = [kind for kind in signature.inputs if kind is not None]
    assert signature.output is not None
    descriptor = reading(Family.MAP, signature.code, signature.output, *kinds)
    rng, format = Random(code_name(Family.MAP, signature.code)), format_of(signature.output)
    pairs = [(a, b) for a in patterns(kinds[0]) for b in patterns(kinds[0])]
    answers = [both(adjudicator, descriptor, list(zip(kinds, pair, strict=False))) for pair in rng.sample(pairs, 40)]
    assert not any(isinstance(answer, NoAnswer) for answer in answers)
    # There is one NaN.
    nans = {answer for answer in answers if isinstance(answer, int) and answer & ~format.sign > format.infinity}
    assert nans == {format.nan}


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_stored_has_to_be_finite(adjudicator: Any, dtype: DType) -> None:
    stored = reading(Family.COPY, Copy.FINITE, dtype, dtype)
    copied, format = replace(stored, code=Copy.ANY), format_of(dtype)
    for bits in patterns(dtype):
        finite = bits & ~format.sign < format.infinity
        assert both(adjudicator, stored, [(dtype, bits)]) == (bits if finite else NoAnswer.NO_VALUE)
        assert both(adjudicator, copied, [(dtype, bits)]) == bits


@pytest.mark.parametrize("name", INEXACT)
def test_an_inexact_operator_has_the_engines_infinities(adjudicator: Any, name: str) -> None:
    """The engine is held against the reference in tests/engine/adjudication/test_against_kernels.py, by such cases."""
    rng = Random(f"infinities on a chain {name}")
    for case in hostile(name, rng, 6, nan=True):
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
    terms, found = 300, set()
    for _ in range(8):
        pool = [*rng.sample(PATTERNS[:6], 4), *rng.choices(PATTERNS[6:8] + NANS, k=rng.choice([0, 1, 1, 2]))]
        data = [
            b"".join(encode(DType.F32, rng.choice(pool if rng.random() < 0.05 else pool[:4])) for _ in range(terms))
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
