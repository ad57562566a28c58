"""Descriptors: the short form reads what the long one does, hostile ones are refused, segments cost what they may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.adjudication.adjudicate import index_of, read, segments
from roundlog.capture.builder import Builder
from roundlog.commitments import leaf_hash
from roundlog.definitions import FLOATS
from roundlog.descriptors import (
    Descriptor,
    DescriptorError,
    Family,
    Input,
    Row,
    describe,
    encode_descriptor,
    program_root,
    program_tree,
)
from roundlog.descriptors.describe import GAS_BUDGET, Subject, chunks_read, gas, rule_for
from roundlog.descriptors.descriptor import check_descriptor
from roundlog.program import DType, ProgramError, from_json

from tests.engine.adjudication.adjudication_cases import descriptor_of, kind_of, program_of
from tests.engine.operators.operator_cases import CASES, Case

NAMES = sorted(CASES)
VECTORS = json.loads((Path(__file__).resolve().parents[2] / "vectors" / "descriptors.json").read_text())


def some_cases(name: str, count: int) -> Iterator[Case]:
    found = list(CASES[name](Random(f"tiebreak {name}")))
    yield from Random(name).sample(found, min(count, len(found)))


def attributes_of(name: str, case: Case) -> dict[str, Any]:
    return {**case.attributes, **({"slot": 0} if name == "store" else {})}


@pytest.mark.parametrize("name", NAMES)
def test_the_short_form_reads_what_the_long_form_does(name: str) -> None:
    rng = Random(name)
    for case in some_cases(name, 12):
        attributes = attributes_of(name, case)
        program = program_of(name, case.inputs, attributes)
        rule = rule_for(name)
        assert rule is not None
        long = rule(Subject(program, len(program.nodes) - 1))
        short = descriptor_of(name, case.inputs, attributes)
        assert (long.elements, long.terms if long.elements else 0) == (
            short.elements,
            short.terms if long.elements else 0,
        )
        assert [i.elements for i in long.inputs] == [i.elements for i in short.inputs]
        for _ in range(20 if long.elements and long.terms else 0):
            element, term = rng.randrange(long.elements), rng.randrange(long.terms)
            at_long, at_short = index_of(long, element, term), index_of(short, element, term)
            for position, (a, b) in enumerate(zip(long.inputs, short.inputs, strict=True)):
                gathered = long.family == Family.GATHER and position == 0
                size = a.view[long.parameters[0]] if gathered else 0
                value = rng.randrange(-1, size + 1)
                replaced = [(d.parameters[0], value) if gathered else None for d in (long, short)]
                assert read(a, at_long, replaced[0]) == read(b, at_short, replaced[1]), (case.attributes, element, term)
            if long.family in (Family.ARGMAX, Family.SELECTED_SUM):
                assert long.label.at(at_long) == short.label.at(at_short)


@pytest.mark.parametrize("name", NAMES)
def test_an_encoded_descriptor_is_short(name: str) -> None:
    for case in some_cases(name, 6):
        assert len(encode_descriptor(descriptor_of(name, case.inputs, attributes_of(name, case)))) <= 4096


@settings(max_examples=150)
@given(st.data())
def test_no_run_of_terms_reads_more_chunks_than_the_bound(data: st.DataObject) -> None:
    """Axes that jump, overlap, walk backwards, divide and run out of the tensor."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    view = data.draw(st.lists(st.sampled_from([1, 3, 8, 40, 300, 2000]), min_size=1, max_size=3))
    number = st.sampled_from([0, 1, -1, 2, 3, 7, -8, 64, 255, -700])
    rows = [
        Row(
            data.draw(st.integers(-5, 900)),
            tuple(data.draw(number) for _ in sizes),
            data.draw(st.sampled_from([1, 1, 2, 3])),
        )
        for _ in view
    ]
    item = Input(0, data.draw(st.sampled_from([DType.F32, DType.BOOL])), tuple(view), tuple(rows))
    d = Descriptor(family=Family.SUM, dtype=DType.F32, segment=1, iteration=(), reduction=tuple(sizes), inputs=(item,))
    length = data.draw(st.integers(1, d.terms))
    places = [read(item, index_of(d, 0, term)) for term in range(d.terms)]
    bound = chunks_read(d, item, length)
    for first in range(d.terms - length + 1):
        run = {place * item.dtype.itemsize // 1024 for place in places[first : first + length] if place is not None}
        assert len(run) <= bound


def test_a_run_that_goes_back_to_the_beginning_of_an_axis_reads_its_end_too() -> None:
    item = Input(0, DType.F32, (40, 40), (Row(0, (0, 2)), Row(0, (0, 0))))
    d = Descriptor(family=Family.SUM, dtype=DType.F32, segment=1, iteration=(), reduction=(2, 8), inputs=(item,))
    places = [read(item, index_of(d, 0, term)) for term in (6, 7, 8)]
    assert [place * 4 // 1024 for place in places if place is not None] == [1, 2, 0]
    assert chunks_read(d, item, 3) == 3


def matrix_product(m: int, k: int, n: int) -> Descriptor:
    axes = (Row(0, (k, 0, 1)),), (Row(0, (0, 1, n)),)
    return Descriptor(
        family=Family.SUM,
        dtype=DType.F32,
        segment=1,
        iteration=(m, n),
        reduction=(k,),
        inputs=tuple(
            Input(value, DType.F32, (size,), rows)
            for value, (size, rows) in enumerate(zip((m * k, k * n), axes, strict=True))
        ),
    )


@pytest.mark.parametrize(("m", "k", "n", "terms"), [(8, 768, 3072, 8), (8, 50257, 768, 8), (8, 768, 64, 32)])
def test_a_segment_of_a_matrix_product_fits_a_transaction(m: int, k: int, n: int, terms: int) -> None:
    """Down a column, every term (or every fourth) is a chunk of its own, about 60,000 gas of calldata."""
    d = matrix_product(m, k, n)
    assert gas(d, terms) <= GAS_BUDGET < gas(d, 2 * terms)


def test_segments_cover_every_term_once() -> None:
    for terms, size in ((1, 1), (5, 2), (8, 4), (0, 3), (7, 100)):
        d = replace(matrix_product(1, terms, 1), segment=size, reduction=(terms,))
        assert [term for part in segments(d) for term in part] == list(range(terms))
        assert len(segments(d)) == max(1, -(-terms // size))


GOOD = matrix_product(4, 5, 3)
COPY = Descriptor(
    family=Family.COPY,
    dtype=DType.F32,
    iteration=(4,),
    inputs=(Input(0, DType.F32, (4,), (Row(0, (1,)),)),),
)
GATHER = Descriptor(
    family=Family.GATHER,
    dtype=DType.F32,
    iteration=(4,),
    inputs=(Input(0, DType.F32, (9,), (Row(0, (0,)),)), Input(1, DType.I64, (4,), (Row(0, (1,)),))),
    parameters=(0,),
)


def with_row(row: Row, view: int = 4) -> Descriptor:
    return replace(COPY, inputs=(Input(0, DType.F32, (view,), (row,)),))


def load(family: Family, dtype: DType, *parameters: int, elements: int = 4, root: bytes = bytes(32)) -> Descriptor:
    return Descriptor(family=family, dtype=dtype, iteration=(elements,), parameters=parameters, root=root)


def of_dtypes(descriptor: Descriptor, dtype: DType, *inputs: DType) -> Descriptor:
    """With other dtypes, of the output and of as many inputs."""
    found = zip(descriptor.inputs, inputs, strict=False)
    return replace(descriptor, dtype=dtype, inputs=tuple(replace(item, dtype=kind) for item, kind in found))


MAP = replace(COPY, family=Family.MAP, inputs=(COPY.inputs[0], replace(COPY.inputs[0], value=1)))
CONVERSION = of_dtypes(replace(MAP, code=31), DType.BF16, DType.F32)

HOSTILE = [
    (with_row(Row(0, (1,), 0)), "divisor 0"),
    (with_row(Row(2**63 - 1, (1,))), "leaves the range of int64"),
    (with_row(Row(0, (2**62,))), "leaves the range of int64"),
    (with_row(Row(2**63, (0,))), "does not fit int64"),
    (with_row(Row(0, (1, 1))), "2 coefficients for 1 axes"),
    (with_row(Row(0, (1,)), view=2**40 + 1), "at most 2\\^40"),
    (replace(COPY, inputs=(replace(COPY.inputs[0], view=(4, 1)),)), "1 rows for 2 view axes"),
    (replace(COPY, inputs=(replace(COPY.inputs[0], view=(1,) * 17, rows=(Row(0, (0,)),) * 17),)), "17 view axes"),
    (replace(COPY, inputs=(replace(COPY.inputs[0], value=2**64),)), "does not fit 64 bits"),
    (replace(COPY, inputs=COPY.inputs * 65), "65 inputs"),
    (replace(COPY, inputs=(COPY.inputs[0], replace(COPY.inputs[0], view=(8,)))), "two dtypes or sizes"),
    (replace(COPY, inputs=()), "reads nothing"),
    (replace(COPY, dtype=DType.I64), "reads f32 and gives i64"),
    (replace(COPY, iteration=(2**30, 2**30)), "at most 2\\^40"),
    (replace(COPY, iteration=(-1,)), "at most 2\\^40"),
    (replace(COPY, iteration=(1,) * 17), "17 iteration and reduction axes"),
    (replace(COPY, code=2), "unknown code 2"),
    (
        replace(COPY, code=1, dtype=DType.I64, inputs=(replace(COPY.inputs[0], dtype=DType.I64),)),
        "which COPY 1 does not",
    ),
    (replace(COPY, segment=1), "which COPY does not"),
    (replace(COPY, reduction=(2,)), "which COPY does not"),
    (replace(COPY, root=bytes([1]) * 32), "has a root"),
    (replace(GOOD, segment=0), "segments of 0 terms"),
    (replace(GOOD, segment=4097), "segments of 4097 terms"),
    (replace(GOOD, inputs=GOOD.inputs * 2), "which SUM 0 does not"),
    (replace(GOOD, family=Family.MAP, reduction=(), segment=0, code=32), "unknown code 32"),
    (replace(GOOD, family=Family.MAP, reduction=(), segment=0, code=4), "which MAP 4 does not"),
    (replace(GATHER, parameters=(1,)), "do not fit GATHER"),
    (replace(GATHER, inputs=GATHER.inputs[::-1]), "which GATHER 0 does not"),
    (replace(GATHER, inputs=(replace(GATHER.inputs[0], rows=(Row(0, (1,)),)), GATHER.inputs[1])), "do not fit GATHER"),
    (load(Family.STATE, DType.F32, -1), "do not fit STATE"),
    (load(Family.DATA, DType.F32, 4, 16, 4), "do not fit DATA"),
    (load(Family.DATA, DType.F32, 0, 16, 0), "do not fit DATA"),
    (load(Family.SCHEDULE, DType.F32, 2, 2, elements=1), "do not fit SCHEDULE"),
    (load(Family.IOTA, DType.I64, 2**63 - 3, 1), "do not fit IOTA"),
    (load(Family.UNIFORM, DType.F32, 2**32), "do not fit UNIFORM"),
    (load(Family.UNIFORM, DType.I64, 1), "reads nothing and gives i64, which UNIFORM 0 does not"),
    (load(Family.CONSTANT, DType.F32, 1, 2, 3), "do not fit CONSTANT"),
    (load(Family.CONSTANT, DType.F32, 2**32), "do not fit CONSTANT"),
    (load(Family.CONSTANT, DType.BOOL, 2), "do not fit CONSTANT"),
    (load(Family.CONSTANT, DType.F32), "do not fit CONSTANT"),
    (load(Family.CONSTANT, DType.F32, *range(33), elements=33), "do not fit CONSTANT"),
    (load(Family.CONSTANT, DType.F32, elements=33), "do not fit CONSTANT"),
    (load(Family.CONSTANT, DType.F32, 1, root=bytes([1]) * 32), "do not fit CONSTANT"),
    (load(Family.CONSTANT, DType.BF16, 2**16), "do not fit CONSTANT"),
    (load(Family.CONSTANT, DType.F16, -1), "do not fit CONSTANT"),
    (load(Family.SCHEDULE, DType.F16, 0, 1, elements=1), "reads nothing and gives f16, which SCHEDULE 0 does not"),
    (replace(load(Family.DATA, DType.BF16, 0, 1, 4, 4), code=3), "gives bf16, which DATA 3 does not"),
    (replace(COPY, dtype=DType.BF16), "reads f32 and gives bf16"),
    (of_dtypes(GOOD, DType.F32, DType.BF16, DType.BF16), "reads bf16, bf16 and gives f32, which SUM 0 does not"),
    (of_dtypes(GOOD, DType.BF16, DType.BF16, DType.F16), "reads bf16, f16 and gives bf16, which SUM 0 does not"),
    (of_dtypes(MAP, DType.BF16, DType.BF16, DType.F32), "reads bf16, f32 and gives bf16, which MAP 0 does not"),
    (of_dtypes(replace(MAP, code=11), DType.BOOL, DType.BF16, DType.F16), "which MAP 11 does not"),
    (of_dtypes(CONVERSION, DType.BF16, DType.BF16), "reads bf16 and gives bf16, which MAP 31 does not"),
    (of_dtypes(CONVERSION, DType.I64, DType.BF16), "reads bf16 and gives i64, which MAP 31 does not"),
    (of_dtypes(replace(CONVERSION, family=Family.FUNCTION, code=0), DType.F16, DType.F32), "which FUNCTION 0 does not"),
]


@pytest.mark.parametrize(("descriptor", "message"), HOSTILE)
def test_a_descriptor_that_no_operator_has_is_refused(descriptor: Descriptor, message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        check_descriptor(descriptor)
    with pytest.raises(DescriptorError):
        encode_descriptor(descriptor)


def test_valid_descriptors_are_encoded_each_in_its_own_way() -> None:
    short = (DType.BF16, DType.F16)
    numbers = [of_dtypes(one, kind, kind, kind) for one in (GOOD, MAP, replace(COPY, code=1)) for kind in short]
    compared = of_dtypes(replace(MAP, code=11), DType.BOOL, DType.F16, DType.F16)
    conversions = [of_dtypes(CONVERSION, a, b) for a in FLOATS for b in FLOATS if a != b]
    loads = [load(Family.CONSTANT, kind, 2**16 - 1) for kind in short]
    valid = [GOOD, COPY, GATHER, *numbers, compared, *conversions, *loads]
    assert len(set(map(encode_descriptor, valid))) == len(valid)


def test_the_program_of_the_vectors_gives_its_descriptors_leaves_and_root() -> None:
    """Solidity is tested with these vectors."""
    program = from_json(VECTORS["program"].encode())
    tree = program_tree(program)
    assert len(VECTORS["operators"]) == tree.count == len(program.nodes)
    for index, vector in enumerate(VECTORS["operators"]):
        encoded = bytes.fromhex(vector["encoded"][2:])
        assert encode_descriptor(describe(program, index)) == encoded
        assert "0x" + leaf_hash(encoded).hex() == vector["leaf"] == "0x" + tree.node(0, index).hex()
    assert "0x" + program_root(program).hex() == VECTORS["programRoot"]


def test_a_list_too_long_for_one_descriptor_is_joined_in_groups() -> None:
    xs = [torch.full((2,), float(i)) for i in range(150)]
    with pytest.raises(ProgramError, match="joins 150 inputs, more than 64: join them in groups"):
        program_of("cat", xs, {"dim": 0})
    b = Builder()
    values = [b.source_op("state", kind_of(x), slot=slot) for slot, x in enumerate(xs)]
    b.op("cat", *values, dim=0)
    joined = [node for node in b.nodes if node.op == "cat"]
    assert [len(node.inputs) for node in joined] == [64, 64, 22, 3]
    computed: dict[int, torch.Tensor] = dict(enumerate(xs))
    for index, node in enumerate(b.nodes):
        if node.op == "cat":
            computed[index] = torch.cat([computed[value] for value in node.inputs])
    assert torch.equal(computed[len(b.nodes) - 1], torch.cat(xs))
