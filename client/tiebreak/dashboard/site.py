"""The site: everything that the pages are made from, and the pages as data for the templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebreak.contract.contract_calls import fee_at, place_of
from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.events import Attested
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import AuditView, ClaimView, GameView, JobView
from tiebreak.dashboard import showing
from tiebreak.dashboard.account_list import read_accounts
from tiebreak.dashboard.background_work import BackgroundWork
from tiebreak.dashboard.chain_reader import PATIENCE, Busy, ContractPages, HeadMonitor, Missing, Moment, Readings, Sight
from tiebreak.dashboard.game_history import GameHistory, Receipts, first_block, read_history, verdict
from tiebreak.dashboard.local_files import LocalFiles, Replays
from tiebreak.dashboard.path import rungs
from tiebreak.rpc.chain_errors import ChainError

if TYPE_CHECKING:
    from tiebreak.store.store import Store

ATTESTATIONS = 50
"""Attestations of a job that are shown."""

_HISTORY_PATIENCE = 2.5


@dataclass(frozen=True, slots=True)
class Attestation:
    """An attestation as it is shown: its auditor, the number of its block, and what stands behind it."""

    auditor: str
    block: int
    facts: list[showing.Fact]


@dataclass(frozen=True, slots=True)
class SideClock:
    """One side's clock as it is shown. Seconds; `deadline` 0: it stands."""

    side: str
    account: str
    left: int
    total: int
    deadline: int
    on_move: bool
    spent: int
    """Wei that its moves have cost, as the contract counts."""

    @property
    def share(self) -> float:
        """Time that is left, in percent of the whole."""
        return min(100.0, max(0.0, 100 * self.left / self.total)) if self.total else 0.0


class Site:
    """All that is known, and how it is read. Used until `close`."""

    def __init__(
        self,
        contract: VerificationGame,
        *,
        files: Sequence[Path] = (),
        follow: Sequence[Path] = (),
        store: Store | None = None,
        explorer: str = "",
        every: float = 1.0,
        patience: float = PATIENCE,
    ) -> None:
        """files, follow: as of LocalFiles. explorer: URL to which `/tx/HASH` is added for links; empty: no links.
        every: seconds between two looks at the chain. patience: seconds that a page waits for the node."""
        self.contract = contract
        self.explorer = explorer.rstrip("/")
        self.head_monitor = HeadMonitor(contract.node, every=every)
        self.readings = Readings(patience=patience)
        self.source = ContractPages(contract)
        self.receipts = Receipts(contract)
        self.work = BackgroundWork(self.head_monitor.announce)
        self.local = LocalFiles(self.work, files=files, follow=follow, store=store)
        self.replays = Replays(self.local, self.work)

    def start(self) -> None:
        """Starts to look at the chain."""
        self.head_monitor.start()

    def close(self) -> None:
        """Lets all threads end; one that waits for the node ends with it."""
        self.head_monitor.close()
        self.readings.close()
        self.work.close()

    # Pages. All raise ChainError, Missing, Busy.

    def jobs(self, sight: Sight, page: int) -> dict[str, Any]:
        """The page of all jobs."""
        read = self.readings.get(("jobs", page), _moment(sight), lambda: self.source.jobs(page, sight.number))
        return {
            "page": read.value,
            "trouble": read.trouble,
            "rows": [self._job_row(number, job, sight) for number, job in read.value.jobs],
            "live": [self._game_row(number, game, sight) for number, game in read.value.live],
        }

    def job(self, sight: Sight, number: int, page: int) -> dict[str, Any]:
        """The page of one job."""
        read = self.readings.get(
            ("job", number, page), _moment(sight), lambda: self.source.job(number, page, sight.number)
        )
        job = read.value.job
        attested, note = self._attestations(sight, number, job)
        return {
            "number": number,
            "job": job,
            "read": read.value,
            "trouble": read.trouble,
            "status": showing.status_words(job.status),
            "tone": showing.tone(job.status),
            "money": [one for one in showing.facts(job.terms) if one.kind == "money"],
            "windows": self._open_windows(job),
            "terms": [one for one in showing.facts(job.terms) if one.kind != "money"],
            "spec": [
                *showing.facts(job.spec.training),
                showing.fact("referee", job.spec.referee),
                showing.fact("adjudicator", job.spec.adjudicator),
                showing.fact("spec_hash", job.spec_hash),
            ],
            "claim": self._claim(job.claim),
            "files": showing.content("files", job.job_cid),
            "agrees": self.replays.claim(job),
            "own_trouble": self.replays.trouble(job),
            "attested": attested,
            "attested_note": note,
            "games": [self._game_row(one, game, sight) for one, game in read.value.games],
            "curve": self.local.curve(job),
        }

    def game(self, sight: Sight, number: int) -> dict[str, Any]:
        """The page of one game."""
        moment = _moment(sight)
        read = self.readings.get(("game", number), moment, lambda: self.source.game(number, sight.number))
        game, job = read.value
        history, note = self._history(sight, number, job)
        names = self.local.names(job)
        return {
            "number": number,
            "game": game,
            "job": job,
            "trouble": read.trouble,
            "headline": self._headline(game, sight),
            "rungs": rungs(game, job, names),
            "clocks": [self._clock(game, job, side, sight) for side in Side],
            "referee": job.spec.referee if game.phase is Phase.REFEREE else "",
            "verdict": verdict(game, job, history, names),
            "history": history,
            "history_note": note,
            "own": self.replays.game(game, job),
            "tone": {1: "good", 2: "bad"}.get(game.outcome, "busy" if not game.outcome else "quiet"),
            "is_appeal": getattr(game, "is_appeal", False),
            "stage": "over" if game.outcome else "queued" if game.phase is Phase.QUEUED else "being played",
        }

    def accounts(self, sight: Sight) -> dict[str, Any]:
        """The page of all accounts."""
        read = self.readings.get(
            "accounts",
            _moment(sight),
            lambda: read_accounts(self.contract, self.source, self.receipts, sight.number),
        )
        return {"page": read.value, "trouble": read.trouble}

    # Parts of pages.

    def _history(self, sight: Sight, number: int, job: JobView) -> tuple[GameHistory, str]:
        """The moves of a game, and a note where they are not all there yet."""
        try:
            read = self.readings.get(
                ("history", number),
                _moment(sight),
                lambda: read_history(self.contract, self.receipts, number, job, sight.number),
                patience=min(_HISTORY_PATIENCE, self.readings.patience),
            )
        except Busy:
            return GameHistory([], []), "The moves are still being read from the chain."
        except ChainError as error:
            return GameHistory([], []), f"The moves cannot be read: {showing.bounded(str(error), 300)}"
        return read.value, read.trouble

    def _attestations(self, sight: Sight, number: int, job: JobView) -> tuple[list[Attestation], str]:
        if not job.attestations:
            return [], ""

        def read() -> tuple[list[Attested], list[AuditView]]:
            start = first_block(self.contract, job, sight.number)
            found = self.contract.events(job=number, from_block=start, to_block=sight.number)
            audits = self.contract.audits_of(number, block=sight.number) if job.terms.attestations_needed else []
            return [event for event in found if isinstance(event, Attested)], audits

        try:
            shown = self.readings.get(
                ("attested", number),
                _moment(sight),
                read,
                patience=min(_HISTORY_PATIENCE, self.readings.patience),
            )
        except Busy:
            return [], "Who has attested is still being read from the chain."
        except ChainError as error:
            return [], f"Who has attested cannot be read: {showing.bounded(str(error), 300)}"
        events, audits = shown.value
        left = len(events) - ATTESTATIONS
        attested = [self._attestation(event, job, audits) for event in events[:ATTESTATIONS]]
        return attested, f"and {left:,} more" if left > 0 else shown.trouble

    @staticmethod
    def _attestation(event: Attested, job: JobView, audits: Sequence[AuditView]) -> Attestation:
        """Its bond, its place with its share of the fee, and the addresses by which its auditor serves log and model,
        where the job asks for them."""
        given = [(name, getattr(event, f"{name}_cid")) for name in ("log", "model")]
        facts = [showing.content(name, cid) for name, cid in given if cid]
        if job.terms.attestations_needed:
            facts.insert(0, showing.fact("attestation_bond", job.terms.attestation_bond, words="bond"))
        if (place := place_of(audits, event.auditor)) is not None:
            facts.insert(0, showing.fact("audit_fee", fee_at(job, audits, place), words="share of the fee"))
            facts.insert(0, showing.fact("place", place + 1, words="place"))
        return Attestation(event.auditor, event.block, facts)

    @staticmethod
    def _claim(claim: ClaimView) -> list[showing.Fact]:
        if not claim.committed_at:
            return []
        cids = [showing.content(name, getattr(claim, f"{name}_cid")) for name in ("log", "model")]
        plain = showing.facts(claim, "log_cid", "model_cid", "challenge_deadline", "trainer")
        return [showing.fact("trainer", claim.trainer, words="trainer"), *plain, *cids]

    def _open_windows(self, job: JobView) -> list[tuple[str, int]]:
        """The windows of a job that is not settled: nobody can do anything any more in one that is."""
        return [] if showing.is_settled(job.status) else self._windows(job)

    @staticmethod
    def _windows(job: JobView) -> list[tuple[str, int]]:
        """Actions and their deadlines: all that the contract shows, but that of a claim that was made."""
        records = [job, *(part for one in fields(job) if is_dataclass(part := getattr(job, one.name)))]
        ends = {one.name: getattr(record, one.name) for record in records for one in fields(record)}
        if job.claim.committed_at:
            ends.pop("commit_deadline")
        return [
            (showing.WINDOWS.get(name, showing.field_words(name)), end)
            for name, end in ends.items()
            if name.endswith("_deadline") and end
        ]

    def _job_row(self, number: int, job: JobView, sight: Sight) -> dict[str, Any]:
        windows = self._open_windows(job)
        # The one that ends next; if all have ended, the last one.
        ahead = [one for one in windows if one[1] >= sight.now()]
        chosen = min(ahead, key=lambda one: one[1]) if ahead else max(windows, key=lambda one: one[1], default=("", 0))
        return {
            "number": number,
            "job": job,
            "name": showing.name_words(job.status),
            "tone": showing.tone(job.status),
            "what": chosen[0],
            "until": chosen[1],
        }

    def _game_row(self, number: int, game: GameView, sight: Sight) -> dict[str, Any]:
        return {
            "number": number,
            "game": game,
            "at": showing.LEVELS[game.current.level][0],
            "headline": self._headline(game, sight),
            "deadline": _deadline(game),
            "tone": {1: "good", 2: "bad"}.get(game.outcome, "busy" if not game.outcome else "quiet"),
        }

    @staticmethod
    def _headline(game: GameView, sight: Sight) -> str:
        """The state of a game in one sentence."""
        if game.outcome:
            why = showing.ENDS.get(game.reason, showing.name_words(game.reason))
            return f"{showing.OUTCOMES.get(game.outcome, showing.name_words(game.outcome))} {why}."
        if game.phase is Phase.QUEUED:
            return f"Waits for its turn: {game.ahead:,} games start before it. No clock runs."
        due = showing.due_words(game.phase, game.current.level)
        if game.phase is Phase.REFEREE:
            return f"The referee is asked to {due}."
        running = [side for side in Side if game.deadlines[side]]
        if not running:
            return f"Under way: {showing.name_words(game.phase)}."
        late = [side for side in running if sight.now() > game.deadlines[side]]
        if len(late) == len(running):
            who = " and the ".join(showing.SIDES[side] for side in late)
            return f"Time is out for the {who}: anybody may end the game."
        if len(running) == 2:
            return f"Both sides have to {due.replace('its', 'their')}."
        return f"The {showing.SIDES[running[0]]} is on move: it has to {due}."

    @staticmethod
    def _clock(game: GameView, job: JobView, side: Side, sight: Sight) -> SideClock:
        deadline = 0 if game.outcome else game.deadlines[side]
        left = max(0, deadline - sight.now()) if deadline else game.clocks[side].remaining
        return SideClock(
            side=showing.SIDES[side],
            account=game.party(side),
            left=left,
            total=max(job.terms.clock_allowance, left),
            deadline=deadline,
            on_move=bool(deadline),
            spent=game.spent[side],
        )


def _moment(sight: Sight) -> Moment:
    """The block that a reading is as of. Raises Busy while none is known."""
    if not sight.timestamp:
        raise Busy(sight.trouble or "The node has not answered yet.")
    return sight.number, sight.hash


def _deadline(game: GameView) -> int:
    """The instant at which the next clock of a game is out; 0 if none runs."""
    if game.outcome:
        return 0
    running = [one for one in (*game.deadlines, game.referee_deadline if game.phase is Phase.REFEREE else 0) if one]
    return min(running, default=0)


__all__ = ["Busy", "Missing", "Site"]
