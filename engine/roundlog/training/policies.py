"""Rounding policies: the rounding that a spec prescribes, for the trainer and for the auditor."""

from __future__ import annotations

import numpy as np

from roundlog.log import PayloadKind
from roundlog.rounding import Follower, Recorder, ThresholdFollower, ThresholdRecorder, Thresholds
from roundlog.spec import POLICY_CERTIFIED, TrainingSpec


def log_kind(spec: TrainingSpec) -> PayloadKind:
    """Kind of the payloads in the job's logs."""
    return PayloadKind.ENTRIES if spec.rounding_policy == POLICY_CERTIFIED else PayloadKind.TRITS


def recorder(spec: TrainingSpec, thresholds: Thresholds | None = None) -> Recorder | ThresholdRecorder:
    """The trainer's rounding, which records decisions. thresholds: the trainer's own choice under the policy
    `threshold`; unused under `certified`."""
    if spec.rounding_policy == POLICY_CERTIFIED:
        return Recorder(spec.log_guard, spec.rounding_bits)
    return ThresholdRecorder(spec.rounding_bits, thresholds)


def follower(spec: TrainingSpec, share: float) -> Follower | ThresholdFollower:
    """The auditor's rounding, which follows a log. share: share of the decisions that are verified under `certified`,
    drawn in secret with fresh entropy from the operating system; unused under `threshold`."""
    if spec.rounding_policy == POLICY_CERTIFIED:
        return Follower(spec.log_guard, share, np.random.default_rng(), spec.rounding_bits)
    return ThresholdFollower(spec.log_guard, spec.rounding_bits)


def alone(spec: TrainingSpec) -> Follower | ThresholdFollower:
    """Rounding without a log. Under `threshold` it gives this machine's own bits; other machines may give others."""
    if spec.rounding_policy == POLICY_CERTIFIED:
        return Follower.without_log(spec.log_guard, spec.rounding_bits)
    return ThresholdFollower(spec.log_guard, spec.rounding_bits)
