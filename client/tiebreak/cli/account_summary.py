"""The summary of an account on the contract: its jobs, its games, and its money in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from tiebreak.contract.contract_calls import fee_at, place_of
from tiebreak.contract.enums import AuditStatus, JobStatus, Phase, Side

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from tiebreak.contract.game import VerificationGame
    from tiebreak.contract.structs import AuditView, GameView, JobView

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

    @property
    def bond(self) -> int:
        """This side's bond that the game holds, if this side has begun it; a trainer's is held by the job."""
        began = Side.TRAINER if self.view.is_appeal else Side.CHALLENGER
        return self.view.challenger_bond if self.side is began and self.view.bond_held else 0

    @property
    def deadline(self) -> int | None:
        """Last instant for this side's move; None if it need not move."""
        return (self.view.deadlines[self.side] or None) if self.side is not None and not self.view.outcome else None


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
    """State of an account, and of the contract's jobs in which it plays a part. Amounts in wei; `now`: the chain's
    time."""

    account: ChecksumAddress
    balance: int
    credit: int
    now: int
    jobs: tuple[JobSummary, ...]

    @property
    def bonds(self) -> int:
        return sum(job.bond for job in self.jobs)

    @property
    def escrow(self) -> int:
        return sum(job.escrow for job in self.jobs)

    @property
    def due(self) -> int:
        return sum(job.due for job in self.jobs)


def read_summary(game: VerificationGame, account: ChecksumAddress) -> AccountSummary:
    """Return the summary of an account now. Raises the errors of ChainNode."""
    jobs = [_job(game, number, account) for number in range(1, game.job_count() + 1)]
    return AccountSummary(
        account=account,
        balance=game.node.balance(account),
        credit=game.credit_of(account),
        now=game.node.now(),
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
        yield GameSummary(number=number, view=found, side=side)
