"""The `threshold` policy: OVT as published (Srivastava, Arora, Boneh 2024, section 5). Every output of every inexact
operator is rounded from FP64 as this machine computed it, the trainer logs the boundary and the side it was on, and
the auditor goes the same way. Unlike under `certified`, the log decides, and without it there is no one answer."""

from roundlog.rounding.ovt.threshold_rounding import (
    MAX_THRESHOLDS_BYTES,
    MIN_THRESHOLD,
    Divergence,
    ThresholdError,
    ThresholdFollower,
    ThresholdRecorder,
    Thresholds,
)
from roundlog.rounding.ovt.trits import TRITS, TritLog, Trits
