"""Log files for the tests: honest ones, and ones put together from any bytes."""

from pathlib import Path

import numpy as np
import zstandard
from hypothesis import strategies as st
from roundlog.commitments import leaf_hash
from roundlog.log import ENTRIES, ClosedLog, Entries, LogHeader, LogReader, LogWriter, PayloadFormat
from roundlog.log.layout import SEGMENT_HEADER_SIZE, SegmentHeader, pack_footer

HEADER = LogHeader(program_root=bytes([1]) * 32, run_id=bytes([2]) * 32, first_step=10, steps=3, guard=4)
SIZES = [0, 100, 1, 70_000, 300]


def entries(*triples: tuple[int, int] | tuple[int, int, int]) -> Entries:
    """Entries from (index, decision) or (index, 2, value bits)."""
    return Entries(
        np.array([t[0] for t in triples], np.int64),
        np.array([t[1] for t in triples], np.uint8),
        np.array([t[2] for t in triples if len(t) == 3], np.uint32),
    )


STEPS = [
    {1: entries((0, 1), (7, 0), (99, 1)), 3: entries((5, 0), (300, 2, 0x3F800000), (69_999, 1))},
    {},
    {2: entries((0, 2, 0x80000001)), 4: entries(*((i, i % 2) for i in range(0, 300, 7)))},
]


@st.composite
def step_logs(draw: st.DrawFn, sizes: list[int] = SIZES) -> dict[int, Entries]:
    log = {}
    for operator, size in enumerate(sizes):
        indices = sorted(draw(st.sets(st.integers(0, size - 1), max_size=12))) if size else []
        decisions = [draw(st.sampled_from([0, 1, 2])) for _ in indices]
        values = [draw(st.sampled_from([0, 1, 0x80000000, 0x7F7FFFFF, 0xFF7FFFFF])) for d in decisions if d == 2]
        if indices:
            log[operator] = Entries(
                np.array(indices, np.int64), np.array(decisions, np.uint8), np.array(values, np.uint32)
            )
    return log


def write(
    path: Path,
    header: LogHeader = HEADER,
    steps: list[dict[int, Entries]] = STEPS,
    form: PayloadFormat[Entries] = ENTRIES,
) -> ClosedLog:
    with LogWriter(path, header, form) as log:
        for i, step in enumerate(steps):
            log.append(header.first_step + i, step)
    return log.close()


def read(path: Path, header: LogHeader = HEADER) -> list[dict[int, Entries]]:
    with LogReader(path, header, SIZES) as log:
        return [log.step(header.first_step + i) for i in range(header.steps)]


def forge(path: Path, header: LogHeader, frames: list[tuple[int, bytes]], steps: list[int] | None = None) -> None:
    """A file whose frame is in order around any segments: (claimed payload bytes, compressed bytes) each."""
    steps = steps or [header.first_step + i for i in range(len(frames))]
    raw, offsets, segments = header.pack(), [], []
    for step, (claimed, compressed) in zip(steps, frames, strict=True):
        segment = SegmentHeader(step, claimed, len(compressed), leaf_hash(compressed))
        offsets.append(len(raw))
        segments.append(segment)
        raw += segment.pack() + compressed
    path.write_bytes(raw + pack_footer(header, offsets, segments)[0])


def frame(payload: bytes) -> tuple[int, bytes]:
    """An honest segment of any payload."""
    return len(payload), zstandard.ZstdCompressor().compress(payload)


DATA_START = 120 + SEGMENT_HEADER_SIZE
"""Offset of the compressed bytes of the first segment."""
