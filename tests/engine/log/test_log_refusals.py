"""Log files: no other byte is believed than those that were written."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import zstandard
from roundlog.log import Entries, LogError, LogHeader, LogReader
from roundlog.log import payload as payloads
from roundlog.log.layout import compressed_bound
from roundlog.rounding import checked_header

from tests.engine.log.log_files import DATA_START, HEADER, SIZES, STEPS, entries, forge, frame, read, write


def refused(path: Path) -> LogError:
    with pytest.raises(LogError) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.slow
def test_every_single_bit_flip_is_found_and_placed(path: Path) -> None:
    write(path)
    raw = path.read_bytes()
    for bit in range(8 * len(raw)):
        path.write_bytes(raw[: bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1 :])
        assert 0 <= (refused(path).offset or 0) <= len(raw)


def test_every_truncation_is_found(path: Path) -> None:
    write(path)
    raw = path.read_bytes()
    for length in range(0, len(raw), 3):
        path.write_bytes(raw[:length])
        assert refused(path).offset is not None


@pytest.mark.parametrize("where", [0, 8, 120, 150, -64, 1 << 20])
def test_inserted_and_trailing_bytes_are_found(path: Path, where: int) -> None:
    write(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:where] + b"\x00" + raw[where:])
    refused(path)


def test_a_check_without_the_program_finds_damage_too(path: Path) -> None:
    write(path)
    raw = bytearray(path.read_bytes())
    for at in (3, 40, 130, DATA_START + 2, len(raw) - 1):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(LogError):
            checked_header(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (replace(HEADER, program_root=bytes(32)), "belongs to program 0x00"),
        (replace(HEADER, run_id=bytes(32)), "belongs to run 0x00"),
        (replace(HEADER, first_step=7), "has 3 steps from 7, not 3 from 10"),
        (replace(HEADER, guard=0), "was written with guard 0, not 4"),
    ],
)
def test_a_foreign_log_is_refused_by_name(path: Path, header: LogHeader, message: str) -> None:
    write(path, header)
    assert message in str(refused(path))


def test_a_log_of_fewer_steps_is_refused(path: Path) -> None:
    write(path, replace(HEADER, steps=2), STEPS[:2])
    assert "has 2 steps from 10, not 3 from 10" in str(refused(path))


@pytest.mark.parametrize("steps", [[11, 10, 12], [10, 11, 11], [10, 11, 13], [10, 11, 2**64 - 1]])
def test_segments_out_of_order_or_of_other_steps_are_refused(path: Path, steps: list[int]) -> None:
    forge(path, HEADER, [frame(payloads.encode(step)) for step in STEPS], steps)
    wrong = next(i for i, step in enumerate(steps) if step != 10 + i)
    assert f"holds step {steps[wrong]} where step {10 + wrong} belongs" in str(refused(path))


def second_step(path: Path) -> int:
    """Where the second step of a log begins."""
    with LogReader(path, HEADER, SIZES) as log:
        return log._file.offsets[1]


def test_a_segment_of_another_log_in_its_place_is_refused_by_the_root(path: Path) -> None:
    write(path, HEADER, [STEPS[0], STEPS[2], STEPS[2]])
    foreign = path.read_bytes()[120 : second_step(path)]
    write(path, HEADER, [{1: entries((0, 1), (7, 0), (98, 1)), 3: STEPS[0][3]}, STEPS[2], STEPS[2]])
    raw = path.read_bytes()
    path.write_bytes(raw[:120] + foreign + raw[second_step(path) :])
    assert "footer does not match" in str(refused(path))


def compress(data: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type]


EMPTY = bytes(8)
BOMB = bytes(16 << 20)
LARGE_WINDOW = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=True)


def streamed(data: bytes) -> bytes:
    """A frame that does not say how long its content is."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


def with_window(data: bytes) -> bytes:
    """A frame of a few bytes that asks for a window of 128 MiB."""
    stream = zstandard.ZstdCompressor(compression_params=LARGE_WINDOW).compressobj()
    compressed = stream.compress(data) + stream.flush()
    assert zstandard.get_frame_parameters(compressed).window_size == 1 << 27
    # Frame header: magic, descriptor, window; the descriptor then claims a content size of 4 bytes (RFC 8878, 3.1.1).
    return (
        compressed[:4]
        + bytes([compressed[4] | 0x80])
        + compressed[5:6]
        + len(data).to_bytes(4, "little")
        + compressed[6:]
    )


def claiming_eight(data: bytes) -> bytes:
    """A single-segment frame whose one-byte content size says 8."""
    compressed = compress(data)
    assert compressed[5] == len(data)
    return compressed[:5] + b"\x08" + compressed[6:]


SEGMENTS = [
    ("a bomb that tells", lambda: (len(BOMB), compress(BOMB)), "above the limit of"),
    ("a bomb that says 8 bytes", lambda: (8, compress(BOMB)[:64]), "is not one of 8 bytes"),
    ("a bomb without a size", lambda: (8, streamed(bytes(100))[:60]), "is not one of 8 bytes"),
    ("a frame that is longer than its word", lambda: (8, compress(bytes(9))), "is not one of 8 bytes"),
    ("a frame that is shorter than its word", lambda: (8, claiming_eight(bytes(7))), "cannot be decompressed"),
    ("two frames", lambda: (8, compress(EMPTY) + compress(EMPTY)), "cannot be decompressed"),
    ("bytes after the frame", lambda: (8, compress(EMPTY) + b"\x00"), "cannot be decompressed"),
    ("a skippable frame", lambda: (8, b"\x50\x2a\x4d\x18\x01\x00\x00\x00\x00"), "is not one of 8 bytes"),
    ("half a frame", lambda: (8, compress(EMPTY)[:-3]), "cannot be decompressed"),
    ("no frame", lambda: (8, b"entirely other"), "cannot be decompressed"),
    ("no bytes", lambda: (8, b""), "claims 0 bytes"),
    ("a window of 128 MiB", lambda: (8, with_window(EMPTY)), "wants a window larger than its payload"),
    ("more bytes than any compressor makes", lambda: (8, bytes(compressed_bound(8) + 1)), "claims 73 bytes"),
    ("an empty payload", lambda: frame(b""), "step 10, counts need 8 bytes"),
    ("a payload with a tail", lambda: frame(EMPTY + b"\x00"), "step 10, the 1 bytes of gaps"),
    (
        "an index outside the program's output",
        lambda: frame(payloads.encode({3: entries((70_000, 1))})),
        "step 10, an entry of operator 3 has an index outside",
    ),
]


@pytest.mark.parametrize(("segment", "message"), [s[1:] for s in SEGMENTS], ids=[s[0] for s in SEGMENTS])
def test_a_forged_segment_is_refused_at_its_offset(path: Path, segment: object, message: str) -> None:
    assert callable(segment)
    honest = frame(payloads.encode(STEPS[1]))
    forge(path, HEADER, [segment(), honest, honest])
    error = refused(path)
    assert message in str(error)
    assert error.offset is not None
    assert 120 <= error.offset <= DATA_START


def test_a_log_may_claim_no_more_than_its_program_can_fill(path: Path) -> None:
    bound = payloads.payload_bound(SIZES)
    assert bound < 700_000 < payloads.payload_bound([2**30]) == payloads.MAX_PAYLOAD
    forge(path, HEADER, [(bound + 1, compress(bytes(bound + 1)))] + [frame(EMPTY)] * 2)
    assert f"claims {bound + 1} bytes, above the limit of {bound}" in str(refused(path))


def test_the_fullest_log_that_a_program_can_have_is_within_its_bound(path: Path) -> None:
    log = {
        operator: Entries(np.arange(size), np.full(size, 2, np.uint8), np.arange(size, dtype=np.uint32))
        for operator, size in enumerate(SIZES)
        if size
    }
    write(path, HEADER, [log] * 3)
    assert read(path) == [log] * 3


@pytest.mark.parametrize("version", [1, 3])
def test_a_header_of_another_version_is_refused_as_such(path: Path, version: int) -> None:
    """Version 1 had other bounds of sums: its entries are no forgeries."""
    write(path)
    raw = path.read_bytes()
    head = raw[:8] + version.to_bytes(2, "little") + raw[10:88]
    path.write_bytes(head + sha256(head).digest() + raw[120:])
    error = refused(path)
    assert f"version {version} is not supported" in str(error)
    assert error.offset == 8


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (11, b"\x02", "payloads of kind 2, which this version does not know"),
        (12, bytes(4), "cannot have 0 steps"),
        (23, b"\xff", "cannot have 3 steps from 18"),
    ],
)
def test_a_header_that_is_signed_but_out_of_range_is_refused(path: Path, at: int, value: bytes, message: str) -> None:
    write(path)
    raw = path.read_bytes()
    fields = raw[:at] + value + raw[at + len(value) : 88]
    path.write_bytes(fields + sha256(fields).digest() + raw[120:])
    assert message in str(refused(path))


def test_four_billion_steps_in_a_small_file_are_refused_at_once(path: Path) -> None:
    forge(path, replace(HEADER, steps=2**32 - 1), [frame(EMPTY)])
    with pytest.raises(LogError, match="ends before its 4294967295 steps"):
        checked_header(path)


def test_a_file_that_shrinks_while_it_is_read_is_a_clear_error(path: Path) -> None:
    write(path)
    with LogReader(path, HEADER, SIZES) as log:
        path.write_bytes(path.read_bytes()[:DATA_START])
        with pytest.raises(LogError, match="has become shorter"):
            log.step(12)


def test_a_missing_file_and_a_directory_are_clear_errors(tmp_path: Path) -> None:
    for target, message in ((tmp_path / "absent", "absent: does not exist"), (tmp_path, "cannot be read")):
        with pytest.raises(LogError, match=message):
            LogReader(target, HEADER, SIZES)
        with pytest.raises(LogError, match=message):
            checked_header(target)


@pytest.mark.parametrize(
    "change",
    [{"steps": 0}, {"steps": 2**32}, {"first_step": -1}, {"guard": 256}, {"run_id": b""}, {"program_root": bytes(33)}],
)
def test_a_header_that_does_not_fit_the_file_is_not_made(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="log"):
        replace(HEADER, **change)
