"""Log files, read and written.

All bytes that are read are hostile until checked. Opening a file checks its frame: the run that it belongs to, every
length and offset, the log root and the checksum. Reading a step checks that step's bytes against its leaf hash, and
decodes them within the bounds of the program. The log of one checkpoint interval is written step by step.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import zstandard

from roundlog.commitments import leaf_hash
from roundlog.log.layout import (
    HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    LayoutError,
    LogHeader,
    PayloadFormat,
    SegmentHeader,
    compressed_bound,
    footer_size,
    pack_footer,
)
from roundlog.log.payload import ENTRIES, LogError, PayloadError
from roundlog.storage import commit_file, open_regular, partial_path

_MIN_SEGMENT = SEGMENT_HEADER_SIZE + 1
_MIN_WINDOW = 1024
"""Bytes; the smallest window that a Zstandard frame can ask for (RFC 8878, section 3.1.1.1.2)."""


class LogFile:
    """An open log file with a checked frame: what `LogReader` and `checked_header` share.

    header, root (32 bytes), size (bytes of the file), segments and offsets (one of each for every step).
    """

    def __init__(self, path: Path, expected: LogHeader | None, max_payload: Mapping[int, int]) -> None:
        """max_payload: most bytes of a payload, by the kind of the file. Raises LogError."""
        self.path = path
        self._max_payload = max_payload
        try:
            self._file: BufferedReader = open_regular(path)
        except FileNotFoundError as error:
            raise LogError(path, None, "does not exist") from error
        except OSError as error:
            raise LogError(path, None, f"cannot be read: {error.strerror}") from error
        try:
            self._check_frame(expected)
        except LayoutError as error:
            self.close()
            raise LogError(path, error.offset, str(error)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def plain_payload(self, position: int) -> bytes:
        """The decompressed payload of the segment at `position`. Raises LogError."""
        segment, offset = self.segments[position], self.offsets[position] + SEGMENT_HEADER_SIZE
        compressed = self._read(offset, segment.compressed)
        if leaf_hash(compressed) != segment.leaf:
            raise LogError(self.path, offset, f"the payload of step {segment.step} does not match its hash")
        try:
            frame = zstandard.get_frame_parameters(compressed)
            if frame.content_size != segment.payload:
                raise LogError(
                    self.path, offset, f"the frame of step {segment.step} is not one of {segment.payload} bytes"
                )
            if frame.window_size > max(segment.payload, _MIN_WINDOW):
                raise LogError(
                    self.path, offset, f"the frame of step {segment.step} wants a window larger than its payload"
                )
            plain = zstandard.ZstdDecompressor().decompress(
                compressed, max_output_size=segment.payload, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise LogError(self.path, offset, f"step {segment.step} cannot be decompressed: {error}") from error
        return plain

    def _read(self, offset: int, length: int) -> bytes:
        try:
            self._file.seek(offset)
            data = self._file.read(length)
        except OSError as error:
            raise LogError(self.path, offset, f"cannot be read: {error.strerror}") from error
        if len(data) < length:
            raise LogError(self.path, offset + len(data), "the file has become shorter while it was read")
        return data

    def _check_frame(self, expected: LogHeader | None) -> None:
        self.size = os.fstat(self._file.fileno()).st_size
        self.header = header = LogHeader.unpack(self._read(0, min(HEADER_SIZE, self.size)))
        if expected is not None:
            _check_run(header, expected)
        footer = self.size - footer_size(header.steps)
        if footer < HEADER_SIZE + header.steps * _MIN_SEGMENT:
            raise LayoutError(self.size, f"the file ends before its {header.steps} steps and its footer")
        self.segments: list[SegmentHeader] = []
        self.offsets: list[int] = []
        end = HEADER_SIZE
        for step in range(header.first_step, header.first_step + header.steps):
            end = self._check_segment(end, step, footer)
        if end != footer:
            raise LayoutError(end, f"{footer - end} bytes too many stand between the last step and the footer")
        packed, self.root = pack_footer(header, self.offsets, self.segments)
        found = self._read(footer, len(packed))
        if found != packed:
            at = next(i for i, (a, b) in enumerate(zip(found, packed, strict=True)) if a != b)
            raise LayoutError(footer + at, "the footer does not match the header and the segments")

    def _check_segment(self, offset: int, step: int, footer: int) -> int:
        """Takes up the segment header at `offset` and returns the segment's end."""
        if offset + SEGMENT_HEADER_SIZE > footer:
            raise LayoutError(offset, f"step {step} starts beyond the last segment")
        segment = SegmentHeader.unpack(self._read(offset, SEGMENT_HEADER_SIZE))
        if segment.step != step:
            raise LayoutError(offset, f"holds step {segment.step} where step {step} belongs")
        if segment.payload > (most := self._max_payload[self.header.kind]):
            raise LayoutError(offset + 8, f"step {step} claims {segment.payload} bytes, above the limit of {most}")
        if not 0 < segment.compressed <= compressed_bound(segment.payload):
            raise LayoutError(
                offset + 12, f"step {step} claims {segment.compressed} bytes for a payload of {segment.payload}"
            )
        end = offset + SEGMENT_HEADER_SIZE + segment.compressed
        if end > footer:
            raise LayoutError(offset + 12, f"step {step} claims bytes beyond the last segment")
        self.offsets.append(offset)
        self.segments.append(segment)
        return end


def _check_run(header: LogHeader, expected: LogHeader) -> None:
    if header.program_root != expected.program_root:
        raise LayoutError(24, f"belongs to program 0x{header.program_root.hex()}, not 0x{expected.program_root.hex()}")
    if header.run_id != expected.run_id:
        raise LayoutError(56, f"belongs to run 0x{header.run_id.hex()}, not 0x{expected.run_id.hex()}")
    if (header.first_step, header.steps) != (expected.first_step, expected.steps):
        raise LayoutError(
            12,
            f"has {header.steps} steps from {header.first_step}, not {expected.steps} from {expected.first_step}",
        )
    if header.kind != expected.kind:
        raise LayoutError(11, f"holds payloads of kind {int(header.kind)}, not {int(expected.kind)}")
    if header.guard != expected.guard:
        raise LayoutError(10, f"was written with guard {header.guard}, not {expected.guard}")


def most_log_bytes(form: PayloadFormat[Any], steps: int, operator_sizes: Sequence[int]) -> int:
    """Most bytes of a log of this format and so many steps that a `LogReader` takes, which has the same sizes."""
    segment = SEGMENT_HEADER_SIZE + compressed_bound(form.bound(operator_sizes))
    return HEADER_SIZE + steps * segment + footer_size(steps)


class LogReader:
    """The log of one checkpoint interval, read a step at a time. Use as a context manager, or `close` it."""

    def __init__(
        self, path: Path, expected: LogHeader, operator_sizes: Sequence[int], form: PayloadFormat[Any] = ENTRIES
    ) -> None:
        """Opens the file and checks its frame.

        operator_sizes: elements in the output of each inexact operator of the program, by operator index, 0 for all
        other operators. form: of the payloads, of the kind that is expected. Raises LogError if the file is not the log
        that `expected` describes, or could not be one for this program.
        """
        self._form = form
        self._sizes = np.array(operator_sizes, np.int64)
        self._file = LogFile(path, expected, {form.kind: form.bound(operator_sizes)})
        self.header = self._file.header
        self.root = self._file.root

    def step(self, step: int) -> dict[int, Any]:
        """The log of one step: entries by operator index, those of operators that have any, or what the payloads of
        another format hold. step: one of the file's. Raises LogError if the file's bytes are not the log of that step.
        """
        position = step - self.header.first_step
        try:
            return self._form.decode(self._file.plain_payload(position), self._sizes)
        except PayloadError as error:
            offset = self._file.offsets[position] + SEGMENT_HEADER_SIZE
            raise LogError(self._file.path, offset, f"in the payload of step {step}, {error}") from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_COMPRESSION_LEVEL = 3


class ClosedLog(NamedTuple):
    """A finished log file: its log root (32 bytes) and its size."""

    root: bytes
    bytes: int


class LogWriter:
    """The log file at `path`, renamed to that when it is whole.

    Used as a context manager it closes at the end of the block, and leaves no file if the block raises. One
    that is abandoned (or whose process dies) leaves no file at `path` either.
    """

    def __init__(self, path: Path, header: LogHeader, form: PayloadFormat[Any] = ENTRIES) -> None:
        """form: of the payloads, of the header's kind. Raises LogError if the file cannot be created."""
        self.path = path
        self._form = form
        self.header = header
        self._partial = partial_path(path)
        try:
            self._file = self._partial.open("wb")
            self._file.write(header.pack())
        except OSError as error:
            raise LogError(path, None, f"cannot be written: {error.strerror}") from error
        self._offsets: list[int] = []
        self._segments: list[SegmentHeader] = []
        self._compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)
        self._closed: ClosedLog | None = None

    def append(self, step: int, step_log: Mapping[int, Any]) -> None:
        """Writes the log of the next step, entries by operator index, or what another format has for them.

        Raises LogError if it cannot be written; no file is left then.
        """
        try:
            plain = self._form.encode(step_log)
            compressed = self._compressor.compress(plain)
            segment = SegmentHeader(step, len(plain), len(compressed), leaf_hash(compressed))
            self._offsets.append(self._file.tell())
            self._segments.append(segment)
            self._file.write(segment.pack())
            self._file.write(compressed)
        except PayloadError as error:
            self.abort()
            raise LogError(self.path, None, f"step {step}: {error}") from error
        except OSError as error:
            self.abort()
            raise LogError(self.path, None, f"cannot be written: {error.strerror}") from error
        except BaseException:
            self.abort()
            raise

    def close(self) -> ClosedLog:
        """Writes the footer and gives the file its name, durably. A second call returns the same. All steps have been
        appended. Raises LogError if it cannot be written; no file is left then."""
        if self._closed is not None:
            return self._closed
        footer, root = pack_footer(self.header, self._offsets, self._segments)
        try:
            self._file.write(footer)
            size = self._file.tell()
            self._file.close()
            commit_file(self._partial, self.path)
        except OSError as error:
            self.abort()
            raise LogError(self.path, None, f"cannot be written: {error.strerror}") from error
        self._closed = ClosedLog(root, size)
        return self._closed

    def abort(self) -> None:
        """Gives up, and removes what has been written. Does nothing once the log is closed."""
        if self._closed is not None:
            return
        with suppress(OSError):  # of a full disk, for instance, which is why the log is given up
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
