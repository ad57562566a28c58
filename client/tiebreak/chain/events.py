"""The contract's events as typed records, each with its place in the chain."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.chain.records import Children, Finding, Level, Outcome, Partial, Reason, Side, Terms
from tiebreak.chain.spec import PostedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`index` counts the logs of a block, so (block, index) orders all events."""

    block: int
    index: int
    transaction: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPosted(Event):
    job: int
    customer: ChecksumAddress
    spec_hash: bytes
    spec: PostedSpec
    terms: Terms
    job_cid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExpired(Event):
    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    job: int
    trainer: ChecksumAddress
    checkpoint_root: bytes
    final_state_root: bytes
    log_cid: str
    model_cid: str
    challenge_deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attested(Event):
    job: int
    auditor: ChecksumAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenged(Event):
    job: int
    game: int
    challenger: ChecksumAddress
    checkpoint_root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GameStarted(Event):
    """The game's turn has come: its clocks run from now on."""

    job: int
    game: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStarted(Event):
    game: int
    level: Level
    trainer_root: bytes
    challenger_root: bytes
    trainer_children: Children
    leaf_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected(Event):
    game: int
    level: Level
    mover: Side
    # `index` and `height` of the place from which the move descends; the first hides Event.index, hence its name here.
    leaf_index: int
    height: int
    went_left: bool
    opened: Children
    next: Children


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFound(Event):
    game: int
    level: Level
    leaf_index: int
    trainer_leaf: bytes
    challenger_leaf: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOpened(Event):
    game: int
    level: Level
    side: Side
    payload: bytes
    agreed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RootOpened(Event):
    game: int
    next_level: Level
    side: Side
    root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKnown(Event):
    game: int
    operator: int
    descriptor_hash: bytes
    width: int
    elements: int
    chunks: int
    segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPosted(Event):
    game: int
    leaf_index: int
    chunk: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProven(Event):
    """`bits`: with finding VALUE those of the element, with UNDECIDED those of the function's argument."""

    game: int
    element: int
    claimed: int
    finding: Finding
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementDisputed(Event):
    game: int
    element: int
    claimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProven(Event):
    game: int
    segment: int
    finding: Finding
    afterwards: Partial


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProven(Event):
    game: int
    slot: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RefereeCalled(Event):
    game: int
    referee: ChecksumAddress
    element: int
    claimed: int
    deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjudicated(Event):
    game: int
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GameOver(Event):
    job: int
    game: int
    outcome: Outcome
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRejected(Event):
    job: int
    game: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFinal(Event):
    job: int
    trainer: ChecksumAddress
    final_state_root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited(Event):
    account: ChecksumAddress
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Burnt(Event):
    """A part of the bonds that were lost in this game is nobody's."""

    game: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(Event):
    account: ChecksumAddress
    amount: int


EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        *(JobPosted, JobExpired, Committed, Attested, Challenged, GameStarted, LevelStarted, Bisected, LeafFound),
        *(
            LeafOpened,
            RootOpened,
            OperatorKnown,
            ChunkPosted,
            ElementProven,
            ElementDisputed,
            SegmentProven,
            StoreProven,
        ),
        *(RefereeCalled, Adjudicated, GameOver, ClaimRejected, ClaimFinal, Credited, Burnt, Withdrawn),
    )
}
