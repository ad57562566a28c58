"""From an FP64 approximation to the one right FP32 answer, with and without a rounding log (design, section 2)."""

from roundlog.rounding.follow import Finding, FindingKind, Follower
from roundlog.rounding.record import Recorder
from roundlog.rounding.resolve import Rounding

__all__ = ["Finding", "FindingKind", "Follower", "Recorder", "Rounding"]
