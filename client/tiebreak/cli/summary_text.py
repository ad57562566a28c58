"""Posted jobs, their games, and the summary of an account, for people and for programs."""

from __future__ import annotations

from tiebreak.cli import output
from tiebreak.cli.account_summary import AccountSummary, JobSummary
from tiebreak.cli.failures import CommandError
from tiebreak.contract.contract_calls import fee_share
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import GameView, JobView
from tiebreak.quantities import in_ether, in_time


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
            about = number, job.status.name, job.spec.training.steps, *map(in_ether, amounts), job.game_count
            rows.append(about)
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
