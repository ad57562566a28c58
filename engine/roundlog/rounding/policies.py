"""Policies: the rounding that a spec prescribes, for the trainer and for the auditor, the format of its logs, and
summaries of log files: the whole file is checked and counted, but not kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roundlog.log import ENTRIES, LogError, LogFile, LogHeader, PayloadError, PayloadFormat
from roundlog.log.layout import SEGMENT_HEADER_SIZE
from roundlog.rounding.follow import Follower
from roundlog.rounding.ovt import TRITS, ThresholdFollower, ThresholdRecorder
from roundlog.rounding.protocols import FollowingRounding, RecordingRounding
from roundlog.rounding.resolve import Recorder
from roundlog.spec import TrainingSpec

FORMATS: dict[int, PayloadFormat[Any]] = {form.kind: form for form in (ENTRIES, TRITS)}
"""Formats of the payloads of logs, by their kind."""


def payload_format(spec: TrainingSpec) -> PayloadFormat[Any]:
    """Format of the payloads in the job's logs."""
    return TRITS if spec.log_decides else ENTRIES


def recorder(spec: TrainingSpec) -> RecordingRounding:
    """The trainer's rounding, which records decisions."""
    if spec.log_decides:
        return ThresholdRecorder()
    return Recorder(spec.log_guard)


def follower(spec: TrainingSpec, share: float) -> FollowingRounding:
    """The auditor's rounding, which follows a log. share: share of the decisions that are verified, drawn in secret
    with fresh entropy from the operating system; unused where the log decides."""
    if spec.log_decides:
        return ThresholdFollower(spec.log_guard)
    return Follower(spec.log_guard, share, np.random.default_rng())


def without_log(spec: TrainingSpec) -> FollowingRounding:
    """Rounding without a log. Where the log decides, it gives this machine's own bits; other machines may give
    others."""
    if spec.log_decides:
        return ThresholdFollower(spec.log_guard)
    return Follower.without_log(spec.log_guard)


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

    def __add__(self, other: Counts) -> Counts:
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
