"""Rounding of FP64 approximations to the FP32 answer, with and without a rounding log.

`certified` (Recorder, Follower): the one right answer, the correctly rounded one. `threshold` (ThresholdRecorder,
ThresholdFollower): OVT as published."""

from roundlog.rounding.finding import LogFinding, LogFindingKind
from roundlog.rounding.follow import Follower
from roundlog.rounding.record import Recorder
from roundlog.rounding.resolve import Rounding, certify, ends
from roundlog.rounding.threshold import ThresholdError, ThresholdFollower, ThresholdRecorder, Thresholds
from roundlog.rounding.window import Window, in_order

__all__ = [
    "Follower",
    "LogFinding",
    "LogFindingKind",
    "Recorder",
    "Rounding",
    "ThresholdError",
    "ThresholdFollower",
    "ThresholdRecorder",
    "Thresholds",
    "Window",
    "certify",
    "ends",
    "in_order",
]
