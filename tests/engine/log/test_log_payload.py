"""The payload of a log segment: one encoding for each log, checked against a reader written from the
specification.
"""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.log import Decision, Entries, PayloadError
from roundlog.log import payload as payloads
from roundlog.log.payload import decode_varints, encode_varints

from tests.engine.log.log_files import SIZES, STEPS, entries, step_logs

SPECIFICATION = Path(__file__).resolve().parents[3] / "docs" / "log-format.md"
ARRAY_SIZES = np.array(SIZES)


def oracle(payload: bytes) -> dict[int, list[tuple[int, int, int | None]]]:
    """docs/log-format.md, "Payload", byte by byte: (index, decision, value) of every entry."""
    operators, values = struct.unpack_from("<II", payload)
    numbers = struct.unpack_from(f"<{2 * operators}I", payload, 8)
    position = 8 + 8 * operators
    total = sum(numbers[operators:])

    def bits() -> list[int]:
        nonlocal position
        start, position = position, position + (total + 7) // 8
        return [payload[start + i // 8] >> (i % 8) & 1 for i in range(total)]

    up = bits()
    by_value = bits() if values else [0] * total
    queue = list(struct.unpack_from(f"<{values}I", payload, position))
    position += 4 * values
    log, entry = {}, 0
    for operator, count in zip(numbers[:operators], numbers[operators:], strict=True):
        index, rows = -1, []
        for _ in range(count):
            gap = shift = 0
            while True:
                byte = payload[position]
                position += 1
                gap |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            index += gap + 1
            rows.append((index, 2, queue.pop(0)) if by_value[entry] else (index, up[entry], None))
            entry += 1
        log[operator] = rows
    assert position == len(payload)
    return log


@settings(max_examples=60)
@given(step_logs())
def test_decoding_undoes_encoding_and_agrees_with_the_specification(log: dict[int, Entries]) -> None:
    payload = payloads.encode(log)
    assert payloads.decode(payload, ARRAY_SIZES) == log
    assert payloads.decode(payload, None) == log
    assert len(payload) <= payloads.payload_bound(SIZES)
    read = oracle(payload)
    assert list(read) == list(log)
    for operator, rows in read.items():
        assert [row[0] for row in rows] == log[operator].indices.tolist()
        assert [row[1] for row in rows] == log[operator].decisions.tolist()
        assert [row[2] for row in rows if row[1] == 2] == log[operator].values.tolist()


def test_the_example_of_the_specification_is_right() -> None:
    log = {3: entries((5, 1), (6, 0), (300, 2, 0x3F800000)), 7: entries((1000, 1))}
    text = "02000000 01000000 03000000 07000000 03000000 01000000 09040000 803f0500 a502e807"
    assert payloads.encode(log).hex(" ", 4) == text
    assert text in SPECIFICATION.read_text()


def test_operators_without_entries_are_left_out() -> None:
    assert payloads.decode(payloads.encode({3: Entries.empty(), 1: entries((4, 1))}), ARRAY_SIZES) == {
        1: entries((4, 1))
    }
    assert payloads.encode({}) == bytes(8)


def test_the_arrays_of_a_read_log_can_be_written_to() -> None:
    log = payloads.decode(payloads.encode(STEPS[0]), ARRAY_SIZES)
    assert all(a.flags.writeable for e in log.values() for a in (e.indices, e.decisions, e.values))


def raw(operators: list[int], counts: list[int], up: bytes, gaps: bytes, flags: bytes = b"", *values: int) -> bytes:
    """A payload from its fields, whatever they are."""
    return (
        struct.pack("<II", len(operators), len(values))
        + struct.pack(f"<{len(operators)}I", *operators)
        + struct.pack(f"<{len(counts)}I", *counts)
        + up
        + flags
        + struct.pack(f"<{len(values)}I", *values)
        + gaps
    )


ATTACKS = [
    ("an empty payload", b"", "counts need 8 bytes"),
    ("more operators than bytes", struct.pack("<II", 2**32 - 1, 0), "operators need"),
    ("counts cut off", struct.pack("<III", 1, 0, 3), "entry counts need"),
    ("an operator twice", raw([3, 3], [1, 1], b"\x00", b"\x00\x00"), "not strictly increasing"),
    ("an operator that the program lacks", raw([5], [1], b"\x00", b"\x00"), "operator 5 is outside a program of 5"),
    ("an operator without entries", raw([3], [0], b"", b""), "operator 3 has 0 entries"),
    ("more entries than elements", raw([2], [2], b"\x00", b"\x00\x00"), "operator 2 has 2 entries for 1 elements"),
    ("entries for an empty output", raw([0], [1], b"\x00", b"\x00"), "operator 0 has 1 entries for 0 elements"),
    ("4 billion entries in no bytes", raw([3], [2**32 - 1], b"", b""), "4294967295 entries for 70000"),
    ("decisions cut off", raw([3], [9], b"\x00", b""), "decisions need"),
    ("padding of decisions", raw([3], [1], b"\x02", b"\x00"), "decisions are padded"),
    ("padding of value flags", raw([3], [1], b"\x00", b"\x00", b"\x03", 1), "value flags are padded"),
    ("fewer flags than values", raw([3], [2], b"\x00", b"\x00\x00", b"\x01", 1, 1), "1 entries are flagged"),
    ("more flags than values", raw([3], [2], b"\x00", b"\x00\x00", b"\x03", 1), "2 entries are flagged"),
    ("both up and a value", raw([3], [1], b"\x01", b"\x00", b"\x01", 1), "entry 0 is both up and a value"),
    ("a value for no entry", raw([], [], b"", b"", b"", 1), "0 entries are flagged as values, not 1"),
    ("values cut off", struct.pack("<II", 1, 1) + struct.pack("<II", 3, 1) + b"\x00\x01", "values need"),
    ("a NaN", raw([3], [1], b"\x00", b"\x00", b"\x01", 0xFFC00000), "value 0 is NaN"),
    ("no gap", raw([3], [1], b"\x00", b""), "exactly 1 varints"),
    ("trailing bytes after no entries", bytes(8) + b"\x00", "exactly 0 varints"),
    ("a long form of a gap", raw([3], [1], b"\x00", b"\x85\x00"), "varint 0 is not in its shortest form"),
    ("a gap of ten bytes", raw([3], [1], b"\x00", b"\xff" * 9 + b"\x01"), "varint 0 has more than 9 bytes"),
    ("the first index outside", raw([2], [1], b"\x00", b"\x01"), "operator 2 has an index outside"),
    ("a later index outside", raw([1, 4], [2, 1], b"\x00", b"\x32\x32\x00"), "operator 1 has an index outside"),
    (
        "indices that wrap around 2^64",
        raw([3], [3], b"\x00", b"\x00" + (b"\xff" * 8 + b"\x7f") * 2),
        "operator 3 has an index outside",
    ),
]


@pytest.mark.parametrize(("payload", "message"), [attack[1:] for attack in ATTACKS], ids=[a[0] for a in ATTACKS])
def test_a_forged_payload_is_refused(payload: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        payloads.decode(payload, ARRAY_SIZES)


def test_sums_of_gaps_that_overflow_are_refused_without_output_sizes_too() -> None:
    gap = encode_varints(np.array([2**40 - 1]))
    count = 1 << 12
    with pytest.raises(PayloadError, match="outside"):
        payloads.decode(raw([3], [count], bytes(count // 8), gap * count), None)


def test_a_payload_above_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "MAX_PAYLOAD", 30)
    with pytest.raises(PayloadError, match="above the limit of 30"):
        payloads.encode(STEPS[0])


def test_entries_are_equal_by_all_their_arrays() -> None:
    one = entries((1, 1), (2, 2, 7))
    assert one == entries((1, 1), (2, 2, 7))
    for other in (entries((1, 0), (2, 2, 7)), entries((1, 1), (2, 2, 8)), entries((1, 1), (3, 2, 7)), Decision.UP):
        assert one != other


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300), max_size=30))
def test_varints_come_back_and_are_as_short_as_can_be(numbers: list[int]) -> None:
    data = encode_varints(np.array(numbers, np.int64))
    assert len(data) == sum(max(1, -(-number.bit_length() // 7)) for number in numbers)
    assert decode_varints(np.frombuffer(data, np.uint8), len(numbers)).tolist() == numbers
