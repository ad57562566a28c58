"""The summary of an account, or of all jobs, as text: for `status` and, on a full screen with clocks that run, until
Ctrl-C, for `status --watch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tiebreak.cli import output
from tiebreak.cli.account_summary import AccountRole, AccountSummary, GameSummary, JobSummary, Reader
from tiebreak.cli.views import deadline, job_text, next_move, plain_game, plain_job
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Side
from tiebreak.contract.structs import JobView
from tiebreak.quantities import in_ether, in_time, in_utc
from tiebreak.rpc.chain_errors import ChainError, printable

_BAR = 20
_NAMES = {Side.TRAINER: "trainer", Side.CHALLENGER: "challenger"}


def account_text(summary: AccountSummary) -> Text:
    """The account's money."""
    gwei = f"{summary.price / 10**9:.3g} gwei"
    return output.facts_text(
        f"Account {summary.account}",
        {
            "balance": in_ether(summary.balance),
            "credit": in_ether(summary.credit) + (", which `withdraw` fetches" if summary.credit else ""),
            "bonds out": in_ether(summary.bonds),
            "rewards escrowed": in_ether(summary.escrow),
            "audit fees due": in_ether(summary.due),
            "gas so far": f"{in_ether(summary.spent)} in games, as the contract meters it",
            "gas to come": f"{in_ether(summary.to_come)} at most, in games at {gwei}",
        },
    )


def jobs_table(summary: AccountSummary) -> RenderableType:
    """The jobs, a line each; of a person who only looks on, all of them."""
    mine = summary.account is not None
    if not summary.jobs:
        return Text("This account takes part in no job yet." if mine else "There are no jobs yet.")
    table = Table(box=None, pad_edge=False, header_style="dim", width=output.COLUMNS)
    table.add_column("job", justify="right")
    table.add_column("status")
    for name in ("as", "bond") if mine else ("reward", "bond"):
        table.add_column(name)
    table.add_column("next", ratio=1)
    for job in summary.jobs:
        terms = job.view.terms
        cells = (
            (", ".join(job.parts), in_ether(job.bond) if job.bond else "")
            if mine
            else (in_ether(terms.reward), in_ether(terms.trainer_bond))
        )
        table.add_row(str(job.number), job.view.status.name, *cells, next_step(job, summary.now))
    return table


def next_step(job: JobSummary, now: int) -> str:
    """The next step of a job, in a clause; with the place of the account's audit, and its share of the fee."""
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
    if view.status is JobStatus.OPEN:
        late = now > view.commit_deadline
        return "over: nobody has committed (reclaim)" if late else _by("commit", view.commit_deadline, now)
    if view.status is JobStatus.SEALED:
        return _sealed(view, now)
    if view.status is JobStatus.CLAIMED:
        return _claimed(job, now)
    if view.status is JobStatus.APPEALABLE:
        late = now > view.audits.appeal_deadline
        return _playing(view) or ("finalize" if late else _by("appeal", view.audits.appeal_deadline, now))
    return "the bond of your audit returns (collect)" if job.collects else "over"


def _sealed(view: JobView, now: int) -> str:
    if now <= view.audits.audit_deadline:
        return _by("seal audits", view.audits.audit_deadline, now)
    late = now > view.audits.opening_deadline
    return (
        "over: the claim was not opened (reclaim)" if late else _by("open the claim", view.audits.opening_deadline, now)
    )


def _claimed(job: JobSummary, now: int) -> str:
    view = job.view
    if job.audit is not None and job.audit.status is AuditStatus.SEALED and now <= view.audits.audit_opening_deadline:
        return _by("open your audit", view.audits.audit_opening_deadline, now)
    if playing := _playing(view):
        return playing
    late = now > view.claim.challenge_deadline
    return "finalize" if late else f"final {deadline(view.claim.challenge_deadline, now)}, unless challenged"


def _playing(view: JobView) -> str:
    if not view.live_games and not view.queued_games:
        return ""
    waiting = f", {view.queued_games} queued" if view.queued_games else ""
    return f"{view.live_games} {'game' if view.live_games == 1 else 'games'} live{waiting}"


def _by(what: str, instant: int, now: int) -> str:
    return f"{what}, {deadline(instant, now)}"


def games_text(summary: AccountSummary) -> Iterator[RenderableType]:
    """The live games of the summary, with both clocks."""
    for job in summary.jobs:
        for game in job.games:
            if game.live and (game.side is not None or summary.account is None or AccountRole.REFEREE in job.parts):
                yield _game(job, game, summary)


def _game(job: JobSummary, game: GameSummary, summary: AccountSummary) -> RenderableType:
    view, now = game.view, summary.now
    place = f"{view.phase.name} at {view.current.level.name} {view.current.index}" if view.levels else view.phase.name
    facts: dict[str, object] = {"next move by": next_move(view, now)}
    if game.side is not None:
        facts |= {
            "you are": _NAMES[game.side],
            "gas so far": in_ether(game.spent),
            "gas to come": f"{in_ether(game.gas_to_come * summary.price)} at most",
        }
    clocks = Table.grid(padding=(0, 2))
    for side, name in _NAMES.items():
        left = view.left(side, now)
        runs = bool(view.clocks[side].started_at)
        bar = ProgressBar(
            total=max(1, job.view.terms.clock_allowance),
            completed=left,
            width=_BAR,
            complete_style="bold red" if 2 * left < job.view.terms.clock_allowance else "green",
            finished_style="green",
        )
        clocks.add_row(f"  {name:<12}", bar, f"{in_time(left)}{', running' if runs else ''}")
    return Group(output.facts_text(f"Game {game.number} of job {job.number}: {place}", facts), clocks)


def plain_summary(summary: AccountSummary) -> dict[str, object]:
    """The summary of an account as JSON."""
    return {
        "account": summary.account,
        "balance_wei": str(summary.balance),
        "credit_wei": str(summary.credit),
        "bonds_wei": str(summary.bonds),
        "escrowed_wei": str(summary.escrow),
        "audit_fees_due_wei": str(summary.due),
        "gas_so_far_wei": str(summary.spent),
        "gas_to_come_wei": str(summary.to_come),
        "account_jobs": [
            plain_job(job.number, job.view)
            | {
                "parts": [str(part) for part in job.parts],
                "bond_wei": str(job.bond),
                "audit": None if job.audit is None else {"place": job.place, "fee_wei": str(job.fee)},
                "next": next_step(job, summary.now),
                "games": [
                    plain_game(game.number, game.view)
                    | {"gas_so_far_wei": str(game.spent), "gas_to_come": game.gas_to_come}
                    for game in job.games
                ],
            }
            for job in summary.jobs
        ],
    }


_FRAME = 0.25
"""Seconds between two drawings; clocks are shown to the second."""


_MOST_WORDS = 300
"""Characters of an error: a longer one would push the clocks off the screen."""


class LiveScreen:
    """The page that is drawn: the newest summary, moved on by the time since it was read, or why it could not be."""

    def __init__(self, name: str, contract: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """name: of the node. clock: seconds."""
        self._title = f"{name}  {contract}"
        self._clock = clock
        self._summary: AccountSummary | None = None
        self._read_at = 0.0
        self._outage = ""

    def show(self, summary: AccountSummary) -> None:
        """Takes a summary that was just read."""
        self._summary, self._read_at, self._outage = summary, self._clock(), ""

    def fail(self, error: ChainError) -> None:
        """Takes an error; the last summary stays, with its age."""
        self._outage = printable(str(error))[:_MOST_WORDS]

    def __rich__(self) -> RenderableType:
        if self._summary is None:
            return Group(Text(printable(self._title), style="bold"), Text(self._outage or "reading ..."))
        age = int(self._clock() - self._read_at)
        # A screen has few lines: what is over stands at the end.
        jobs = tuple(sorted(self._summary.jobs, key=lambda job: not job.live))
        summary = replace(self._summary, now=self._summary.now + age, jobs=jobs)
        parts: list[RenderableType] = [
            Text(printable(self._title), style="bold"),
            Text(f"block {summary.block:,}  {in_utc(summary.now)} by the chain's clock  Ctrl-C ends", style="dim"),
        ]
        if self._outage:
            parts.append(Text(f"{self._outage} What follows was read {age} seconds ago.", style="yellow"))
        parts.append(Text(""))
        if summary.account is not None:
            parts += [account_text(summary), Text("")]
        if len(summary.jobs) == 1 and summary.account is None:
            parts += [job_text(summary.jobs[0].number, summary.jobs[0].view, summary.now), Text("")]
        parts.append(jobs_table(summary))
        for game in games_text(summary):
            parts += [Text(""), game]
        return Group(*parts)


def watch(reader: Reader, screen: LiveScreen, console: Console, poll: float) -> None:
    """Draws until it is interrupted; reads every `poll` seconds, and goes on through outages of the chain."""
    with Live(screen, console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        due = 0.0
        try:
            while True:
                if time.monotonic() >= due:
                    try:
                        screen.show(reader.read())
                    except ChainError as error:
                        screen.fail(error)
                    due = time.monotonic() + poll
                live.refresh()
                time.sleep(_FRAME)
        except KeyboardInterrupt:
            return
