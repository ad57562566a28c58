"""Rounding of FP64 approximations to the FP32 answer, with and without a rounding log.

A spec's policy says how (`recorder`, `follower`, `without_log`). By `Recorder` and `Follower` there is one right
answer, the correctly rounded one; where the log decides
instead, the rounding is another room's."""

from roundlog.rounding.follow import Follower
from roundlog.rounding.policies import (
    checked_header,
    follower,
    payload_format,
    recorder,
    without_log,
)
from roundlog.rounding.protocols import (
    FollowingRounding,
    LogFinding,
    LogFindingKind,
    RecordingRounding,
    Rounding,
    Window,
    WindowRounding,
    in_order,
)
from roundlog.rounding.resolve import Recorder, certify, ends
