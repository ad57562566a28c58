"""Findings about a trainer's log: what is wrong with it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

MAX_FINDINGS = 1000
"""A log with so many wrong entries is worth nothing: it is not followed any further, and an auditor's memory does not
fill with findings that a hostile log can make by the million."""


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
