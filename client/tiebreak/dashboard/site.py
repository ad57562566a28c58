"""The site: everything that the pages are made from, and the pages as data for the templates. Names of operators and
tensors come from files of jobs on this machine, under fixed names only, in directories that the user has named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tiebreak.contract.contract_calls import fee_at, place_of
from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.events import Attested
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import ANYONE, AuditView, ClaimView, GameView, JobView
from tiebreak.dashboard import showing
from tiebreak.dashboard.chain_reader import (
    PAGE,
    PATIENCE,
    Busy,
    ContractPages,
    HeadMonitor,
    HeadSnapshot,
    Moment,
    Readings,
)
from tiebreak.dashboard.game_history import GameHistory, Receipts, first_block, read_history, verdict
from tiebreak.dashboard.path import draw_levels
from tiebreak.dashboard.showing import SETTLED, UNKNOWN, Names
from tiebreak.rpc.chain_errors import ChainError

NEWEST = 100
"""Newest jobs, and newest games, from which accounts are gathered."""

MOST_ACCOUNTS = 60


@dataclass(slots=True)
class Account:
    """One account. Amounts in wei; `balance`: outside of the contract. `roles`: how often it plays each."""

    address: str
    roles: dict[str, int] = field(default_factory=dict)
    escrowed: int = 0
    bonds: int = 0
    credit: int = 0
    balance: int = 0


def read_accounts(source: ContractPages, block: int) -> dict[str, Any]:
    """Return all accounts of the newest jobs and games as of a block, but for those left out, and the wei of lost bonds
    (`burnt`). Raises ChainError."""
    jobs, games = source.newest(NEWEST, block)
    found: dict[str, Account] = {}

    def plays(address: str, role: str, bond: int = 0) -> Account:
        one = found.setdefault(address, Account(address))
        one.roles[role] = one.roles.get(role, 0) + 1
        one.bonds += bond
        return one

    for job in jobs.values():
        is_live = job.status.name not in SETTLED
        plays(job.customer, "customer").escrowed += is_live * _escrow(job)
        plays(job.spec.referee, "referee")
        if job.claim.trainer != ANYONE:
            plays(job.claim.trainer, "trainer", is_live * job.terms.trainer_bond)
    for game in games.values():
        plays(game.challenger, "challenger", game.bond_held * game.challenger_bond)
    audited = [number for number, job in jobs.items() if job.terms.attestations_needed][:PAGE]
    for number, audits in source.audits(audited, block).items():
        job = jobs[number]
        for audit in audits:
            plays(audit.auditor, "auditor", (job.status.name not in SETTLED) * job.terms.attestation_bond)
    chosen = list(found.values())[:MOST_ACCOUNTS]
    credits = source.credits([one.address for one in chosen], block)
    for one in chosen:
        one.credit = credits.get(one.address, 0)
        one.balance = source.contract.node.balance(one.address)  # type: ignore[arg-type]
    counts = {"left_out": len(found) - len(chosen), "jobs": len(jobs), "games": len(games)}
    return counts | {"accounts": chosen, "burnt": source.burnt(block)}


def _escrow(job: JobView) -> int:
    """Return the wei that a live job holds of its customer: the reward, and all fees."""
    names = [one.name for one in fields(job.terms) if one.name == "reward" or one.name.endswith("_fee")]
    return sum(getattr(job.terms, name) for name in names)


_MOST_ENTRIES = 10_000


def directories_of(files: Sequence[Path], job: JobView) -> tuple[Path, ...]:
    """Return the directories that could be a job's files. files: directories of jobs, or of roles."""
    found = []
    for directory in files:
        found += [room / "job" for room in _rooms(directory, job)]
        found += [directory, directory / "job", directory.parent / "job"]
    return tuple(path for path in found if (path / "program.json").is_file())


def _rooms(directory: Path, job: JobView) -> list[Path]:
    """Return a role's rooms of jobs with this spec, which are named as by `RoleContext.room`. The same spec has the
    same run, whichever job it was posted as."""
    ending = f"-{job.spec_hash.hex()[:16]}"
    try:
        names = [entry.name for entry in islice(os.scandir(directory), _MOST_ENTRIES)]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if name.startswith("job-") and name.endswith(ending)]


def names_in(rooms: Sequence[Path], root: bytes) -> Names:
    """Return the names in the files of a job, once they are shown to be the program that the chain commits to."""
    from roundlog.training import read_program

    for room in rooms:
        try:
            program, spec = read_program(room)
        except Exception:  # a damaged file, or another program's: the page says less
            continue
        if spec.program_root == root:
            return Names([(node.op, node.source) for node in program.nodes], list(program.state_names))
    return UNKNOWN


ATTESTATIONS = 50
"""Attestations of a job that are shown."""

_HISTORY_PATIENCE = 2.5
"""Seconds that a page waits for what may be searched for in many blocks."""


class Site:
    """All that is known, and how it is read. Used until `close`."""

    def __init__(
        self,
        contract: VerificationGame,
        *,
        files: Sequence[Path] = (),
        explorer: str = "",
        every: float = 1.0,
        patience: float = PATIENCE,
    ) -> None:
        """files: directories of jobs, or of roles. explorer: URL to which `/tx/HASH` is added for links; empty: none.
        every: seconds between two looks at the chain. patience: seconds that a page waits for the node."""
        self.contract = contract
        self.explorer = explorer.rstrip("/")
        self.head_monitor = HeadMonitor(contract.node, every=every)
        self.readings = Readings(patience=patience)
        self.source = ContractPages(contract)
        self.receipts = Receipts(contract)
        self.files = files

    def start(self) -> None:
        """Start to look at the chain."""
        self.head_monitor.start()

    def close(self) -> None:
        """Let all threads end; one that waits for the node ends with it."""
        self.head_monitor.close()
        self.readings.close()

    # Pages. All raise ChainError, Missing, Busy.

    def jobs(self, head: HeadSnapshot, page: int) -> dict[str, Any]:
        """Return the page of all jobs."""
        read, trouble = self.readings.get(("jobs", page), _moment(head), lambda: self.source.jobs(page, head.number))
        return {
            "page": read,
            "trouble": trouble,
            "rows": [_job_row(number, job, head) for number, job in read.jobs],
            "live": [_game_row(number, game, head) for number, game in read.live],
        }

    def job(self, head: HeadSnapshot, number: int, page: int) -> dict[str, Any]:
        """Return the page of one job."""
        key = "job", number, page
        read, trouble = self.readings.get(key, _moment(head), lambda: self.source.job(number, page, head.number))
        job, games, page, pages = read
        spec = job.spec
        attested, note = self._attestations(head, number, job)
        terms = showing.facts(job.terms)
        return {
            "number": number,
            "job": job,
            "page": page,
            "pages": pages,
            "trouble": trouble,
            "status": showing.STATUSES[job.status.name],
            "tone": showing.tone(job.status),
            "money": [one for one in terms if one.kind == "money"],
            "windows": _open_windows(job),
            "terms": [one for one in terms if one.kind != "money"],
            "spec": [
                *showing.facts(spec.training),
                showing.fact("referee", spec.referee),
                showing.fact("adjudicator", spec.adjudicator),
                showing.fact("spec_hash", job.spec_hash),
            ],
            "claim": _claim(job.claim),
            "files": showing.content("files", job.job_cid),
            "attested": attested,
            "attested_note": note,
            "games": [_game_row(one, game, head) for one, game in games],
        }

    def game(self, head: HeadSnapshot, number: int) -> dict[str, Any]:
        """Return the page of one game."""
        key = "game", number
        (game, job), trouble = self.readings.get(key, _moment(head), lambda: self.source.game(number, head.number))
        names, root, rooms = UNKNOWN, job.spec.training.program_root, directories_of(self.files, job)
        with suppress(Busy):
            names = self.readings.get(("names", root, rooms), (0, None), partial(names_in, rooms, root))[0]
        history, note = self._searched(
            "moves",
            ("history", number),
            head,
            lambda: read_history(self.contract, self.receipts, number, job, head.number),
        )
        history = history or GameHistory([], [])
        return {
            "number": number,
            "game": game,
            "job": job,
            "trouble": trouble,
            "headline": _headline(game, head),
            "levels": draw_levels(game, job, names),
            "clocks": [_clock(game, job, side, head) for side in Side],
            "referee": job.spec.referee if game.phase is Phase.REFEREE else "",
            "verdict": verdict(game, job, history, names),
            "history": history,
            "history_note": note,
            "tone": showing.tone(game.outcome),
            "stage": "over" if game.outcome else "queued" if game.phase is Phase.QUEUED else "being played",
        }

    def accounts(self, head: HeadSnapshot) -> dict[str, Any]:
        """Return the page of all accounts."""
        page, trouble = self.readings.get("accounts", _moment(head), lambda: read_accounts(self.source, head.number))
        return {"page": page, "trouble": trouble}

    # Parts of pages.

    def _searched(self, what: str, key: Any, head: HeadSnapshot, read: Any) -> tuple[Any, str]:
        """Return what is searched for in the chain's events, and a note where it is not all there yet."""
        try:
            patience = min(_HISTORY_PATIENCE, self.readings.patience)
            return self.readings.get(key, _moment(head), read, patience=patience)
        except Busy:
            return None, f"The {what} are still being read from the chain."
        except ChainError as error:
            return None, f"The {what} cannot be read: {showing.bounded(str(error), 300)}"

    def _attestations(
        self, head: HeadSnapshot, number: int, job: JobView
    ) -> tuple[list[tuple[Attested, list[showing.Fact]]], str]:
        """Return attestations, each with its facts, and a note where they are not all."""
        if not job.attestations:
            return [], ""

        def read() -> tuple[list[Attested], list[AuditView]]:
            start = first_block(self.contract, job, head.number)
            found = self.contract.events(job=number, from_block=start, to_block=head.number)
            audits = self.contract.audits_of(number, block=head.number) if job.terms.attestations_needed else []
            return [event for event in found if isinstance(event, Attested)], audits

        found, note = self._searched("attestations", ("attested", number), head, read)
        events, audits = found or ([], [])
        left = len(events) - ATTESTATIONS
        shown = [(event, _attested(event, job, audits)) for event in events[:ATTESTATIONS]]
        return shown, f"and {left:,} more" if left > 0 else note


def _attested(event: Attested, job: JobView, audits: Sequence[AuditView]) -> list[showing.Fact]:
    """Return an attestation's place, its share of the fee, its bond, and the addresses by which its auditor serves log
    and model, where the job asks for them."""
    facts = []
    if (place := place_of(audits, event.auditor)) is not None:
        facts.append(showing.fact("place", place + 1))
        facts.append(showing.fact("audit_fee", fee_at(job, audits, place), words="share of the fee"))
    if job.terms.attestations_needed:
        facts.append(showing.fact("attestation_bond", job.terms.attestation_bond, words="bond"))
    return [*facts, *(one for one in _served(event) if one.text)]


def _served(record: Attested | ClaimView) -> list[showing.Fact]:
    """Return the addresses of a run's log and model."""
    return [showing.content(name, getattr(record, f"{name}_cid")) for name in ("log", "model")]


def _claim(claim: ClaimView) -> list[showing.Fact]:
    if not claim.committed_at:
        return []
    plain = showing.facts(claim, "log_cid", "model_cid", "challenge_deadline", "trainer")
    return [showing.fact("trainer", claim.trainer, words="trainer"), *plain, *_served(claim)]


def _open_windows(job: JobView) -> list[tuple[str, int]]:
    """Return actions and their deadlines: all that the contract shows, but that of a claim that was made. In a job that
    is settled nobody can do anything any more."""
    if job.status.name in SETTLED:
        return []
    records = [job, *(part for one in fields(job) if is_dataclass(part := getattr(job, one.name)))]
    ends = {one.name: getattr(record, one.name) for record in records for one in fields(record)}
    if job.claim.committed_at:
        ends.pop("commit_deadline")
    return [
        (showing.WINDOWS.get(name, showing.field_words(name)), end)
        for name, end in ends.items()
        if name.endswith("_deadline") and end
    ]


def _job_row(number: int, job: JobView, head: HeadSnapshot) -> dict[str, Any]:
    windows = _open_windows(job)
    # The one that ends next; if all have ended, the last one.
    ahead = [one for one in windows if one[1] >= head.now()]
    chosen = min(ahead, key=lambda one: one[1]) if ahead else max(windows, key=lambda one: one[1], default=("", 0))
    return {
        "number": number,
        "job": job,
        "tone": showing.tone(job.status),
        "what": chosen[0],
        "until": chosen[1],
    }


def _game_row(number: int, game: GameView, head: HeadSnapshot) -> dict[str, Any]:
    running = [*game.deadlines, game.referee_deadline if game.phase is Phase.REFEREE else 0]
    return {
        "number": number,
        "game": game,
        "at": showing.LEVELS[game.current.level][0],
        "headline": _headline(game, head),
        "deadline": 0 if game.outcome else min((one for one in running if one), default=0),
        "tone": showing.tone(game.outcome),
    }


def _headline(game: GameView, head: HeadSnapshot) -> str:
    """Return the state of a game in one sentence."""
    if game.outcome:
        return f"{showing.OUTCOMES[game.outcome]} {showing.ENDS[game.reason]}."
    if game.phase is Phase.QUEUED:
        return f"Waits for its turn: {game.ahead:,} games start before it. No clock runs."
    due = showing.DUE.get((game.phase, game.current.level)) or showing.DUE.get((game.phase, None), "move")
    if game.phase is Phase.REFEREE:
        return f"The referee is asked to {due}."
    running = [side for side in Side if game.deadlines[side]]
    if not running:
        return f"Under way: {showing.name_words(game.phase)}."
    late = [side for side in running if head.now() > game.deadlines[side]]
    if len(late) == len(running):
        who = " and the ".join(showing.SIDES[side] for side in late)
        return f"Time is out for the {who}: anybody may end the game."
    if len(running) == 2:
        return f"Both sides have to {due.replace('its', 'their')}."
    return f"The {showing.SIDES[running[0]]} is on move: it has to {due}."


def _clock(game: GameView, job: JobView, side: Side, head: HeadSnapshot) -> dict[str, Any]:
    """Return one side's clock as it is shown. Seconds; `deadline` 0: it stands. `share`: time that is left, in percent
    of the whole. `spent`: wei that its moves have cost, as the contract counts."""
    deadline = 0 if game.outcome else game.deadlines[side]
    left = max(0, deadline - head.now()) if deadline else game.clocks[side].remaining
    total = max(job.terms.clock_allowance, left)
    clock = {"side": showing.SIDES[side], "account": game.party(side), "spent": game.spent[side]}
    return clock | {"left": left, "total": total, "deadline": deadline, "share": 100 * left / total if total else 0.0}


def _moment(head: HeadSnapshot) -> Moment:
    """Return the block that a reading is as of. Raises Busy while none is known."""
    if not head.timestamp:
        raise Busy(head.trouble or "The node has not answered yet.")
    return head.number, head.hash
