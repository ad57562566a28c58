"""The payload of the `threshold` policy: five trits a byte, one encoding for each log, and nothing else is read."""

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.log import ENTRIES, LogError, LogReader, LogWriter, PayloadError, PayloadKind
from roundlog.rounding import checked_header, ovt
from roundlog.rounding.ovt import TRITS, Trits

from tests.engine.log.log_files import HEADER, forge, frame

SPECIFICATION = Path(__file__).resolve().parents[3] / "docs" / "log-format.md"
SIZES = [0, 7, 0, 1, 10]
ARRAY_SIZES = np.array(SIZES)
TRIT_HEADER = replace(HEADER, kind=PayloadKind.OUTPUTS)


def pack(*codes: int) -> Trits:
    return Trits.pack(np.array(codes, np.uint8))


STEP = {1: pack(2, 1, 0, 0, 2, 1, 0), 3: pack(1), 4: pack(0, 0, 0, 0, 0, 2, 2, 2, 2, 2)}


def oracle(payload: bytes) -> dict[int, list[int]]:
    """docs/log-format.md, "Payload of kind 1", byte by byte."""
    (count,) = struct.unpack_from("<I", payload)
    position, log = 4 + 12 * count, {}
    for i in range(count):
        operator, elements = struct.unpack_from("<IQ", payload, 4 + 12 * i)
        found: list[int] = []
        while len(found) < elements:
            byte = payload[position]
            position += 1
            digits = []
            for _ in range(5):
                byte, digit = divmod(byte, 3)
                digits.append(digit)
            assert byte == 0
            found += digits[: elements - len(found)]
        log[operator] = found
    assert position == len(payload)
    return log


codes = st.lists(st.integers(0, 2), min_size=1, max_size=40)


@given(st.dictionaries(st.integers(0, 2**32 - 1), codes, max_size=4))
@settings(max_examples=200)
def test_what_is_written_is_what_the_specification_says_and_reads_back(log: dict[int, list[int]]) -> None:
    payload = ovt.encode({operator: pack(*row) for operator, row in log.items()})
    assert oracle(payload) == log
    back = ovt.decode(payload, None)
    assert {operator: part.codes().tolist() for operator, part in back.items()} == log
    assert ovt.encode(back) == payload


@given(st.binary(max_size=60))
@settings(max_examples=400)
def test_any_bytes_are_refused_or_encode_again_to_themselves(payload: bytes) -> None:
    for sizes in (None, ARRAY_SIZES):
        try:
            log = ovt.decode(payload, sizes)
        except PayloadError:
            continue
        assert ovt.encode(log) == payload


def test_the_example_of_the_specification_is_true() -> None:
    text = SPECIFICATION.read_text()
    section = text[text.index("## Payload of kind 1") :]
    example = re.search(r"```\n([0-9a-f ]+)\n```", section)
    assert example is not None
    assert ovt.encode({2: pack(2, 1, 0, 0, 2, 1), 5: pack(1)}) == bytes.fromhex(example[1])


def test_the_size_of_a_programs_payload_is_known_beforehand() -> None:
    assert len(ovt.encode(STEP)) == ovt.payload_size(SIZES) == 4 + 3 * 12 + 2 + 1 + 2


HONEST = ovt.encode(STEP)
BODY = 4 + 3 * 12


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "the operator count needs 4 bytes"),
        (HONEST[:3], "the operator count needs 4 bytes"),
        (HONEST[:30], "3 operators need 40 bytes"),
        (b"\xff\xff\xff\xff", "4294967295 operators need"),
        (HONEST[:-1], "the trits of operator 4 need"),
        (HONEST + b"\x00", "1 bytes follow"),
        (ovt.encode({1: STEP[1], 3: STEP[3]}), "not for the inexact operators of this program"),
        (ovt.encode({**STEP, 0: pack(1)}), "not for the inexact operators of this program"),
        (ovt.encode({**STEP, 4: pack(1)}), "not for the inexact operators of this program"),
        (HONEST[:4] + HONEST[16:28] + HONEST[4:16] + HONEST[28:], "not strictly increasing"),
        (HONEST[:BODY] + b"\xf3" + HONEST[BODY + 1 :], "operator 1: byte 0 is 243, not five trits"),
        (HONEST[: BODY + 1] + bytes([9]) + HONEST[BODY + 2 :], "operator 1: the last byte is padded"),
    ],
)
def test_a_payload_that_no_writer_makes_is_refused(payload: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=re.escape(message)):
        ovt.decode(payload, ARRAY_SIZES)


def test_an_operator_of_2_to_the_64_trits_is_refused_without_memory_for_them() -> None:
    payload = struct.pack("<IIQ", 1, 0, 2**64 - 1)
    with pytest.raises(PayloadError, match="the trits of operator 0 need"):
        ovt.decode(payload, None)
    with pytest.raises(PayloadError, match="operator 0 has no trits"):
        ovt.decode(struct.pack("<IIQ", 1, 0, 0), None)


def test_what_is_no_trit_is_not_packed() -> None:
    with pytest.raises(PayloadError, match="3 is not a trit"):
        pack(0, 3)
    with pytest.raises(PayloadError, match="6 trits need 2 bytes"):
        Trits(6, np.zeros(3, np.uint8))


def test_a_file_of_trits_reads_back_and_is_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "00000000.rlog"
    with LogWriter(path, TRIT_HEADER, TRITS) as log:
        for step in (10, 11, 12):
            log.append(step, STEP)
    with LogReader(path, TRIT_HEADER, SIZES, TRITS) as reader:
        assert reader.step(11) == STEP
    assert checked_header(path).kind == PayloadKind.OUTPUTS


def test_a_file_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    for mine, other, form in ((HEADER, TRIT_HEADER, TRITS), (TRIT_HEADER, HEADER, ENTRIES)):
        path = tmp_path / f"{mine.kind}.rlog"
        forge(path, mine, [frame(b"\x00" * 8)] * 3)
        with pytest.raises(LogError, match=f"holds payloads of kind {int(mine.kind)}, not {int(other.kind)}"):
            LogReader(path, other, SIZES, form)


def test_a_payload_larger_than_the_program_needs_is_refused_before_it_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "large.rlog"
    forge(path, TRIT_HEADER, [frame(HONEST), frame(bytes(len(HONEST) + 1)), frame(HONEST)])
    with pytest.raises(LogError, match=f"step 11 claims {len(HONEST) + 1} bytes, above the limit of {len(HONEST)}"):
        LogReader(path, TRIT_HEADER, SIZES, TRITS)
