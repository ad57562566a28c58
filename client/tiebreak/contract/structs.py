"""Structs of the contract, with its fields in its order; a test compares them with the ABI. Views.sol, Types.sol,
Bisection.sol, Clock.sol and Moves.sol in game, Openings.sol and IAdjudicator.sol in adjudication, all in contracts/src,
say what each field means.

Structs that are not written out here, the parts of views, the arguments of moves and the answer to a batched call, are
frozen dataclasses, too, made of the ABI when this module is loaded:

    from tiebreak.contract.structs import ClaimView, Descent, NextRoot

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

from tiebreak.contract.enums import JobStatus, Outcome, Phase, Reason, Side
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
class JobView:
    """A job as `getJob` shows it. `claim`: ClaimView, zero while the job waits for one, but for the trainer while it is
    sealed. `audits`: AuditsView. Numbers of live and queued games are zero again once the claim is rejected."""

    status: JobStatus
    customer: ChecksumAddress
    spec: PostedSpec
    spec_hash: bytes
    terms: Terms
    job_cid: str
    posted_at: int
    commit_deadline: int
    claim: Any
    live_games: int
    queued_games: int
    game_count: int
    attestations: int
    audits: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    """A game as `getGame` shows it, with a Clock of each side, the Bisection, a LevelView of each level that was
    reached, the OperatorView (zero until a side has opened the operator), and the ElementView of the number that the
    challenger has named."""

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
    clocks: tuple[Any, Any]
    deadlines: tuple[int, int]
    spent: tuple[int, int]
    referee_deadline: int
    started_at: int
    agreed: bytes
    search: Any
    levels: tuple[Any, ...]
    operator: Any
    disputed: Any

    @property
    def current(self) -> Any:
        """The LevelView of the deepest level reached."""
        return self.levels[-1]

    def left(self, side: Side, now: int) -> int:
        """Return seconds on a side's clock at the instant `now`."""
        clock = self.clocks[side]
        return max(0, int(clock.remaining) - (now - clock.started_at if clock.started_at else 0))

    def party(self, side: Side) -> ChecksumAddress:
        return (self.trainer, self.challenger)[side]


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a class of a struct, whose name and fields a type checker cannot know."""

else:
    for _name, _components in _STRUCTS.items():
        if _name != "TrainingSpec" and _name not in globals():
            globals()[_name] = make_record(__name__, _name, [snake_case(item["name"]) for item in _components])
