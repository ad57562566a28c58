"""The player of all stories: the specification of a story, as data, and the player that starts its parties, as
processes or as roles in this process, passes time, and holds what they gain against what the contract owes them."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiebreak.contract.contract_calls import Shares, fee_share
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Reason, Side
from tiebreak.contract.events import Challenged
from tiebreak.contract.structs import GameView, JobView, Terms
from tiebreak.roles.context import RoleContext
from tiebreak.roles.customer_role import CustomerRole, post_job
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import plain

from tiebreak_demo.processes import PATIENCE, ChildProcesses
from tiebreak_demo.report import AccountReport, Check, Story, StoryName
from tiebreak_demo.scene import PACE, TIEBREAK, Party, Scene
from tiebreak_demo.screen import Screen

_ETHER = 10**18
TERMS = Terms(
    reward=_ETHER,
    trainer_bond=2 * _ETHER,
    challenger_bond=_ETHER,
    commit_window=3600,
    challenge_window=7 * 86400,
    clock_allowance=3600,
    referee_allowance=3600,
    concurrent_games=16,
)
MISBEHAVE = (sys.executable, "-P", "-m", "tiebreak_demo.adversary.process")
"""The command of a dishonest party: KIND JOB STEP."""
_REST = 0.02
"""Seconds between two looks of roles in this process while nobody has anything to do but wait for its own work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedGame:
    """The end that a game has to have. step: found by it; None for a game that ends before. where: the step, in words.
    A challenger whose game ends by TIMEOUT falls silent."""

    challenger: Party
    winner: Side
    reason: Reason = Reason.PROOF
    step: int | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorySpec:
    """A story as data. introduction: shown below the title. commands: arguments of `tiebreak`, or `misbehave KIND
    STEP`, of each party that is a process. others: parties besides these. games, attesters: as they have to be in the
    end. patience: seconds in which something has to come of the processes."""

    name: StoryName
    title: str
    introduction: str = ""
    commands: Mapping[Party, Sequence[str]] = field(default_factory=dict)
    others: Sequence[Party] = ()
    games: Sequence[ExpectedGame] = ()
    attesters: Sequence[Party] = ()
    terms: Terms = TERMS
    patience: float = PATIENCE

    @property
    def is_final(self) -> bool:
        """Whether the claim has to become final."""
        return all(game.winner is Side.TRAINER for game in self.games)


class StoryPlayer(ExitStack):
    """The player of one story. Leaving the `with` block ends all of its processes."""

    def __init__(self, scene: Scene, screen: Screen, story: Story, spec: StorySpec) -> None:
        super().__init__()
        self.scene, self.screen, self.story, self.spec = scene, screen, story, spec
        self.job = 0
        self.said: list[str] = []
        """Texts of notices by which parties say what they have computed."""
        parties = dict.fromkeys([scene.customer, scene.trainer, *spec.commands, *spec.others, scene.referee])
        self._before = {party: scene.node.balance(party.address) for party in parties}
        self._first_block = scene.node.head().number
        self._children = self.enter_context(ChildProcesses(scene.directory))
        self._started = time.monotonic()

    @property
    def posted(self) -> JobView:
        """The job as the chain has it now."""
        return self.scene.contract.job(self.job)

    @property
    def model(self) -> Path:
        """The file with the customer's model."""
        return self.scene.directory / f"model-{self.job}.safetensors"

    def games(self) -> dict[int, GameView]:
        """Return the job's games as the chain has them now, by their numbers."""
        contract = self.scene.contract
        return {number: contract.game(number) for number in contract.games_of(self.job)}

    def game_of(self, party: Party) -> tuple[int, GameView]:
        """Return the game of a challenger, which has to be there, with its number."""
        found = [item for item in self.games().items() if item[1].challenger == party.address]
        assert found, f"the {party.name} has not challenged"
        return found[0]

    def context(self, party: Party) -> RoleContext:
        """Return the context of a party that is played in this process."""
        return self.scene.context(party, lambda notice: self._told(party, plain(notice)))

    def run_of(self, party: Party, kind: str) -> Path:
        """Return the directory of a party's run in this story: `run` of a trainer, `alone` or `blind` of an auditor."""
        return self.scene.room(party) / f"job-{self.job}-{self.posted.spec_hash.hex()[:16]}" / kind

    def post(self, job_dir: Path) -> None:
        """Post the job, as the customer."""
        self.job = post_job(self.context(self.scene.customer), job_dir, self.spec.terms, self.scene.referee.address)

    def collect(self) -> None:
        """Fetch the model, or the refund, as the customer."""
        CustomerRole(self.context(self.scene.customer), self.job, model=self.model).run()

    # The parties at work.

    def play_processes(self) -> None:
        """Start the parties' processes and let them work until all have ended by themselves; time passes where it has
        to. Raises ProcessFailed."""
        for party, words in self.spec.commands.items():
            manner = ["--dir", str(self.scene.room(party)), "--poll", f"{1000 * self.scene.pace:.0f}ms", "--json"]
            if words[0] == "misbehave":
                command = [*MISBEHAVE, words[1], str(self.job), words[2], *manner]
            else:
                command = [*TIEBREAK, *words, "--job", str(self.job), *manner]
            environment = self.scene.environment(party)
            self._children.start(party.name, command, environment, lambda line, party=party: self._heard(party, line))  # type: ignore[misc]
            self.screen.bar(party.name, "getting ready")
        while not self._children.ended():
            self._children.listen(lambda: self._children.ended() or self._has_to_wait(), patience=self.spec.patience)
            if not self._children.ended():
                self._pass_time()

    def play_roles(self, roles: Sequence[JobRole], late: Sequence[JobRole] = ()) -> None:
        """Let roles in this process work until none has anything left to do; time passes where nothing else helps.
        late: those that begin after the first audit of the job has its place."""
        working, idle = list(roles), 0
        while working:
            waiting = () if not late or self.posted.audits.count else late
            progress = {role: role.step() for role in working if role not in waiting}
            for role, seen in progress.items():
                if seen.finished:
                    role.close()
            working = [role for role in working if role in waiting or not progress[role].finished]
            acted = any(seen.acted for seen in progress.values())
            # Twice: a party that only hears that a block has its move has changed what the one before it sees.
            idle = 0 if acted or any(seen.working for seen in progress.values()) else idle + 1
            if working and idle == 2:
                idle = 0
                self._pass_time()
            elif self.scene.pace > PACE:
                time.sleep(self.scene.pace)  # somebody watches
            elif not acted:
                time.sleep(_REST)

    def _wait(self) -> tuple[str, int]:
        """Return the wait that comes next, in words, and its end in the chain's time."""
        job, games = self.posted, self.games().values()
        live = [game for game in games if game.phase not in (Phase.QUEUED, Phase.OVER)]
        if job.status is JobStatus.SEALED:
            return "the time for audits ends, and the trainer may open its claim", job.audits.audit_deadline
        if live:
            return "an hour passes", max(deadline for game in live for deadline in game.deadlines)
        if any(game.phase is Phase.QUEUED for game in games):
            return "the time to open audits ends, and games begin", job.audits.audit_opening_deadline
        if job.status is JobStatus.APPEALABLE:
            return "a week passes, in which nobody appeals", job.audits.appeal_deadline
        return "a week passes, and the window for challenges closes", job.claim.challenge_deadline

    def _pass_time(self) -> None:
        words, instant = self._wait()
        self.screen.meanwhile(words)
        self.scene.pass_time(instant)

    def _has_to_wait(self) -> bool:
        """Return whether no process has a move before time passes: all attesters have ended, and all games are over but
        those of silent challengers, whose clocks run."""
        spec = self.spec
        # The chain is asked last: every look costs milliseconds on cores that train.
        if not spec.is_final or not self._children.ended(party.name for party in spec.attesters):
            return False
        if self.posted.status is not JobStatus.CLAIMED or len(games := self.games().values()) < len(spec.games):
            return False
        silent = {game.challenger.address for game in spec.games if game.reason is Reason.TIMEOUT}
        live = [game for game in games if game.phase is not Phase.OVER]
        waits = all(game.challenger in silent and game.deadlines[Side.CHALLENGER] for game in live)
        return waits and self.scene.node.head().timestamp <= self._wait()[1]

    # Their words.

    def _heard(self, party: Party, line: str) -> None:
        try:
            notice = json.loads(line)
        except ValueError:
            return  # the actor's own libraries may print; nothing depends on it
        if isinstance(notice, dict):
            self._told(party, notice)

    def _told(self, party: Party, notice: dict[str, Any]) -> None:
        what, text = notice.get("what"), str(notice.get("text", "")).replace(f"{self.scene.directory}/", "")
        if what == "step":
            if int(notice["done"]) == 1:
                self.screen.end_bars(party.name)
            self.screen.bar(party.name, text, int(notice["done"]), int(notice["total"]))
            return
        self.screen.end_bars(party.name)
        if what == "sent":
            self.screen.line(party.name, text, note=f"{int(notice['gas']):,} gas", is_move="game" in notice)
        elif what in ("computed", "published", "fetched"):
            self.said.append(text)
            self.screen.line(party.name, text, is_move="game" in notice)

    # The end.

    def expect(self, text: str, expected: Any, observed: Any) -> None:
        """Put down an expectation beside what was observed."""
        check = Check(text, expected, observed)
        self.story.checks.append(check)
        self.screen.check(check)

    def expect_end(self, text: str, expected: ExpectedGame) -> None:
        """Expect the end of a game."""
        _, game = self.game_of(expected.challenger)
        won = Outcome.TRAINER_WON if expected.winner is Side.TRAINER else Outcome.CHALLENGER_WON
        self.expect(text, (won.name, expected.reason.name), (game.outcome.name, game.reason.name))

    def expect_status(self) -> None:
        """Expect the status of the job that its spec comes to."""
        status = JobStatus.FINAL if self.spec.is_final else JobStatus.REJECTED
        self.expect(f"the claim is {status.name.lower()}", status.name, self.posted.status.name)

    def settle(self) -> None:
        """Read the end from the chain, and hold every balance against what the contract owes."""
        scene, story, posted, games = self.scene, self.story, self.posted, self.games()
        story.root, story.verdict = posted.claim.checkpoint_root, posted.status.name
        story.rounds = sum(map(self._moves, games))
        story.log_bytes = sum(path.stat().st_size for path in self.run_of(scene.trainer, "run").glob("log/*.rlog"))
        spent = scene.spent_since(self._first_block)
        story.gas, story.transactions = sum(one.gas for one in spent), len(spent)
        for party, before in self._before.items():
            fees = sum(one.fee for one in spent if one.sender == party.address)
            story.accounts.append(AccountReport(party.name, before, scene.node.balance(party.address), fees))
        # To the wei: a balance has changed by what the contract moved, less the fees of the party's own transactions.
        owed = self._owed()
        self.expect(
            "every balance has moved as the rules say, to the wei",
            {party.name: owed[party] for party in self._before},
            {account.name: account.moved for account in story.accounts},
        )
        kept = scene.node.balance(scene.contract.address)
        self.expect("the contract keeps what is burnt and nothing else", scene.contract.burnt(), kept)
        story.seconds = time.monotonic() - self._started

    def _owed(self) -> Counter[Party]:
        """Return what the contract has to pay to each party if all games end as expected, net, in wei."""
        scene, spec, terms = self.scene, self.spec, self.spec.terms
        owed = Counter[Party]()
        for expected in spec.games:
            lost = Counter({expected.challenger: terms.challenger_bond})
            winner = scene.trainer
            if expected.winner is Side.CHALLENGER:
                winner = expected.challenger
                lost = Counter({scene.trainer: terms.trainer_bond})
                lost.update(dict.fromkeys(spec.attesters, terms.attestation_bond))
            shares = Shares.of(lost.total(), self.game_of(expected.challenger)[1].spent[expected.winner])
            owed.subtract(lost)
            owed.update({winner: shares.winners, scene.customer: shares.quarter})
        if spec.is_final:
            fees = dict.fromkeys(spec.attesters, fee_share(terms))
            owed.update({scene.trainer: terms.reward, **fees})
            owed[scene.customer] -= terms.reward + sum(fees.values())
        return owed

    def _moves(self, game: int) -> int:
        """Return the number of transactions of a game after its challenge."""
        events = self.scene.contract.events(game=game)
        challenge = {event.transaction for event in events if isinstance(event, Challenged)}
        return len({event.transaction for event in events} - challenge)
