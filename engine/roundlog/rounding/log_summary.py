"""Summary of a log file for `log inspect`: the whole file is checked and counted, but not kept."""

from dataclasses import dataclass
from pathlib import Path

from roundlog.log import LogError, LogFile, LogHeader, PayloadError
from roundlog.log.layout import SEGMENT_HEADER_SIZE
from roundlog.rounding.policies import FORMATS


@dataclass(frozen=True, slots=True)
class Counts:
    """Entries by decision; of other payloads, what they say of outputs: down, up, or a value."""

    down: int
    up: int
    value: int

    @property
    def total(self) -> int:
        """All entries."""
        return self.down + self.up + self.value

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.down + other.down, self.up + other.up, self.value + other.value)


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
    file = LogFile(path, None, {kind: form.most for kind, form in FORMATS.items()})
    form = FORMATS[file.header.kind]
    try:
        steps = []
        for position, (segment, offset) in enumerate(zip(file.segments, file.offsets, strict=True)):
            try:
                parts = form.decode(file.plain_payload(position), None)
            except PayloadError as error:
                raise LogError(
                    path, offset + SEGMENT_HEADER_SIZE, f"in the payload of step {segment.step}, {error}"
                ) from error
            counts = {operator: Counts(*form.tally(part).tolist()) for operator, part in parts.items()}
            size = SEGMENT_HEADER_SIZE + segment.compressed
            steps.append(StepSummary(segment.step, offset, size, segment.payload, counts))
        return LogSummary(path, file.header, file.root, file.size, tuple(steps))
    finally:
        file.close()
