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
    QUEUED = 1
    BISECTION = 2
    OPENING = 3
    POSTING = 4
    PROVING = 5
    REFEREE = 6
    OVER = 7


class Outcome(IntEnum):
    NONE = 0
    TRAINER_WON = 1
    CHALLENGER_WON = 2
    BOTH_LOST = 3
    UNDECIDED = 4
    VOID = 5


class Reason(IntEnum):
    NONE = 0
    PROOF = 1
    VERDICT = 2
    TIMEOUT = 3
    PADDING = 4
    CLAIM_REJECTED = 5


class Side(IntEnum):
    TRAINER = 0
    CHALLENGER = 1

    @property
    def other(self) -> Side:
        return Side(1 - self)


class Level(IntEnum):
    CHECKPOINT = 0
    STEP = 1
    OPERATOR = 2
    CHUNK = 3
    PARTIAL = 4


class Finding(IntEnum):
    VALUE = 0
    STOPS = 1
    UNDECIDED = 2


class Fault(IntEnum):
    AXES = 0
    TOO_MANY_INPUTS = 1
    PARAMETERS = 2
    NEGATIVE = 3
    INPUTS = 4
    DTYPE = 5
    SEGMENT = 6
    SIZE = 7
    AFFINE = 8
    DIVISOR = 9
    OUTSIDE = 10
    REDUCTION = 11
    GATHER_AXIS = 12
    CODE = 13
    FAMILY = 14
    EMPTY = 15
    LABEL = 16
    RANGE = 17


ANYONE = cast(ChecksumAddress, "0x" + "00" * 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the customer offers and asks. `concurrent_games`: how many are played at a time, all others wait for their
    turn; `trainer`: the only account that may commit."""

    reward: int
    trainer_bond: int
    challenger_bond: int
    commit_window: int
    challenge_window: int
    clock_allowance: int
    referee_allowance: int
    concurrent_games: int
    trainer: ChecksumAddress = ANYONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """All zero while the job waits for one."""

    trainer: ChecksumAddress
    checkpoint_root: bytes
    final_state_root: bytes
    log_cid: str
    model_cid: str
    committed_at: int
    challenge_deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as `getJob` shows it."""

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
    queued_games: int
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
class LevelView:
    """One level of a game, as far as it has come."""

    level: Level
    leaf_count: int
    roots: tuple[bytes, bytes]
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """The search of the present level."""

    nodes: tuple[bytes, bytes]
    revealed: Children
    index: int
    height: int
    turn: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """The disputed operator; all zero until a side has opened it."""

    descriptor_hash: bytes
    width: int
    elements: int
    chunks: int
    segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementView:
    """The element that the challenger has named, and the trainer's bits of it."""

    known: bool
    element: int
    claimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    """A game as `getGame` shows it. `ahead`: in phase QUEUED, how many games start before it; `spent`: wei that the gas
    of each side's moves has cost, as far as the contract counts it."""

    job: int
    trainer: ChecksumAddress
    challenger: ChecksumAddress
    phase: Phase
    outcome: Outcome
    reason: Reason
    ahead: int
    trainer_bond: int
    challenger_bond: int
    bond_held: bool
    clocks: tuple[Clock, Clock]
    deadlines: tuple[int, int]
    spent: tuple[int, int]
    referee_deadline: int
    started_at: int
    agreed: bytes
    search: Bisection
    levels: tuple[LevelView, ...]
    operator: OperatorView
    disputed: ElementView

    @property
    def current(self) -> LevelView:
        """The deepest level reached."""
        return self.levels[-1]

    def party(self, side: Side) -> ChecksumAddress:
        return self.trainer if side is Side.TRAINER else self.challenger


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one call in a `batch`; `data`: what it returned, or its error."""

    success: bool
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOpening:
    """What a side says about the disputed leaf of level CHECKPOINT or STEP."""

    payload: bytes
    agreed: bytes
    agreed_proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRoot:
    """What a side opens below: the root over the steps, with the proof that the payload above is its last leaf; or the
    node over the operators' half of a trace."""

    root: bytes
    last_leaf_proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOpening:
    """What a side says about the disputed operator."""

    descriptor: bytes
    descriptor_proof: tuple[bytes, ...]
    tensor_root: bytes
    children: Children


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandRoot:
    """The tensor root of an operand, a leaf of the challenger's trace; zero where nothing of it is opened."""

    root: bytes
    proof: tuple[bytes, ...]


NO_OPERAND = OperandRoot(root=bytes(32), proof=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A chunk of operand number `input`, with its proof up to the tensor root."""

    input: int
    chunk: int
    data: bytes
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProof:
    """All that decides one element of the trainer's chunk."""

    descriptor: bytes
    chunk: bytes
    position: int
    operands: tuple[OperandRoot, ...]
    openings: tuple[Opening, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """A running result: three words of 32 bytes."""

    words: tuple[bytes, bytes, bytes]

    @staticmethod
    def of(encoded: bytes) -> Partial:
        """From the 96 bytes that are a leaf of level PARTIAL."""
        return Partial(words=(encoded[:32], encoded[32:64], encoded[64:96]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialsOpening:
    """A side's tree over the running results of the disputed element."""

    descriptor: bytes
    root: bytes
    last: Partial
    last_leaf_proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProof:
    """All that decides one segment of the disputed element's terms."""

    descriptor: bytes
    before: Partial
    before_proof: tuple[bytes, ...]
    operands: tuple[OperandRoot, ...]
    openings: tuple[Opening, ...]
