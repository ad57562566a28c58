"""Protocols of rounding policies, for executors, trainers and auditors, and findings about logs."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import torch

from roundlog.log import LogReader, LogWriter, PayloadKind
from roundlog.operators import Attributes, Inexact, Tensors

MAX_FINDINGS = 1000
"""A log with so many wrong entries is worth nothing: it is not followed any further, and an auditor's memory does not
fill with findings that a hostile log can make by the million."""


class Rounding(Protocol):
    """Rounding policy of an executor: it turns the approximations of inexact operators into FP32 values."""

    def round(self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        """FP32: the correctly rounded value of every element of operator `index` of the running step."""

    def start_again(self) -> None:
        """Forget what was noted of the running step: it is executed again."""


class RecordingRounding(Rounding, Protocol):
    """The trainer's rounding: it keeps what the log has to say of the running step."""

    kind: PayloadKind
    """Kind of the log that it writes."""
    bits: int
    """Bits of its results."""

    def write(self, writer: LogWriter, step: int) -> None:
        """Hand the log of the step that has just run to a file. Raises LogError."""


class FollowingRounding(Rounding, Protocol):
    """The auditor's rounding, by somebody else's log or by none."""

    findings: list[LogFinding]
    """Wrong entries of the logs so far, in order."""

    @property
    def given_up(self) -> bool:
        """Whether so much of the log was wrong that it is not followed any more."""

    def follow(self, step: int, log: None) -> None:
        """There is no log of the step that runs next."""

    def read(self, reader: LogReader, step: int) -> None:
        """Follow what a log file says of the step that runs next. Raises LogError."""


class LogFindingKind(enum.StrEnum):
    """Kinds of faults of a log."""

    FORGED = "forged"
    """A decision that no honest trainer can have made: it contradicts the correct rounding, or is for an element
    that is nowhere near a rounding boundary."""
    MISSING = "missing"
    """An ambiguous element without an entry. Resolved here; no harm done."""


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One wrong entry: at which step and operator of the program, which flat element of its output."""

    step: int
    operator: int
    element: int
    kind: LogFindingKind
    message: str
