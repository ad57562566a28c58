"""Summary of a log file for `log inspect`: the whole file is checked and counted, but not kept."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roundlog.log import payload, trits
from roundlog.log.entries import Decision, Entries
from roundlog.log.errors import LogError, PayloadError
from roundlog.log.layout import SEGMENT_HEADER_SIZE, LogHeader, PayloadKind
from roundlog.log.reader import LogFile
from roundlog.log.trits import DOWN, UP, Trits


@dataclass(frozen=True, slots=True)
class Counts:
    """Entries by decision; of trits, those that say up or down."""

    down: int
    up: int
    value: int

    @property
    def total(self) -> int:
        """All entries."""
        return self.down + self.up + self.value

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.down + other.down, self.up + other.up, self.value + other.value)

    @classmethod
    def of(cls, entries: Entries) -> "Counts":
        """The counts of one operator's entries."""
        counts = np.bincount(entries.decisions, minlength=len(Decision))
        return cls(*(int(counts[decision]) for decision in Decision))

    @classmethod
    def of_trits(cls, trits: Trits) -> "Counts":
        """The counts of one operator's trits."""
        counts = np.bincount(trits.codes(), minlength=3)
        return cls(int(counts[DOWN]), int(counts[UP]), 0)


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step of a log. offset: of its segment in the file. bytes: of its segment; payload: before
    compression.
    """

    step: int
    offset: int
    bytes: int
    payload: int
    operators: dict[int, Counts]

    @property
    def counts(self) -> Counts:
        """Entries of all operators together."""
        return sum(self.operators.values(), Counts(0, 0, 0))


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A whole log file. root: its log root (32 bytes). bytes: its size."""

    path: Path
    header: LogHeader
    root: bytes
    bytes: int
    steps: tuple[StepSummary, ...]


def summarise(path: Path) -> LogSummary:
    """Reads and checks every byte of the log at `path`, whatever run it belongs to.

    Without the program, indices are not held against output sizes. Raises LogError.
    """
    file = LogFile(path, None)
    try:
        steps = []
        for position, (segment, offset) in enumerate(zip(file.segments, file.offsets, strict=True)):
            try:
                counts = _counts(file.header.kind, file.plain_payload(position))
            except PayloadError as error:
                raise LogError(
                    path, offset + SEGMENT_HEADER_SIZE, f"in the payload of step {segment.step}, {error}"
                ) from error
            size = SEGMENT_HEADER_SIZE + segment.compressed
            steps.append(StepSummary(segment.step, offset, size, segment.payload, counts))
        return LogSummary(path, file.header, file.root, file.size, tuple(steps))
    finally:
        file.close()


def _counts(kind: PayloadKind, plain: bytes) -> dict[int, Counts]:
    if kind == PayloadKind.TRITS:
        return {operator: Counts.of_trits(part) for operator, part in trits.decode(plain, None).items()}
    return {operator: Counts.of(part) for operator, part in payload.decode(plain, None).items()}
