"""The rounding that a spec asks for, on each side."""

from __future__ import annotations

import numpy as np

from roundlog.log import PayloadKind
from roundlog.rounding import Follower, Recorder, ThresholdFollower, ThresholdRecorder, Thresholds
from roundlog.spec import POLICY_CERTIFIED, TrainingSpec


def log_kind(spec: TrainingSpec) -> PayloadKind:
    """What the payloads of the job's logs are."""
    return PayloadKind.ENTRIES if spec.rounding_policy == POLICY_CERTIFIED else PayloadKind.TRITS


def recorder(spec: TrainingSpec, thresholds: Thresholds | None = None) -> Recorder | ThresholdRecorder:
    """The trainer's side. thresholds: of the `threshold` policy, the trainer's own choice; unused by `certified`."""
    if spec.rounding_policy == POLICY_CERTIFIED:
        return Recorder(spec.log_guard, spec.rounding_bits)
    return ThresholdRecorder(spec.rounding_bits, thresholds)


def follower(spec: TrainingSpec, share: float) -> Follower | ThresholdFollower:
    """The auditor's side. share: of the decisions that `certified` verifies, drawn in secret, with fresh entropy from
    the operating system; `threshold` has nothing to draw from."""
    if spec.rounding_policy == POLICY_CERTIFIED:
        return Follower(spec.log_guard, share, np.random.default_rng(), spec.rounding_bits)
    return ThresholdFollower(spec.log_guard, spec.rounding_bits)


def alone(spec: TrainingSpec) -> Follower | ThresholdFollower:
    """Rounding without any log. Under `threshold` this gives what this machine computes, and other machines other
    bits."""
    if spec.rounding_policy == POLICY_CERTIFIED:
        return Follower.without_log(spec.log_guard, spec.rounding_bits)
    return ThresholdFollower(spec.log_guard, spec.rounding_bits)
