"""Policies: the rounding that a spec prescribes, for the trainer and for the auditor, and the format of its logs."""

from __future__ import annotations

from typing import Any

import numpy as np

from roundlog.log import ENTRIES, PayloadFormat
from roundlog.rounding.follow import Follower
from roundlog.rounding.ovt import TRITS, ThresholdFollower, ThresholdRecorder
from roundlog.rounding.protocols import FollowingRounding, RecordingRounding
from roundlog.rounding.record import Recorder
from roundlog.spec import TrainingSpec

FORMATS: dict[int, PayloadFormat[Any]] = {form.kind: form for form in (ENTRIES, TRITS)}
"""Formats of the payloads of logs, by their kind."""


def payload_format(spec: TrainingSpec) -> PayloadFormat[Any]:
    """Format of the payloads in the job's logs."""
    return TRITS if spec.log_decides else ENTRIES


def recorder(spec: TrainingSpec) -> RecordingRounding:
    """The trainer's rounding, which records decisions."""
    if spec.log_decides:
        return ThresholdRecorder(spec.rounding_bits)
    return Recorder(spec.log_guard, spec.rounding_bits)


def follower(spec: TrainingSpec, share: float) -> FollowingRounding:
    """The auditor's rounding, which follows a log. share: share of the decisions that are verified, drawn in secret
    with fresh entropy from the operating system; unused where the log decides."""
    if spec.log_decides:
        return ThresholdFollower(spec.log_guard, spec.rounding_bits)
    return Follower(spec.log_guard, share, np.random.default_rng(), spec.rounding_bits)


def without_log(spec: TrainingSpec) -> FollowingRounding:
    """Rounding without a log. Where the log decides, it gives this machine's own bits; other machines may give
    others."""
    if spec.log_decides:
        return ThresholdFollower(spec.log_guard, spec.rounding_bits)
    return Follower.without_log(spec.log_guard, spec.rounding_bits)
