"""Structs of the contract, with its fields in its order; a test compares them with the ABI. Views.sol, Types.sol and
game/Moves.sol in contracts/src say more about each.

Amounts are in wei, instants in seconds since 1970 (0: never, or not known yet), durations in seconds, roots, nodes,
hashes, seals and salts 32 bytes. A deadline is the last instant at which a call is taken. Pairs are indexed by `Side`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from eth_abi.abi import encode
from eth_hash.auto import keccak
from eth_typing import ChecksumAddress
from roundlog.spec import TrainingSpec

from tiebreak.contract.enums import AuditStatus, JobStatus, Level, Outcome, Phase, Reason, Side

# Jobs and audits.

ANYONE = cast(ChecksumAddress, "0x" + "00" * 20)
"""The zero address; as the trainer of a job's terms, it lets any account commit."""

_TYPES = (
    *("uint64", "uint64", "bytes32", "uint64", "bytes32", "uint64", "bytes32", "uint64", "uint64", "bytes32"),
    *("uint64", "uint32", "uint8", "uint8", "uint8", "uint8", "address", "address"),
)
"""Solidity types of the struct TrainingSpec. By hand, so that no artifact is loaded to hash a spec; a test holds them
against it."""


@dataclass(frozen=True, slots=True)
class PostedSpec:
    """A spec on the chain. The contract checks its ranges only roughly: call `training.validate()` before using it."""

    training: TrainingSpec
    referee: ChecksumAddress
    """The account that decides about an element where the adjudicator's precision does not."""
    adjudicator: ChecksumAddress
    """The contract that computes disputed elements."""

    @staticmethod
    def of(values: Sequence[Any]) -> PostedSpec:
        """Build a spec from the fields of the Solidity struct, in its order: the engine's, then the two addresses."""
        *training, referee, adjudicator = values
        names = (field.name for field in fields(TrainingSpec))
        return PostedSpec(TrainingSpec(**dict(zip(names, training, strict=True))), referee, adjudicator)

    def as_tuple(self) -> tuple[object, ...]:
        """Return the fields in the order of the Solidity struct."""
        return (*(getattr(self.training, field.name) for field in fields(TrainingSpec)), self.referee, self.adjudicator)

    @property
    def hash(self) -> bytes:
        """keccak256(abi.encode(spec)), 32 bytes: the spec's name on the chain."""
        return bytes(keccak(encode(_TYPES, self.as_tuple())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of a job: the customer's offer and conditions.

    Reward and audit fee are escrowed with the job, each bond is sent with what it is named for. The fields from
    `attestations_needed` on are zero where attestations are free, both windows where audits are open."""

    reward: int
    trainer_bond: int
    challenger_bond: int
    commit_window: int
    """From the posting to the last instant at which a trainer may commit."""
    challenge_window: int
    """From the claim to the last instant at which an auditor may challenge."""
    clock_allowance: int
    """Each side's whole thinking time in one game."""
    referee_allowance: int
    """The referee's time for one verdict."""
    concurrent_games: int
    """Games that are played at a time; all others wait for their turn, and their clocks with them."""
    trainer: ChecksumAddress = ANYONE
    """The only account that may commit; zero for anyone."""
    attestations_needed: int = 0
    """Bonded attestations without which a claim is not paid."""
    audit_window: int = 0
    """Blind audits: from the trainer's seal to the last instant at which an auditor may seal its audit."""
    opening_window: int = 0
    """Blind audits: the trainer's time to open its claim after the audit window, and then the auditors' for theirs."""
    audit_fee: int = 0
    """An equal share for each of the first `attestations_needed` attestations."""
    attestation_bond: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """The claim of a job; all zero while the job waits for one, and all but the trainer while it is sealed."""

    trainer: ChecksumAddress
    checkpoint_root: bytes
    final_state_root: bytes
    log_cid: str
    model_cid: str
    committed_at: int
    challenge_deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """An account's audit of a claim that needs attestations."""

    auditor: ChecksumAddress
    status: AuditStatus
    appeal: int
    """The appeal that this auditor has made; zero: none."""
    seal: bytes
    """The seal that was sent last; zero if audits are open."""
    log_cid: str
    """The log that the auditor serves, once it attests; `model_cid` likewise."""
    model_cid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditsView:
    """Blind audits and appeals of a job."""

    count: int
    """Audits ever sealed, and attestations that are bonded: as many as `auditsOf` pages through."""
    audit_deadline: int
    """For `sealAudit`."""
    opening_deadline: int
    """For `openClaim`."""
    audit_opening_deadline: int
    """For `openAudit`; games start after it."""
    verdict: int
    """The game that ended against the claim, once there may be appeals; else zero."""
    appeal_deadline: int
    lost: bool
    """Whether the verdict was upheld and has taken the bonds of the attestations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as `getJob` shows it. Numbers of live and queued games are zero again once the claim is rejected."""

    status: JobStatus
    customer: ChecksumAddress
    spec: PostedSpec
    spec_hash: bytes
    terms: Terms
    job_cid: str
    posted_at: int
    commit_deadline: int
    claim: ClaimView
    live_games: int
    """Games still being played; has to be zero before `finalize`."""
    queued_games: int
    """Games that wait for their turn; while there are any, `terms.concurrent_games` others are live."""
    game_count: int
    """All challenges ever made to the claim, and appeals."""
    attestations: int
    audits: AuditsView


# Games.


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """One side's chess clock in one game."""

    remaining: int
    """Time left at the instant when the clock last started or stopped."""
    started_at: int
    """When it started to run; zero while it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """The search for the leftmost leaf in which two trees differ."""

    nodes: tuple[bytes, bytes]
    """At a leaf both sides' leaves; in the place of a side that has opened its own, the hash of its row at the root of
    the next level. Zero above the leaves."""
    due: bytes
    """Above the leaves, what the next move has to show: keccak256 of the mover's node at the place, and keccak256 of
    the other side's row there. Zero at a leaf."""
    index: int
    """The leftmost leaf below the place that the search has reached; the disputed leaf once `height` is zero."""
    height: int
    """Height of the place above the leaves."""
    turn: Side
    """The side that moves next. Meaningless once `height` is zero."""
    shown_in: int
    """Number of the block in which the last row was shown: the one that the next move needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelView:
    """One level of a game, as far as it has come."""

    level: Level
    leaf_count: int
    roots: tuple[bytes, bytes]
    """At level PARTIAL a root is zero until its side has opened it."""
    index: int
    """The leaf that the search has found; of the present level, the leftmost leaf below the place reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """The disputed operator, from its descriptor; all zero until a side has opened it."""

    descriptor_hash: bytes
    """keccak256 of the descriptor's encoding."""
    width: int
    """Bytes of an element."""
    elements: int
    chunks: int
    """Leaves of a tree at level CHUNK."""
    segments: int
    """Leaves of a tree at level PARTIAL if there is more than one; 0 for an operator without a sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementView:
    """The one element that the challenger has named: what level PARTIAL is about, or the referee's question."""

    known: bool
    element: int
    """Flat index in the operator's output."""
    claimed: int
    """The trainer's bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    """A game as `getGame` shows it."""

    job: int
    trainer: ChecksumAddress
    """The account on the trainer's side: of an appeal, the auditor that has made it."""
    challenger: ChecksumAddress
    is_appeal: bool
    phase: Phase
    outcome: Outcome
    reason: Reason
    ahead: int
    """In phase QUEUED, how many games start before this one."""
    trainer_bond: int
    challenger_bond: int
    bond_held: bool
    """Whether the bond of the party that began the game, challenger or appellant, is still escrowed; once the outcome
    is VOID, `releaseBond` returns it."""
    clocks: tuple[Clock, Clock]
    deadlines: tuple[int, int]
    """Last instant for a move of each side whose clock runs, else zero; in phase OPENING zero for a side that has
    opened."""
    spent: tuple[int, int]
    """Wei that the gas of each side's moves has cost, as far as it counts (`Meter`)."""
    referee_deadline: int
    """Zero before the referee's clock has started."""
    started_at: int
    """When the clocks started; zero in phase QUEUED."""
    agreed: bytes
    """Agreed so far: the spec's initial state, then the state root before the disputed interval, and from level
    OPERATOR on the one before the disputed step."""
    search: Bisection
    """The search of the present level. At level PARTIAL until both sides have opened their roots, the hash of the row
    of the first only."""
    levels: tuple[LevelView, ...]
    """From CHECKPOINT down to the present level."""
    operator: OperatorView
    disputed: ElementView

    @property
    def current(self) -> LevelView:
        """The deepest level reached."""
        return self.levels[-1]

    def left(self, side: Side, now: int) -> int:
        """Return seconds on a side's clock at the instant `now`."""
        clock = self.clocks[side]
        return max(0, clock.remaining - (now - clock.started_at if clock.started_at else 0))

    def party(self, side: Side) -> ChecksumAddress:
        return (self.trainer, self.challenger)[side]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of one call in a `batch`."""

    success: bool
    data: bytes
    """The value that the call returned, or its error."""


# Arguments of moves. Proofs are siblings from the leaf upwards. A row is all nodes `Bisections.stride` levels below a
# node, from the left; of a root, the side that opens second may leave it empty.


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """A move of a search."""

    mine: tuple[bytes, ...]
    """The row of the mover's node at the place that the search has reached."""
    theirs: tuple[bytes, ...]
    """The row of the other side's node there, which that side has shown."""
    next: tuple[bytes, ...]
    """The row of the mover's node where the two first differ; empty if that is a leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRoot:
    """A side's root of the tree below the leaf, tied to its claim above."""

    root: bytes
    """At CHECKPOINT the root over the interval's steps. At STEP the node over the operators' half of the trace: the
    contract itself joins it with the state root that the side has claimed."""
    last_leaf_proof: tuple[bytes, ...]
    """At CHECKPOINT the proof that the side's payload above is the last leaf of `root`; at STEP empty."""
    row: tuple[bytes, ...]
    """The row of the whole tree's root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOpening:
    """A side's opening of the leaf that the search of level CHECKPOINT or STEP has found."""

    payload: bytes
    """The side's own payload of the disputed leaf (a state root)."""
    agreed: bytes
    """The payload of the leaf before it, on which both trees agree; before leaf 0, what the game agreed on above."""
    agreed_proof: tuple[bytes, ...]
    """Proof of `agreed` into the side's own root; empty before leaf 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOpening:
    """A side's opening of the operator that the search of level OPERATOR has found."""

    descriptor: bytes
    """The encoded descriptor, a leaf under the program root. Only the side that opens first is asked for it."""
    descriptor_proof: tuple[bytes, ...]
    tensor_root: bytes
    """The payload of the side's leaf: the root of the output's chunks, and so this side's root of level CHUNK."""
    row: tuple[bytes, ...]
    """The row of `tensor_root`; empty if the output is a single chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """The exact partial result of a reduction after some of its terms, in its one canonical form: "Exact partial sums"
    in docs/protocol.md. All zero before the first term."""

    words: tuple[bytes, bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialsOpening:
    """A side's tree over the running results of the disputed element. The last leaf comes to the element."""

    descriptor: bytes
    root: bytes
    last: Partial
    last_leaf_proof: tuple[bytes, ...]
    row: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandRoot:
    """The tensor root of an operand, in the order of the descriptor's inputs, with its proof into the challenger's
    trace, on which both agree there. Zero, with an empty proof, if nothing of this operand is opened."""

    root: bytes
    proof: tuple[bytes, ...]


NO_OPERAND = OperandRoot(root=bytes(32), proof=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOpening:
    """A chunk of an operand's tensor, with its proof into that tensor's root."""

    input: int
    """Number of the operand that it belongs to: the first that is this value."""
    chunk: int
    """Number of the chunk in the operand's bytes."""
    data: bytes
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProof:
    """A proof of one element of the trainer's chunk: number `position` in it."""

    descriptor: bytes
    chunk: bytes
    position: int
    operands: tuple[OperandRoot, ...]
    openings: tuple[ChunkOpening, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProof:
    """A proof of one segment of the disputed element's terms. `before`: the agreed running result before it, with its
    proof into the challenger's tree; before segment 0 all zero, with an empty proof."""

    descriptor: bytes
    before: Partial
    before_proof: tuple[bytes, ...]
    operands: tuple[OperandRoot, ...]
    openings: tuple[ChunkOpening, ...]
