"""Enums of the contract, with its names and values. What each member means stands beside it in contracts/src: statuses,
phases, outcomes and reasons in Types.sol, levels in game/Level.sol, findings in adjudication/IAdjudicator.sol. A test
compares the members with those sources. A fault of a descriptor is told by its number: no job of ours has one."""

from __future__ import annotations

from enum import IntEnum


class AuditStatus(IntEnum):
    """Status of an account's audit of a claim that needs attestations."""

    NONE = 0
    SEALED = 1
    ATTESTED = 2
    CHALLENGED = 3
    CLOSED = 4


class Finding(IntEnum):
    """Finding of a computation."""

    VALUE = 0
    STOPS = 1
    UNDECIDED = 2


class JobStatus(IntEnum):
    """Status of a job."""

    NONE = 0
    OPEN = 1
    SEALED = 2
    CLAIMED = 3
    APPEALABLE = 4
    FINAL = 5
    REJECTED = 6
    EXPIRED = 7
    LAPSED = 8


class Level(IntEnum):
    """The levels of a dispute, from the coarsest tree to the finest. `Trace` and `Transitions` say how many leaves each
    has."""

    CHECKPOINT = 0
    STEP = 1
    OPERATOR = 2
    CHUNK = 3
    PARTIAL = 4


class Outcome(IntEnum):
    """Outcome of a game."""

    NONE = 0
    TRAINER_WON = 1
    CHALLENGER_WON = 2
    BOTH_LOST = 3
    UNDECIDED = 4
    VOID = 5


class Phase(IntEnum):
    """Phase of a game."""

    NONE = 0
    QUEUED = 1
    BISECTION = 2
    OPENING = 3
    POSTING = 4
    PROVING = 5
    REFEREE = 6
    OVER = 7


class Reason(IntEnum):
    """Reason for which a game ended."""

    NONE = 0
    PROOF = 1
    VERDICT = 2
    TIMEOUT = 3
    PADDING = 4
    CLAIM_REJECTED = 5


class Side(IntEnum):
    """The two parties of a game. Also the index into every two-element array of the contract."""

    TRAINER = 0
    CHALLENGER = 1

    @property
    def other(self) -> Side:
        return Side(1 - self)
