"""Writes tests/vectors/partials.json, read by the Python and the Solidity tests.

    python scripts/make_adjudication_vectors.py          writes the files
    python scripts/make_adjudication_vectors.py --check  exits with 1 if a file on disk is not what would be written

partials.json: reductions term by term: descriptor, operands of
each term, and the encoded running result after it, with the element that it stands for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from generated import write_or_check
from roundlog.adjudication.partial import start
from roundlog.definitions import Extreme
from roundlog.descriptors import Descriptor, Family, Input, Row, encode_descriptor
from roundlog.number_format import FLOAT32
from roundlog.program import DType

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"


def reduction(family: Family, dtype: DType, operands: int, code: int = 0) -> Descriptor:
    count = 8
    inputs = tuple(Input(value, dtype, (count,), (Row(0, (1,)),)) for value in range(operands))
    gives = {Family.ARGMAX: DType.I64, Family.ANY: DType.BOOL}.get(family, dtype)
    label = (100, 1, 3) if family == Family.ARGMAX else ()
    return Descriptor(
        family=family,
        code=code,
        dtype=gives,
        segment=2,
        iteration=(),
        reduction=(count,),
        inputs=inputs,
        parameters=label,
    )


def partial_vectors() -> list[dict[str, object]]:
    numbers = [0x7F7FFFFF, 1, 0x80000001, 0xFF7FFFFF, 0x3F800000, 0x33800000, 0xBF800000, 0x80000000]
    zeros = [0x80000000, 0, 0x80000000, 0, 0xFF800000, 0x80000000, 0, 0]
    # An infinity, both of them, one times a zero, NaN of any bits.
    specials = [0x3F800000, 0x7F800000, 0x40000000, 0x7F800000, 0xFF800000, 0x3F800000, 0x00000000, 0x7F800000]
    others = [0x3F800000, 0xBF800000, 0x80000000, 0xBF800000, 0x3F800000, 0x7FC00000, 0x7F800000, 0x3F800000]
    undefined = [0x3F800000, 0xFF800000, 0xFFC12345, 0x7F800000, 0x7FC00000, 0x3F800000, 0xFF800000, 0x00000000]
    integers = [2**63 - 1, 1, -1, -(2**63), 5, 7, -3, 0]
    cases: list[tuple[Descriptor, list[list[int]]]] = [
        (reduction(Family.SUM, DType.F32, 1), [numbers]),
        (reduction(Family.SUM, DType.F32, 2), [numbers, numbers[::-1]]),
        (reduction(Family.SUM, DType.F32, 2), [numbers, numbers]),
        (reduction(Family.SUM, DType.F32, 1), [[0x80000000] * 8]),
        (reduction(Family.SUM, DType.F32, 1), [specials]),
        (reduction(Family.SUM, DType.F32, 2), [specials, others]),
        (reduction(Family.SUM, DType.F32, 1), [undefined]),
        (reduction(Family.EXTREME, DType.F32, 1, Extreme.MIN), [specials]),
        (reduction(Family.EXTREME, DType.F32, 1, Extreme.MAX), [undefined]),
        (reduction(Family.EXTREME, DType.F32, 1, Extreme.MIN), [undefined]),
        (reduction(Family.ARGMAX, DType.F32, 1), [undefined]),
        (reduction(Family.EXTREME, DType.F32, 1, Extreme.MAX), [numbers]),
        (reduction(Family.EXTREME, DType.F32, 1, Extreme.MIN), [numbers]),
        (reduction(Family.EXTREME, DType.F32, 1, Extreme.MAX), [zeros]),
        (reduction(Family.ARGMAX, DType.F32, 1), [numbers]),
        (reduction(Family.ARGMAX, DType.F32, 1), [zeros]),
        (reduction(Family.INTEGER_SUM, DType.I64, 1), [integers]),
        (reduction(Family.ANY, DType.BOOL, 1), [[0, 0, 1, 0, 0, 0, 1, 0]]),
    ]
    vectors = []
    for descriptor, operands in cases:
        partial = start(descriptor)
        partials, elements = [], []
        for term, values in enumerate(zip(*operands, strict=True)):
            label = descriptor.label.at((term,)) or 0 if descriptor.family == Family.ARGMAX else 0
            partial = partial.absorb(values, label)
            partials.append("0x" + partial.encode().hex())
            elements.append(str(partial.finish(FLOAT32)))
        vectors.append(
            {
                "descriptor": "0x" + encode_descriptor(descriptor).hex(),
                "family": descriptor.family.name,
                "operands": [[str(value) for value in line] for line in operands],
                "partials": partials,
                "elements": elements,
            }
        )
    return vectors


def files() -> dict[Path, str]:
    """Every vector file and the text that it should have."""
    return {
        VECTORS / "partials.json": json.dumps(partial_vectors(), indent=1) + "\n",
    }


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, files()))
