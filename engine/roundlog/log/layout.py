"""The frame of a log file: header, segment headers, footer (docs/log-format.md)."""

import enum
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from roundlog.commitments import MerkleTree
from roundlog.spec import LOG_VERSION

T = TypeVar("T")

MAGIC = b"\x89TBLOG\r\n"

_HEADER = struct.Struct("<8sHBBIQ32s32s")
_SEGMENT = struct.Struct("<QII32s")
_CHECKSUM_SIZE = 32

HEADER_SIZE = _HEADER.size + _CHECKSUM_SIZE
SEGMENT_HEADER_SIZE = _SEGMENT.size


class PayloadKind(enum.IntEnum):
    """Kind of the payloads of a log."""

    ENTRIES = 0
    """The decisions that matter."""
    OUTPUTS = 1
    """Something about every output of every inexact operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadFormat(Generic[T]):
    """Format of the payloads of one kind of log, where T is what a payload says of one operator.

    bound: most bytes of a step's payload, from the number of elements in the output of every inexact operator, 0 for
    all others. most: most bytes of any. encode, decode: a step's log by operator, and its payload; decode takes hostile
    bytes and the same numbers of elements, int64[operators], or None for any program. Both raise PayloadError.
    """

    kind: PayloadKind
    most: int
    bound: Callable[[Sequence[int]], int]
    encode: Callable[[Mapping[int, T]], bytes]
    decode: Callable[[bytes, NDArray[np.int64] | None], dict[int, T]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogHeader:
    """Header of a log file: its run, and the steps of one checkpoint interval of it.

    program_root, run_id: 32 bytes each (`TrainingSpec.program_root`, `TrainingSpec.run_id`).
    first_step, steps: the file has the steps first_step .. first_step + steps - 1, counted from 0.
    guard: elements within guard * d of a rounding boundary have an entry. kind: of the payloads.

    Raises ValueError if a field does not fit its place in the file.
    """

    program_root: bytes
    run_id: bytes
    first_step: int
    steps: int
    guard: int
    kind: PayloadKind = PayloadKind.ENTRIES

    def __post_init__(self) -> None:
        if len(self.program_root) != 32 or len(self.run_id) != 32:
            raise ValueError("program_root and run_id of a log have 32 bytes each")
        if not 0 < self.steps < 1 << 32 or not 0 <= self.first_step < 1 << 63 or not 0 <= self.guard < 256:
            raise ValueError(f"a log cannot have {self.steps} steps from {self.first_step} with guard {self.guard}")

    def pack(self) -> bytes:
        """The 120 bytes that the file starts with."""
        fields = _HEADER.pack(
            MAGIC, LOG_VERSION, self.guard, self.kind, self.steps, self.first_step, self.program_root, self.run_id
        )
        return fields + sha256(fields).digest()

    @classmethod
    def unpack(cls, raw: bytes) -> "LogHeader":
        """The header in 120 hostile bytes. Raises LayoutError."""
        if raw[: len(MAGIC)] != MAGIC:
            raise LayoutError(0, "is not a rounding log: the magic number is missing")
        if len(raw) < HEADER_SIZE:
            raise LayoutError(len(raw), f"the file ends inside its header of {HEADER_SIZE} bytes")
        _, version, guard, kind, steps, first_step, program_root, run_id = _HEADER.unpack_from(raw)
        if version != LOG_VERSION:
            raise LayoutError(8, f"log version {version} is not supported by this version, which reads {LOG_VERSION}")
        if sha256(raw[: _HEADER.size]).digest() != raw[_HEADER.size :]:
            raise LayoutError(_HEADER.size, "the header does not match its checksum")
        if kind not in list(PayloadKind):
            raise LayoutError(11, f"holds payloads of kind {kind}, which this version does not know")
        try:
            return cls(
                program_root=program_root,
                run_id=run_id,
                first_step=first_step,
                steps=steps,
                guard=guard,
                kind=PayloadKind(kind),
            )
        except ValueError as error:
            raise LayoutError(11, str(error)) from error


class LayoutError(ValueError):
    """Bytes that break the frame, at an offset of the file; the reader adds the file's name."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Header of a step's segment, before its compressed payload.

    payload, compressed: bytes after and before decompression. leaf: leaf hash of the compressed bytes.
    """

    step: int
    payload: int
    compressed: int
    leaf: bytes

    def pack(self) -> bytes:
        """The 48 bytes in the file."""
        return _SEGMENT.pack(self.step, self.payload, self.compressed, self.leaf)

    @classmethod
    def unpack(cls, raw: bytes) -> "SegmentHeader":
        """The header in 48 bytes, unchecked."""
        return cls(*_SEGMENT.unpack(raw))


def compressed_bound(payload: int) -> int:
    """The most bytes that Zstandard needs for `payload` bytes (ZSTD_compressBound, rounded up)."""
    return payload + (payload >> 8) + 64


def footer_size(steps: int) -> int:
    """Bytes of the footer of a file with so many steps."""
    return 8 * steps + 2 * _CHECKSUM_SIZE


def pack_footer(header: LogHeader, offsets: Sequence[int], segments: Sequence[SegmentHeader]) -> tuple[bytes, bytes]:
    """The footer and the log root in it: segment offsets, log root, checksum over all of the frame."""
    root = MerkleTree.of_leaf_hashes(segment.leaf for segment in segments).root
    body = struct.pack(f"<{len(offsets)}Q", *offsets) + root
    frame = header.pack() + b"".join(segment.pack() for segment in segments) + body
    return body + sha256(frame).digest(), root
