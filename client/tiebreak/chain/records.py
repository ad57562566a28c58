"""The contract's enums and structs, field for field: see `IVerificationGame.sol` for what each of them means.

Amounts are in wei, instants in seconds since 1970 (0: never), durations in seconds, roots and nodes 32 bytes. Pairs
are indexed by `Side`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from eth_typing import ChecksumAddress

from tiebreak.chain.spec import PostedSpec


class JobStatus(IntEnum):
    NONE = 0
    OPEN = 1
    CLAIMED = 2
    FINAL = 3
    REJECTED = 4
    EXPIRED = 5


class Phase(IntEnum):
    NONE = 0
    BISECTION = 1
    OPENING = 2
    REFEREE = 3
    OVER = 4


class Outcome(IntEnum):
    NONE = 0
    TRAINER_WON = 1
    CHALLENGER_WON = 2
    BOTH_LOST = 3
    UNDECIDED = 4
    VOID = 5


class Reason(IntEnum):
    NONE = 0
    VERDICT = 1
    TIMEOUT = 2
    PADDING = 3
    CLAIM_REJECTED = 4


class Side(IntEnum):
    TRAINER = 0
    CHALLENGER = 1

    @property
    def other(self) -> Side:
        return Side(1 - self)


class Level(IntEnum):
    CHECKPOINT = 0
    STEP = 1

    @property
    def is_last(self) -> bool:
        return self is Level.STEP


ANYONE = cast(ChecksumAddress, "0x" + "00" * 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the customer offers and asks; `trainer` is the only account that may commit."""

    reward: int
    trainer_bond: int
    challenger_bond: int
    commit_window: int
    challenge_window: int
    clock_allowance: int
    referee_allowance: int
    trainer: ChecksumAddress = ANYONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """All zero while the job waits for one."""

    trainer: ChecksumAddress
    checkpoint_root: bytes
    final_state_root: bytes
    log_cid: str
    model_cid: str
    committed_at: int
    challenge_deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as `getJob` shows it."""

    status: JobStatus
    customer: ChecksumAddress
    spec: PostedSpec
    spec_hash: bytes
    terms: Terms
    job_cid: str
    posted_at: int
    commit_deadline: int
    claim: Claim
    live_games: int
    game_count: int
    attestations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """The children of an inner node; both zero where there is none to open."""

    left: bytes
    right: bytes


NO_CHILDREN = Children(left=bytes(32), right=bytes(32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """`remaining` seconds when the clock last started or stopped; `started_at` is 0 while it stands."""

    remaining: int
    started_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState:
    """One level of a game, as far as it has come."""

    level: Level
    leaf_count: int
    roots: tuple[bytes, bytes]
    nodes: tuple[bytes, bytes]
    revealed: Children
    index: int
    height: int
    turn: Side
    opened: tuple[bool, bool]
    payloads: tuple[bytes, bytes]
    agreed_before: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """A game as `getGame` shows it."""

    job: int
    trainer: ChecksumAddress
    challenger: ChecksumAddress
    phase: Phase
    outcome: Outcome
    reason: Reason
    trainer_bond: int
    challenger_bond: int
    bond_held: bool
    clocks: tuple[Clock, Clock]
    deadlines: tuple[int, int]
    referee_deadline: int
    started_at: int
    agreed: bytes
    levels: tuple[LevelState, ...]

    @property
    def current(self) -> LevelState:
        """The deepest level reached."""
        return self.levels[-1]

    def party(self, side: Side) -> ChecksumAddress:
        return self.trainer if side is Side.TRAINER else self.challenger


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOpening:
    """What a side says about the disputed leaf of a level."""

    payload: bytes
    agreed: bytes
    agreed_proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRoot:
    """The root that a side opens for the next level, with the proof that the payload above is its last leaf."""

    root: bytes
    last_leaf_proof: tuple[bytes, ...]
