"""The `threshold` policy: OVT as published (Srivastava, Arora, Boneh 2024, section 5). Every output of every inexact
operator is rounded from FP64 as this machine computed it, the trainer logs on which side of which boundary it was, and
the auditor goes the same way. Unlike under `certified`, the log decides, and without it there is no one answer."""

from roundlog.rounding.threshold.follow import ThresholdFollower
from roundlog.rounding.threshold.record import ThresholdRecorder
from roundlog.rounding.threshold.search import Divergence
from roundlog.rounding.threshold.thresholds import MAX_THRESHOLDS_BYTES, MIN_THRESHOLD, ThresholdError, Thresholds

__all__ = [
    "MAX_THRESHOLDS_BYTES",
    "MIN_THRESHOLD",
    "Divergence",
    "ThresholdError",
    "ThresholdFollower",
    "ThresholdRecorder",
    "Thresholds",
]
