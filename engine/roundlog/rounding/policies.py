"""Policies: the rounding that a spec prescribes, for the trainer and for the auditor, the format of its logs, and the
check of a whole log file."""

from __future__ import annotations

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


def checked_header(path: Path) -> LogHeader:
    """Read and check every byte of the log at `path`, whatever run it belongs to; return its header.

    Without the program, indices are not held against output sizes. Raises LogError.
    """
    file = LogFile(path, None, {kind: form.most for kind, form in FORMATS.items()})
    form = FORMATS[file.header.kind]
    try:
        for position, (segment, offset) in enumerate(zip(file.segments, file.offsets, strict=True)):
            try:
                form.decode(file.plain_payload(position), None)
            except PayloadError as error:
                raise LogError(
                    path, offset + SEGMENT_HEADER_SIZE, f"in the payload of step {segment.step}, {error}"
                ) from error
        return file.header
    finally:
        file.close()
