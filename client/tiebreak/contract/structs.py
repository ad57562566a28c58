"""Structs of the contract, with its fields in its order; a test compares them with the ABI. Views.sol, Types.sol,
Bisection.sol, Clock.sol and Moves.sol in game, Openings.sol and IAdjudicator.sol in adjudication, all in contracts/src,
say what each field means.

Structs that are not written out here, the arguments of moves and the answer to a batched call, are frozen dataclasses,
too, made of the ABI when this module is loaded:

    from tiebreak.contract.structs import Descent, NextRoot

Amounts are in wei, instants in seconds since 1970 (0: never, or not known yet), durations in seconds, roots, nodes,
hashes, seals and salts 32 bytes. A deadline is the last instant at which a call is taken. Pairs are indexed by `Side`.
Of a game's moves, proofs are siblings from the leaf upwards. A row is all nodes `Bisections.stride` levels below a
node, from the left; of a root, the side that opens second may leave it empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from eth_abi.abi import encode
from eth_hash.auto import keccak
from eth_typing import ChecksumAddress
from roundlog.spec import TrainingSpec

from tiebreak.contract.enums import AuditStatus, JobStatus, Level, Outcome, Phase, Reason, Side
from tiebreak.contract.records import make_record, snake_case, structs

ANYONE = cast(ChecksumAddress, "0x" + "00" * 20)
"""The zero address; as the trainer of a job's terms, it lets any account commit."""

_STRUCTS = structs()


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
        types = [item["type"] for item in _STRUCTS["TrainingSpec"]]
        return bytes(keccak(encode(types, self.as_tuple())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of a job: the customer's offer and conditions.

    Reward and audit fee are escrowed with the job, each bond is sent with what it is named for. The fields from
    `attestations_needed` on are zero where attestations are free, both windows where audits are open."""

    reward: int
    trainer_bond: int
    challenger_bond: int
    commit_window: int
    challenge_window: int
    clock_allowance: int
    referee_allowance: int
    concurrent_games: int
    trainer: ChecksumAddress = ANYONE
    attestations_needed: int = 0
    audit_window: int = 0
    opening_window: int = 0
    audit_fee: int = 0
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
    seal: bytes
    log_cid: str
    model_cid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditsView:
    """Blind audits and appeals of a job."""

    count: int
    audit_deadline: int
    opening_deadline: int
    audit_opening_deadline: int
    verdict: int
    appeal_deadline: int
    lost: bool


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
    queued_games: int
    game_count: int
    attestations: int
    audits: AuditsView


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """One side's chess clock in one game."""

    remaining: int
    started_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """The search for the leftmost leaf in which two trees differ."""

    nodes: tuple[bytes, bytes]
    due: bytes
    index: int
    height: int
    turn: Side
    shown_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelView:
    """One level of a game, as far as it has come."""

    level: Level
    leaf_count: int
    roots: tuple[bytes, bytes]
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """The disputed operator, from its descriptor; all zero until a side has opened it."""

    descriptor_hash: bytes
    width: int
    elements: int
    chunks: int
    segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementView:
    """The one element that the challenger has named: what level PARTIAL is about, or the referee's question."""

    known: bool
    element: int
    claimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    """A game as `getGame` shows it."""

    job: int
    trainer: ChecksumAddress
    challenger: ChecksumAddress
    is_appeal: bool
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

    def left(self, side: Side, now: int) -> int:
        """Return seconds on a side's clock at the instant `now`."""
        clock = self.clocks[side]
        return max(0, clock.remaining - (now - clock.started_at if clock.started_at else 0))

    def party(self, side: Side) -> ChecksumAddress:
        return (self.trainer, self.challenger)[side]


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a class of a struct, whose name and fields a type checker cannot know."""

else:
    for _name, _components in _STRUCTS.items():
        if _name != "TrainingSpec" and _name not in globals():
            globals()[_name] = make_record(__name__, _name, [snake_case(item["name"]) for item in _components])
