"""Events of the contract. Made by scripts/make_contract_records.py, not by hand."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import Finding, Level, Outcome, Reason, Side
from tiebreak.contract.struct_bases import PostedSpec
from tiebreak.contract.structs import Partial, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event and its place in the chain. `index` counts the logs of a block, so (block, index) orders all events."""

    block: int
    index: int
    transaction: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjudicated(Event):
    """The referee has given its verdict: the bits of the disputed element."""

    game: int
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Appealed(Event):
    """An auditor plays the game that the trainer has lost again, on the trainer's side."""

    job: int
    game: int
    appellant: ChecksumAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Attested(Event):
    """An auditor states that its audit gave the same root, and where it serves log and model."""

    job: int
    auditor: ChecksumAddress
    log_cid: str
    model_cid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSealed(Event):
    """An auditor has sealed an audit, or replaced its seal."""

    job: int
    auditor: ChecksumAddress
    seal: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected(Event):
    """A move: `mover` found the first node that differs below the place (`index`, `height`), and has shown its row
    there."""

    game: int
    level: Level
    mover: Side
    leaf_index: int
    """Leftmost leaf below the place from which the move descends."""
    height: int
    """Height of that place above the leaves."""
    to: int
    """Leftmost leaf below the place to which it descends."""
    next: tuple[bytes, ...]
    """The mover's row there; empty if that is a leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burnt(Event):
    """A part of the bonds that were lost in this game stays in the contract for good; game 0: of a bond that was not
    opened."""

    game: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenged(Event):
    """A claim is challenged with another root."""

    job: int
    game: int
    challenger: ChecksumAddress
    checkpoint_root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPosted(Event):
    """The trainer's chunk number `index` of the disputed operator's output."""

    game: int
    leaf_index: int
    chunk: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFinal(Event):
    """The claim stands; reward and bond are the trainer's."""

    job: int
    trainer: ChecksumAddress
    final_state_root: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLapsed(Event):
    """Too few have attested to the claim; everybody has back what it paid in."""

    job: int
    trainer: ChecksumAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRejected(Event):
    """A lost game has rejected the claim; all other games of the job are void."""

    job: int
    game: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSealed(Event):
    """A trainer has sealed a claim; audits may be sealed until the deadline."""

    job: int
    trainer: ChecksumAddress
    seal: bytes
    audit_deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected(Event):
    """An auditor's bond is credited to it, with its share of the fee if it has one."""

    job: int
    auditor: ChecksumAddress
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """A trainer has claimed a result."""

    job: int
    trainer: ChecksumAddress
    checkpoint_root: bytes
    final_state_root: bytes
    log_cid: str
    model_cid: str
    challenge_deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited(Event):
    """An account may withdraw so much more."""

    account: ChecksumAddress
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementDisputed(Event):
    """The challenger disputes an element that is a sum; the trainer's bits of it are `claimed`."""

    game: int
    element: int
    claimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProven(Event):
    """The contract has computed an element; the trainer's bits of it are `claimed`. With finding VALUE, `bits` are the
    element's, with UNDECIDED the function's argument's."""

    game: int
    element: int
    claimed: int
    finding: Finding
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GameOver(Event):
    """A game has ended."""

    job: int
    game: int
    outcome: Outcome
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GameStarted(Event):
    """A game's turn has come: its clocks run from now on."""

    job: int
    game: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExpired(Event):
    """Nobody has claimed in time, or opened a sealed claim in time; the reward is the customer's again."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPosted(Event):
    """A customer has posted a job and escrowed its reward."""

    job: int
    customer: ChecksumAddress
    spec_hash: bytes
    spec: PostedSpec
    terms: Terms
    job_cid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFound(Event):
    """The search of a level has ended at leaf `index`; each side's leaf hash."""

    game: int
    level: Level
    leaf_index: int
    trainer_leaf: bytes
    challenger_leaf: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOpened(Event):
    """A side has revealed its payload of the disputed leaf, and the agreed one before it."""

    game: int
    level: Level
    side: Side
    payload: bytes
    agreed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStarted(Event):
    """A level's search begins."""

    game: int
    level: Level
    trainer_root: bytes
    challenger_root: bytes
    first: Side
    leaf_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKnown(Event):
    """The numbers in the disputed operator's descriptor; emitted once, when the first side opens it."""

    game: int
    operator: int
    descriptor_hash: bytes
    width: int
    elements: int
    chunks: int
    segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefereeCalled(Event):
    """The referee's clock runs. The referee computes one element of the disputed operator; the trainer's bits of it are
    `claimed`."""

    game: int
    referee: ChecksumAddress
    element: int
    claimed: int
    deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RootOpened(Event):
    """A side has opened its root for the next level, and, if it is the first, shown its row."""

    game: int
    next_level: Level
    side: Side
    root: bytes
    row: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShown(Event):
    """With a claim: the row of its root."""

    job: int
    row: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealForfeited(Event):
    """A sealed claim or audit was not opened in time; its bond is lost."""

    job: int
    account: ChecksumAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProven(Event):
    """The contract has computed the running result after a segment."""

    game: int
    segment: int
    finding: Finding
    afterwards: Partial


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProven(Event):
    """The store of a state slot has to keep the tensor root `payload`."""

    game: int
    slot: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictAppealable(Event):
    """A game has ended against a claim with bonded attestations, whose auditors may appeal until the deadline."""

    job: int
    game: int
    appeal_deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictOverturned(Event):
    """An appeal was won: the bonds of the attestations return."""

    job: int
    game: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictUpheld(Event):
    """No appeal was won: the verdict takes the bonds of trainer and attestations."""

    job: int
    game: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(Event):
    """An account has been paid everything that was credited to it."""

    account: ChecksumAddress
    amount: int
