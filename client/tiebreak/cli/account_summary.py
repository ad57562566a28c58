"""The summary of an account on the contract: its jobs, bonds, clocks and games, and what gas they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from roundlog.commitments import depth_of

from tiebreak.contract.contract_calls import fee_at, place_of
from tiebreak.contract.enums import AuditStatus, JobStatus, Level, Outcome, Phase, Side
from tiebreak.strategy import moves_in

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress
    from roundlog.spec import TrainingSpec

    from tiebreak.contract.game import VerificationGame
    from tiebreak.contract.structs import AuditView, GameView, JobView

ROUND_GAS = 110_000
OPENING_GAS = 170_000
PROOF_GAS = 2_000_000
"""Gas of a bisection, an opening and the largest proof, rounded up from what was measured (docs/protocol.md)."""

_CHUNK_DEPTH, _PARTIAL_DEPTH = 17, 6
"""Depths of the last two levels while they are not known, and few outputs and sums have more."""


_CLAIMED = (JobStatus.SEALED, JobStatus.CLAIMED, JobStatus.APPEALABLE)
UNDECIDED = (JobStatus.OPEN, *_CLAIMED)
"""Statuses in which the contract holds a trainer's bond, and those in which it holds the reward."""


class AccountRole(StrEnum):
    """The part that an account plays in a job."""

    CUSTOMER = "customer"
    TRAINER = "trainer"
    AUDITOR = "auditor"
    REFEREE = "referee"


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSummary:
    """A game from one party's side. Amounts in wei, instants in seconds since 1970 by the chain's clock."""

    number: int
    view: GameView
    side: Side | None
    """Side that the account plays; None for the referee."""
    gas_to_come: int
    """Gas that this side's moves may cost until the end, at most; 0 in a game that is over."""

    @property
    def live(self) -> bool:
        return not self.view.outcome

    @property
    def bond(self) -> int:
        """This side's bond that the game holds, if this side has begun it; a trainer's is held by the job."""
        began = Side.TRAINER if self.view.is_appeal else Side.CHALLENGER
        return self.view.challenger_bond if self.side is began and self.view.bond_held else 0

    @property
    def spent(self) -> int:
        """Wei that the gas of this side's moves has cost so far, as the contract meters it."""
        return 0 if self.side is None else self.view.spent[self.side]

    @property
    def deadline(self) -> int | None:
        """Last instant for this side's move; None if it need not move."""
        return (self.view.deadlines[self.side] or None) if self.side is not None and self.live else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job with the parts that an account plays in it, its games, and the account's own bonded audit. `place`: of that
    audit among all, counted from 0; `fee`: wei of the audit fee that it has as things stand."""

    number: int
    view: JobView
    parts: tuple[AccountRole, ...]
    games: tuple[GameSummary, ...]
    audit: AuditView | None = None
    place: int = 0
    fee: int = 0

    @property
    def bond(self) -> int:
        """Wei of this account that are held as bonds."""
        terms = self.view.terms
        trainers = terms.trainer_bond if self.view.status in _CLAIMED and AccountRole.TRAINER in self.parts else 0
        attested = terms.attestation_bond if self.collects else 0
        return trainers + attested + sum(game.bond for game in self.games)

    @property
    def collects(self) -> bool:
        """Whether the account's audit has a bond that `collect` may return, now or later."""
        if self.audit is None or self.audit.status not in (AuditStatus.SEALED, AuditStatus.ATTESTED):
            return False
        return self.audit.status is AuditStatus.SEALED or not self.view.audits.lost

    @property
    def due(self) -> int:
        """Wei of the audit fee that `collect` brings to this account now."""
        return self.fee if self.collects and self.view.status not in UNDECIDED else 0

    @property
    def escrow(self) -> int:
        """Wei of this account that are held as the reward and the audit fee."""
        held = self.view.status in UNDECIDED and AccountRole.CUSTOMER in self.parts
        return self.view.terms.reward + self.view.terms.audit_fee if held else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSummary:
    """State of an account, and of the contract's jobs in which it plays a part. `price`: wei per gas at present. `now`:
    the chain's time."""

    account: ChecksumAddress
    balance: int
    credit: int
    price: int
    now: int
    jobs: tuple[JobSummary, ...]

    @property
    def games(self) -> Iterator[GameSummary]:
        """The games in which this account is a party."""
        return (game for job in self.jobs for game in job.games if game.side is not None)

    @property
    def bonds(self) -> int:
        return sum(job.bond for job in self.jobs)

    @property
    def escrow(self) -> int:
        return sum(job.escrow for job in self.jobs)

    @property
    def due(self) -> int:
        return sum(job.due for job in self.jobs)

    @property
    def spent(self) -> int:
        return sum(game.spent for game in self.games)

    @property
    def to_come(self) -> int:
        """Wei that the gas of all live games may cost at most, at the present price."""
        return self.price * sum(game.gas_to_come for game in self.games)


def read_summary(game: VerificationGame, account: ChecksumAddress) -> AccountSummary:
    """Return the summary of an account now. Raises the errors of ChainNode."""
    jobs = [_job(game, number, account) for number in range(1, game.job_count() + 1)]
    head = game.node.head()
    return AccountSummary(
        account=account,
        balance=game.node.balance(account),
        credit=game.credit_of(account),
        price=head.base_fee + game.node.priority_fee(),
        now=max(head.timestamp, game.node.now()),
        jobs=tuple(job for job in jobs if job.parts),
    )


def _job(game: VerificationGame, number: int, account: ChecksumAddress) -> JobSummary:
    view = game.job(number)
    games = tuple(_games(game, number, view, account))
    audits = game.audits_of(number) if view.audits.count else []
    place = place_of(audits, account)
    audit = None if place is None else audits[place]
    plays = {
        AccountRole.CUSTOMER: view.customer == account,
        AccountRole.TRAINER: view.claim.trainer == account,
        AccountRole.AUDITOR: audit is not None
        or any(one.side is Side.CHALLENGER for one in games)
        or (view.attestations > 0 and game.has_attested(number, account)),
        AccountRole.REFEREE: view.spec.referee == account and any(one.view.phase is Phase.REFEREE for one in games),
    }
    parts = tuple(part for part, does in plays.items() if does)
    found = JobSummary(number=number, view=view, games=games, parts=parts, audit=audit)
    return found if place is None else replace(found, place=place, fee=fee_at(view, audits, place))


def _games(game: VerificationGame, job: int, view: JobView, account: ChecksumAddress) -> Iterator[GameSummary]:
    for number in game.games_of(job) if view.game_count else []:
        found = game.game(number)
        side = next((side for side in Side if found.party(side) == account), None)
        to_come = gas_to_come(view.spec.training, found) if side is not None else 0
        yield GameSummary(number=number, view=found, side=side, gas_to_come=to_come)


def gas_to_come(spec: TrainingSpec, game: GameView) -> int:
    """Return the gas that one side's moves may cost from here to the end of a game, at most: half of the bisections,
    an opening a level, and the proof."""
    if game.outcome is not Outcome.NONE:
        return 0
    depths = {
        Level.CHECKPOINT: depth_of(spec.intervals),
        Level.STEP: depth_of(spec.interval),
        Level.OPERATOR: 1 + depth_of(max(spec.operator_count, spec.state_count)),
        Level.CHUNK: depth_of(game.operator.chunks) if game.operator.chunks else _CHUNK_DEPTH,
        Level.PARTIAL: depth_of(game.operator.segments) if game.operator.segments else _PARTIAL_DEPTH,
    }
    level = game.current.level if game.levels else Level.CHECKPOINT
    later = [one for one in depths if one > level]
    rounds = moves_in(game.search.height) + sum(moves_in(depths[one]) for one in later)
    return (rounds + 1) // 2 * ROUND_GAS + len(later) * OPENING_GAS + PROOF_GAS
