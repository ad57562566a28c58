"""Posted jobs, their games, and the summary of an account on the contract (its jobs, its games, and its money in them),
for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from eth_typing import ChecksumAddress

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError
from tiebreak.contract.contract_calls import fee_at, fee_share, place_of
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Phase, Side
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import AuditView, GameView, JobView
from tiebreak.quantities import in_ether, in_time

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
    audit: AuditView | None
    place: int
    fee: int

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
    found = {one: game.game(one) for one in (game.games_of(number) if view.game_count else [])}
    games = tuple(
        GameSummary(number=one, view=its, side=next((side for side in Side if its.party(side) == account), None))
        for one, its in found.items()
    )
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
    fee = 0 if place is None else fee_at(view, audits, place)
    return JobSummary(number=number, view=view, games=games, parts=parts, audit=audit, place=place or 0, fee=fee)


def show_posted(game: VerificationGame, number: int, *, as_json: bool) -> None:
    """Print one job and its games. Raises CommandError if there is no such job."""
    job = find_job(game, number)
    plain, games = plain_job(number, job), [plain_game(one, game.game(one)) for one in game.games_of(number)]
    if as_json:
        output.show_json(plain | {"games": games})
    else:
        output.show_facts(f"Job {number}", output.in_words(plain))
        for one in games:
            output.show_facts(f"Game {one['game']}", output.in_words(one))


def show_list(game: VerificationGame, as_json: bool) -> None:
    """Print all jobs."""
    jobs = {number: game.job(number) for number in range(1, game.job_count() + 1)}
    if as_json:
        output.show_json([plain_job(number, job) for number, job in jobs.items()])
    elif not jobs:
        output.show_line("There are no jobs yet.")
    else:
        names = ["job", "status", "steps", "reward", "trainer's bond", "challenger's bond", "games"]
        rows = []
        for number, job in jobs.items():
            amounts = (job.terms.reward, job.terms.trainer_bond, job.terms.challenger_bond)
            rows.append((number, job.status.name, job.spec.training.steps, *map(in_ether, amounts), job.game_count))
        output.show_table("Jobs", names, rows)


def find_job(game: VerificationGame, number: int) -> JobView:
    """Return a job of the contract. Raises CommandError if there is none of that number."""
    count = game.job_count()
    if not 1 <= number <= count:
        raise CommandError(
            f"there is no job {number}: the contract has {count} so far, which `tiebreak job list` shows."
        )
    return game.job(number)


_OF_CLAIM = ("trainer", "checkpoint_root", "final_state_root", "log_cid", "model_cid", "challenge_deadline")
_OF_AUDITS = ("count", "audit_deadline", "opening_deadline", "audit_opening_deadline", "verdict", "appeal_deadline")
"""Fields of the contract's views that are told as they are."""


def plain_job(number: int, job: JobView) -> dict[str, object]:
    """Return a job as JSON."""
    terms = job.terms
    return {
        "job": number,
        "status": job.status.name,
        "customer": job.customer,
        "referee": job.spec.referee,
        "adjudicator": job.spec.adjudicator,
        "job_cid": job.job_cid,
        "spec_hash": job.spec_hash,
        "steps": job.spec.training.steps,
        "interval": job.spec.training.interval,
        "reward_wei": str(terms.reward),
        "trainer_bond_wei": str(terms.trainer_bond),
        "challenger_bond_wei": str(terms.challenger_bond),
        "clock_seconds": terms.clock_allowance,
        "concurrent_games": terms.concurrent_games,
        "commit_deadline": job.commit_deadline,
        "claim": None if not job.claim.committed_at else {name: getattr(job.claim, name) for name in _OF_CLAIM},
        "attestations": job.attestations,
        "audits": None
        if not terms.attestations_needed
        else {
            "attestations_needed": terms.attestations_needed,
            "fee_wei": str(terms.audit_fee),
            "share_wei": str(fee_share(terms)),
            "bond_wei": str(terms.attestation_bond),
            **{name: getattr(job.audits, name) for name in _OF_AUDITS},
        },
        "live_games": job.live_games,
        "queued_games": job.queued_games,
    }


def plain_game(number: int, game: GameView) -> dict[str, object]:
    """Return a game as JSON."""
    return {
        "game": number,
        "challenger": game.challenger,
        "phase": game.phase.name,
        "level": game.current.level.name,
        "index": game.current.index,
        "outcome": game.outcome.name,
        "reason": game.reason.name,
        "games_ahead": game.ahead,
        "deadlines": {"trainer": game.deadlines[0], "challenger": game.deadlines[1], "referee": game.referee_deadline},
    }


def deadline(instant: int, now: int) -> str:
    """Return a last instant, seen from now."""
    return f"in {in_time(instant - now)}" if instant >= now else f"{in_time(now - instant)} ago"


def show_account(summary: AccountSummary) -> None:
    """Print the account's money, and its jobs, a line each."""
    amounts = {name: value for name, value in plain_summary(summary).items() if name.endswith("_wei")}
    output.show_facts(f"Account {summary.account}", output.in_words(amounts))
    if not summary.jobs:
        output.show_line("This account takes part in no job yet.")
        return
    rows = [
        [
            job.number,
            job.view.status.name,
            ", ".join(job.parts),
            in_ether(job.bond) if job.bond else "",
            next_step(job, summary.now),
        ]
        for job in summary.jobs
    ]
    output.show_table("Jobs; `tiebreak status JOB` shows games", ["job", "status", "as", "bond", "next"], rows)


def next_step(job: JobSummary, now: int) -> str:
    """Return the next step of a job, in a clause; with the place of the account's audit, and its share of the fee."""
    step = _next_step(job, now)
    if job.audit is None or not job.collects:
        return step
    fee = in_ether(job.fee)
    return f"{step}, with {fee} of the audit fee" if job.due else f"{step}; audit {job.place + 1}, fee {fee}"


def _next_step(job: JobSummary, now: int) -> str:
    view = job.view
    for game in job.games:
        if game.deadline is not None:
            return f"your move in game {game.number}, {deadline(game.deadline, now)}"
        if game.bond and game.view.outcome is Outcome.VOID:
            return f"the bond of game {game.number} returns (releaseBond)"
    audits = view.audits
    match view.status:
        case JobStatus.OPEN:
            return _until("commit", view.commit_deadline, now, "over: nobody has committed (reclaim)")
        case JobStatus.SEALED if now <= audits.audit_deadline:
            return _until("seal audits", audits.audit_deadline, now)
        case JobStatus.SEALED:
            return _until("open the claim", audits.opening_deadline, now, "over: the claim was not opened (reclaim)")
        case JobStatus.CLAIMED:
            is_sealed = job.audit is not None and job.audit.status is AuditStatus.SEALED
            if is_sealed and now <= audits.audit_opening_deadline:
                return _until("open your audit", audits.audit_opening_deadline, now)
            final = f"final {deadline(view.claim.challenge_deadline, now)}, unless challenged"
            return _playing(view) or (final if now <= view.claim.challenge_deadline else "finalize")
        case JobStatus.APPEALABLE:
            return _playing(view) or _until("appeal", audits.appeal_deadline, now, "finalize")
    return "the bond of your audit returns (collect)" if job.collects else "over"


def _until(what: str, instant: int, now: int, later: str = "") -> str:
    """Return what can be done until an instant, or `later` behind it."""
    return f"{what}, {deadline(instant, now)}" if now <= instant else later


def _playing(view: JobView) -> str:
    if not view.live_games and not view.queued_games:
        return ""
    waiting = f", {view.queued_games} queued" if view.queued_games else ""
    return f"{view.live_games} {'game' if view.live_games == 1 else 'games'} live{waiting}"


def plain_summary(summary: AccountSummary) -> dict[str, object]:
    """Return the summary of an account as JSON."""
    return {
        "account": summary.account,
        "balance_wei": str(summary.balance),
        "credit_wei": str(summary.credit),
        "bonds_wei": str(summary.bonds),
        "escrowed_wei": str(summary.escrow),
        "audit_fees_due_wei": str(summary.due),
        "account_jobs": [
            plain_job(job.number, job.view)
            | {
                "parts": [str(part) for part in job.parts],
                "bond_wei": str(job.bond),
                "audit": None if job.audit is None else {"place": job.place, "fee_wei": str(job.fee)},
                "next": next_step(job, summary.now),
                "games": [plain_game(game.number, game.view) for game in job.games],
            }
            for job in summary.jobs
        ],
    }
