"""Posted jobs, their games, and those of an account, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError
from tiebreak.contract.contract_calls import fee_share, place_of
from tiebreak.contract.enums import JobStatus, Phase, Side
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import GameView, JobView
from tiebreak.quantities import in_ether, in_time

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

UNDECIDED = (JobStatus.OPEN, JobStatus.SEALED, JobStatus.CLAIMED, JobStatus.APPEALABLE)
"""Statuses in which the contract holds the reward."""


def show_posted(game: VerificationGame, number: int, *, with_games: bool, as_json: bool) -> None:
    """Print one job, with its games if asked. Raises CommandError if there is no such job."""
    job = find_job(game, number)
    games = {one: game.game(one) for one in game.games_of(number)} if with_games else {}
    if as_json:
        shown = {"games": [plain_game(one, found) for one, found in games.items()]} if with_games else {}
        output.show_json(plain_job(number, job) | shown)
    else:
        now = game.node.now()
        for text in (job_text(number, job, now), *(game_text(one, found, now) for one, found in games.items())):
            output.show_lines(text)


def show_list(game: VerificationGame, wanted: JobStatus | None, as_json: bool) -> None:
    """Print all jobs, or those of one status."""
    jobs = {number: game.job(number) for number in range(1, game.job_count() + 1)}
    chosen = {number: job for number, job in jobs.items() if wanted is None or job.status is wanted}
    if as_json:
        output.show_json([plain_job(number, job) for number, job in chosen.items()])
    elif not chosen:
        output.show_line("There are no such jobs." if jobs else "There are no jobs yet.")
    else:
        names = ["job", "status", "steps", "reward", "trainer's bond", "challenger's bond", "games"]
        rows = []
        for number, job in chosen.items():
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
        "claim": None
        if not job.claim.committed_at
        else {
            "trainer": job.claim.trainer,
            "checkpoint_root": job.claim.checkpoint_root,
            "final_state_root": job.claim.final_state_root,
            "log_cid": job.claim.log_cid,
            "model_cid": job.claim.model_cid,
            "challenge_deadline": job.claim.challenge_deadline,
        },
        "attestations": job.attestations,
        "audits": None
        if not terms.attestations_needed
        else {
            "attestations_needed": terms.attestations_needed,
            "fee_wei": str(terms.audit_fee),
            "share_wei": str(fee_share(terms)),
            "bond_wei": str(terms.attestation_bond),
            "count": job.audits.count,
            "audit_deadline": job.audits.audit_deadline,
            "opening_deadline": job.audits.opening_deadline,
            "audit_opening_deadline": job.audits.audit_opening_deadline,
            "verdict": job.audits.verdict,
            "appeal_deadline": job.audits.appeal_deadline,
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
        "deadlines": {"trainer": game.deadlines[0], "challenger": game.deadlines[1], "referee": game.referee_deadline},
    }


def job_text(number: int, job: JobView, now: int) -> Text:
    """Return a job with its claim, for people."""
    terms, claim, audits = job.terms, job.claim, job.audits
    facts: dict[str, object] = {
        "status": job.status.name,
        "steps": f"{job.spec.training.steps}, a checkpoint every {job.spec.training.interval}",
        "reward": in_ether(terms.reward),
        "bonds": f"trainer {in_ether(terms.trainer_bond)}, challenger {in_ether(terms.challenger_bond)}",
        "customer": job.customer,
        "referee": job.spec.referee,
        "adjudicator": job.spec.adjudicator,
        "files": job.job_cid,
    }
    windows = {"commit by": job.commit_deadline}
    if claim.committed_at:
        windows = {"challenge by": claim.challenge_deadline}
        facts |= {
            "trainer": claim.trainer,
            "checkpoint root": claim.checkpoint_root,
            "final state root": claim.final_state_root,
            "log": claim.log_cid,
            "model": claim.model_cid,
            "attestations": job.attestations,
        }
    elif audits.audit_deadline:
        facts["trainer"] = claim.trainer
        windows = {"seal audits by": audits.audit_deadline, "open the claim by": audits.opening_deadline}
    if terms.attestations_needed:
        kind = "blind" if terms.opening_window else "open"
        facts["audits"] = (
            f"{kind}, {terms.attestations_needed} needed, fee {in_ether(terms.audit_fee)}, "
            f"bond {in_ether(terms.attestation_bond)}, {audits.count} there"
        )
    if audits.appeal_deadline:
        windows = {"appeal by": audits.appeal_deadline}
    if job.status in UNDECIDED:
        facts |= {name: f"{deadline(instant, now)}, by the chain's clock" for name, instant in windows.items()}
    return output.facts_text(f"Job {number}", facts)


def game_text(number: int, game: GameView, now: int) -> Text:
    """Return a game, for people."""
    facts: dict[str, object] = {"challenger": game.challenger, "phase": game.phase.name}
    if game.levels:
        facts["found at"] = f"{game.current.level.name} {game.current.index}"
    if game.outcome:
        facts["outcome"] = f"{game.outcome.name} ({game.reason.name})"
    else:
        facts["next move by"] = next_move(game, now)
        facts["clocks"] = ", ".join(f"{side.name.lower()} {in_time(game.left(side, now))} left" for side in Side)
    return output.facts_text(f"Game {number}", facts)


def next_move(game: GameView, now: int) -> str:
    """Return the parties that have to move in a game that is not over, with their deadlines, in words."""
    due = {"trainer": game.deadlines[0], "challenger": game.deadlines[1], "referee": game.referee_deadline}
    running = [f"{who}, {deadline(instant, now)}" for who, instant in due.items() if instant]
    return "; ".join(running) or f"nobody: {game.ahead} games start before it"


def deadline(instant: int, now: int) -> str:
    """Return a last instant, seen from now."""
    return f"in {in_time(instant - now)}" if instant >= now else f"{in_time(now - instant)} ago"


def show_account(game: VerificationGame, account: ChecksumAddress, facts: dict[str, object], as_json: bool) -> None:
    """Print the jobs in which an account plays a part, with their games, its balance and its credit. facts: of the
    contract."""
    found = {}
    for number in range(1, game.job_count() + 1):
        job = game.job(number)
        games = {one: game.game(one) for one in (game.games_of(number) if job.game_count else [])}
        if parts := _parts(game, account, number, job, games):
            found[number] = job, games, parts
    balance, credit = game.node.balance(account), game.credit_of(account)
    if as_json:
        money = {"account": account, "balance_wei": str(balance), "credit_wei": str(credit)}
        jobs = [
            plain_job(number, job) | {"parts": parts, "games": [plain_game(one, view) for one, view in games.items()]}
            for number, (job, games, parts) in found.items()
        ]
        output.show_json(facts | money | {"account_jobs": jobs})
        return
    output.show_facts(game.node.name, {name.replace("_", " "): value for name, value in facts.items()})
    withdrawn = ", which `withdraw` fetches" if credit else ""
    output.show_facts(f"Account {account}", {"balance": in_ether(balance), "credit": in_ether(credit) + withdrawn})
    if not found:
        output.show_line("This account takes part in no job yet.")
        return
    rows = [
        (number, job.status.name, ", ".join(parts), job.live_games, job.game_count)
        for number, (job, _, parts) in found.items()
    ]
    output.show_table("Jobs", ["job", "status", "as", "live games", "games"], rows)
    now = game.node.now()
    for _, games, parts in found.values():
        for number, view in games.items():
            is_ours = account in (view.trainer, view.challenger) or (view.phase is Phase.REFEREE and "referee" in parts)
            if not view.outcome and is_ours:
                output.show_lines(game_text(number, view, now))


def _parts(
    game: VerificationGame, account: ChecksumAddress, number: int, job: JobView, games: dict[int, GameView]
) -> list[str]:
    """Return the parts that an account plays in a job."""
    audits = game.audits_of(number) if job.audits.count else []
    plays = {
        "customer": job.customer == account,
        "trainer": job.claim.trainer == account,
        "auditor": place_of(audits, account) is not None
        or any(one.challenger == account for one in games.values())
        or (job.attestations > 0 and game.has_attested(number, account)),
        "referee": job.spec.referee == account,
    }
    return [part for part, does in plays.items() if does]
