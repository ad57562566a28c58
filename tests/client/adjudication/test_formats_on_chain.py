"""Exact operators and functions of BF16 and FP16 on a chain, against the reference: in the long run all numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from make_format_vectors import BINARY, UNARY, corners, drawn, format_of
from roundlog.adjudication.adjudicate import exact_value, finish
from roundlog.adjudication.fixed_point import evaluate
from roundlog.adjudication.partial import decode_partial
from roundlog.definitions import FLOATS, Family, code_name, code_names
from roundlog.descriptors import Descriptor, DescriptorError, Input, Row, encode_descriptor
from roundlog.descriptors.descriptor import DTYPE_CODES
from roundlog.program import DType
from web3 import Web3
from web3.exceptions import Web3Exception

from tests.client.adjudication.contract_answers import deployed_harness

BATCH = 2048
SHORT = [DType.BF16, DType.F16]
FUNCTIONS = sorted(set(code_names(Family.FUNCTION)))
COMPARISONS = (10, 11, 12)
FLOAT_TO_FLOAT, I64_TO_FLOAT = 31, 28


@pytest.fixture(scope="module")
def harness(web3: Web3) -> Any:
    needed = ("/arithmetic/", "/adjudication/", "/support/", "src/Merkle", "src/Time", "src/TrainingSpec", "src/Types")
    return deployed_harness(web3, "FormatsHarness", needed)


def packed(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, dtype=">u8").tobytes()


def unpacked(data: bytes) -> list[int]:
    found: list[int] = np.frombuffer(data, dtype=">u8").tolist()
    return found


def batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[at : at + BATCH] for at in range(0, len(items), BATCH))


def check_map(harness: Any, code: int, kind: DType, to: DType, operands: Sequence[tuple[int, ...]]) -> None:
    """operands: elements of `kind`, int64 as they are. to: dtype of the result."""
    given, gives = kind.number_format(), to.number_format()
    for some in batches(operands):
        a, *others = (packed([x % 2**64 for x in column]) for column in zip(*some, strict=True))
        call = harness.functions.map(code, DTYPE_CODES[kind], DTYPE_CODES[to], a, *(others or [b""]))
        for case, bits in zip(some, unpacked(call.call({"gas": 10**9})), strict=True):
            wide = case if given is None else [given.in_float32(x) for x in case]
            right = exact_value(code_name(Family.MAP, code), wide, gives)
            assert bits == (right if gives is None else gives.of_float32(right)), (code, kind, to, list(map(hex, case)))


def check_function(harness: Any, code: int, name: str, kind: DType, numbers: Sequence[int]) -> None:
    format = format_of(kind)
    for some in batches(numbers):
        found, undecided = harness.functions.evaluate(code, DTYPE_CODES[kind], packed(some)).call({"gas": 10**9})
        assert undecided == 0
        for x, bits in zip(some, unpacked(found), strict=True):
            right = evaluate(name, format.in_float32(x), format)
            assert right is not None and bits == format.of_float32(right), (name, kind, hex(x))


def check_exact(harness: Any, kind: DType, numbers: Sequence[int]) -> None:
    """Every exact operator of one operand."""
    for code in UNARY:
        check_map(harness, code, kind, kind, [(x,) for x in numbers])
    for to in FLOATS:
        if to != kind:
            check_map(harness, FLOAT_TO_FLOAT, kind, to, [(x,) for x in numbers])


def check_binary(harness: Any, code: int, kind: DType, pairs: Sequence[tuple[int, int]]) -> None:
    check_map(harness, code, kind, DType.BOOL if code in COMPARISONS else kind, pairs)


def some_pairs(kind: DType, count: int) -> list[tuple[int, int]]:
    """All pairs of corners and of as many others."""
    format = format_of(kind)
    rng = Random(f"corners of {kind}")
    found = corners(format)
    found += [rng.randrange(2 * format.sign) for _ in range(count - len(found))]
    return [(a, b) for a in found for b in found]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHORT)
def test_operators_on_some_numbers_are_the_references(harness: Any, kind: DType) -> None:
    rng = Random(f"some of {kind}")
    numbers = [*corners(format_of(kind)), *rng.sample(range(1 << 16), 60)]
    near = [*drawn(f"near {kind}", format_of(kind), 200)]
    check_exact(harness, kind, numbers)
    for code in BINARY:
        check_binary(harness, code, kind, [*rng.sample(some_pairs(kind, 60), 150), *near])
    for code, name in FUNCTIONS:
        check_function(harness, code, name, kind, numbers)


@pytest.mark.long
@pytest.mark.parametrize("kind", SHORT)
def test_exact_operators_on_all_numbers_are_the_references(harness: Any, kind: DType) -> None:
    check_exact(harness, kind, range(1 << 16))


@pytest.mark.long
@pytest.mark.parametrize("code", BINARY)
@pytest.mark.parametrize("kind", SHORT)
def test_operators_on_all_pairs_of_300_numbers_are_the_references(harness: Any, kind: DType, code: int) -> None:
    check_binary(harness, code, kind, some_pairs(kind, 300))


@pytest.mark.long
@pytest.mark.parametrize(("code", "name"), FUNCTIONS)
@pytest.mark.parametrize("kind", SHORT)
def test_functions_of_all_numbers_are_the_references(harness: Any, kind: DType, code: int, name: str) -> None:
    check_function(harness, code, name, kind, range(1 << 16))


@pytest.mark.slow
@pytest.mark.parametrize("to", SHORT)
def test_other_numbers_become_the_nearest(harness: Any, to: DType) -> None:
    rng, format = Random(f"numbers that become {to}"), format_of(to)
    # FP32 numbers beside the middles between two of the format, and anywhere.
    dropped = 23 - format.fraction_bits
    middles = [rng.getrandbits(32 - dropped) << dropped | 1 << (dropped - 1) for _ in range(200)]
    patterns = [bits + off for bits in middles for off in (-1, 0, 1)] + [rng.getrandbits(32) for _ in range(200)]
    check_map(harness, FLOAT_TO_FLOAT, DType.F32, to, [(x,) for x in patterns])
    # Integers that a first rounding to FP32 would put onto a middle.
    integers = []
    for _ in range(300):
        length = rng.randrange(12, 64)
        middle = (rng.getrandbits(format.fraction_bits) << 1 | 1) << max(0, length - format.fraction_bits - 1)
        integers += [max(-(2**63), min(2**63 - 1, sign * middle + off)) for off in (-1, 0, 1) for sign in (1, -1)]
    check_map(harness, I64_TO_FLOAT, DType.I64, to, [(x,) for x in integers])


@pytest.mark.parametrize("family", [Family.EXTREME, Family.ARGMAX])
@pytest.mark.parametrize("kind", SHORT)
def test_the_best_number_so_far_is_one_of_the_format_or_refused(adjudicator: Any, kind: DType, family: Family) -> None:
    format = format_of(kind)
    row, labelled = Row(0, (1,)), family == Family.ARGMAX
    descriptor = Descriptor(
        family=family,
        dtype=DType.I64 if labelled else kind,
        segment=1,
        iteration=(),
        reduction=(9,),
        inputs=(Input(0, kind, (9,), (row,)),),
        parameters=(0, 1, 1) if labelled else (),
    )
    encoded = encode_descriptor(descriptor)
    rng = Random(f"extremes of {kind}")
    numbers = [format.in_float32(element) for element in corners(format)]
    others = [0x3F800001, 0x3F801FFF, 0x3F80FFFF, 0x33000000, 0x47800000, 0x7F000000, *map(rng.getrandbits, [32] * 20)]
    accepted = 0
    for pattern in numbers + others:
        words = [word.to_bytes(32, "big") for word in (1, pattern, 0)]
        try:
            right = finish(descriptor, decode_partial(descriptor, b"".join(words)))
        except DescriptorError:
            with pytest.raises(Web3Exception):
                adjudicator.functions.finish(encoded, (words,), 32).call()
        else:
            accepted += 1
            assert adjudicator.functions.finish(encoded, (words,), 32).call() == [0, right], hex(pattern)
    assert len(numbers) <= accepted < len(numbers) + len(others) // 2
