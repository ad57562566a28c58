"""Writes the vectors that Python and Solidity are both checked against: merkle.json, spec.json and partials.json.

    python scripts/make_vectors.py          writes the files
    python scripts/make_vectors.py --check  exits with 1 if a file on disk is not what would be written

Trees, proofs and roots of tensors; training specs and their hashes, fields named and ordered as in
contracts/src/TrainingSpec.sol; reductions term by term. All are spelled out by rules, not drawn at random, so that the
files never change without a reason.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
from eth_hash.auto import keccak
from generated import write_or_check
from roundlog.adjudication.partial import start
from roundlog.commitments import CHUNK_SIZE, MerkleTree, tensor_root
from roundlog.definitions import Extreme
from roundlog.descriptors import Descriptor, Family, Input, Row, encode_descriptor
from roundlog.number_format import FLOAT32
from roundlog.program import DType

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"


def hexed(data: bytes) -> str:
    return "0x" + data.hex()


def counting_bytes(length: int, start: int) -> bytes:
    return bytes((start + 7 * i) % 256 for i in range(length))


def tree(payloads: list[bytes]) -> dict[str, object]:
    merkle = MerkleTree(payloads)
    return {
        "payloads": [hexed(payload) for payload in payloads],
        "root": hexed(merkle.root),
        "depth": merkle.depth,
        "proofs": [[hexed(sibling) for sibling in merkle.proof(i)] for i in range(merkle.count)],
    }


def merkle_vectors() -> dict[str, object]:
    trees = [[counting_bytes(32, 16 * n + i) for i in range(n)] for n in (1, 2, 3, 4, 5, 7, 8, 9, 13)]
    # Payloads of unequal lengths, among them the empty one and one that looks like a node's hash input.
    trees += [[b""], [b"", b"\x00", b"\x01" * 65], [counting_bytes(i, i) for i in range(6)]]
    lengths = (0, 1, 4, 32, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE + 20)
    tensors = [counting_bytes(length, 3) for length in lengths]
    return {
        "trees": [tree(payloads) for payloads in trees],
        "tensors": [
            {"bytes": hexed(data), "root": hexed(tensor_root(np.frombuffer(data, np.uint8)))} for data in tensors
        ],
    }


def _root(text: str) -> str:
    return hexed(sha256(text.encode()).digest())


def _spec(**changes: int | str) -> dict[str, int | str]:
    spec: dict[str, int | str] = {
        "steps": 60,
        "interval": 5,
        "programRoot": _root("program"),
        "operatorCount": 300,
        "initialStateRoot": _root("initial state"),
        "stateCount": 25,
        "dataRoot": _root("data"),
        "dataRows": 1797,
        "batchSize": 64,
        "scheduleRoot": _root("schedule"),
        "seed": 7,
        "chunkSize": 1024,
        "roundingPolicy": 0,
        "roundingBits": 32,
        "logGuard": 4,
        "logVersion": 1,
        "referee": "0x" + "5b" * 20,
        "adjudicator": "0x" + "c3" * 20,
    }
    return spec | changes


def _word(value: int | str) -> bytes:
    number = value if isinstance(value, int) else int(value, 16)
    return number.to_bytes(32, "big")


def spec_vectors() -> list[dict[str, object]]:
    """Training specs and their hashes. The encoding is written out by hand: eighteen 32-byte words, integers big-endian
    and left-padded, so that it shares nothing with the client's ABI encoder nor with solc."""
    specs = [
        _spec(),
        _spec(steps=1, interval=1, operatorCount=1, stateCount=1, dataRows=1, batchSize=1, seed=0),
        _spec(steps=80_000, interval=100, seed=2**64 - 1, roundingPolicy=1, roundingBits=23, chunkSize=2**16),
        _spec(steps=2**40, interval=2**20, dataRows=2**40, logGuard=255, logVersion=255, referee="0x" + "ff" * 20),
        _spec(operatorCount=2**40, stateCount=2**40, adjudicator="0x" + "fe" * 20),
    ]
    return [{"spec": spec, "hash": hexed(keccak(b"".join(_word(value) for value in spec.values())))} for spec in specs]


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
    """Reductions term by term: descriptor, operands of each term, and the encoded running result after it, with the
    element that it stands for."""
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
            partials.append(hexed(partial.encode()))
            elements.append(str(partial.finish(FLOAT32)))
        vectors.append(
            {
                "descriptor": hexed(encode_descriptor(descriptor)),
                "family": descriptor.family.name,
                "operands": [[str(value) for value in line] for line in operands],
                "partials": partials,
                "elements": elements,
            }
        )
    return vectors


def files() -> dict[Path, str]:
    """Every vector file and the text that it should have."""
    contents = {"merkle.json": merkle_vectors(), "spec.json": spec_vectors(), "partials.json": partial_vectors()}
    return {VECTORS / name: json.dumps(content, indent=1) + "\n" for name, content in contents.items()}


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, files()))
