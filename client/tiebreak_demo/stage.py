"""A story as it is played: its processes, their output, their spending, and their balances before."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from tiebreak.contract.events import Challenged
from tiebreak.contract.structs import GameView, JobView, Terms
from tiebreak.roles.context import RoleContext
from tiebreak.roles.customer_role import CustomerRole, post_job
from tiebreak.roles.notices import plain

from tiebreak_demo.processes import PATIENCE, ChildProcesses
from tiebreak_demo.report import AccountReport, Check, Story
from tiebreak_demo.scene import Party, Scene
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


class Stage:
    """Used in a `with` block, which ends all processes of the story."""

    def __init__(
        self, scene: Scene, screen: Screen, story: Story, parties: Sequence[Party], *, patience: float = PATIENCE
    ) -> None:
        """patience: seconds in which something has to come of the processes."""
        self.scene, self.screen, self.story = scene, screen, story
        self.job = 0
        self.said: list[str] = []
        """Texts of notices by which parties say what they have computed."""
        self._parties, self._patience = parties, patience
        self._before = {party.name: scene.node.balance(party.address) for party in parties}
        self._first_block = scene.node.head().number
        self._children = ChildProcesses(scene.directory)
        self._started = time.monotonic()

    def post(self, job_dir: Any, terms: Terms = TERMS) -> None:
        """The customer, played in this process, posts the job."""
        context = self.context(self.scene.customer)
        self.job = post_job(context, job_dir, terms, self.scene.referee.address)

    def collect(self) -> str:
        """The customer fetches the model, or the refund; returns how it ended."""
        context = self.context(self.scene.customer)
        progress = CustomerRole(context, self.job, model=self.scene.directory / f"model-{self.job}.safetensors").run()
        return progress.state

    def context(self, party: Party) -> RoleContext:
        """The context of a party that is played in this process."""
        return self.scene.context(party, lambda notice: self._told(party, plain(notice)))

    def start(self, party: Party, command: Sequence[str]) -> None:
        """Starts a party's process on its machine."""
        self._children.start(party.name, command, self.scene.environment(party), lambda line: self._heard(party, line))
        self.screen.waiting(party.name, "getting ready")

    def act(self, party: Party, kind: str, step: int) -> None:
        """Starts a party that breaks the rules."""
        words = (kind, str(self.job), str(step))
        self.start(
            party, [sys.executable, "-P", "-m", "tiebreak_demo.adversary.process", *words, *self.scene.manner(party)]
        )

    def until(self, done: Callable[[JobView], bool]) -> None:
        """Lets the processes work until the job on the chain is in the wanted state. Raises ProcessFailed."""
        contract = self.scene.contract
        self._children.listen(lambda: done(contract.job(self.job)), patience=self._patience)

    def until_ended(self, *parties: Party) -> None:
        """Lets the processes work until those of the parties have ended by themselves. Raises ProcessFailed."""
        names = {party.name for party in parties}
        self._children.listen(lambda: self._children.ended(names), patience=self._patience)

    def game_of(self, party: Party) -> tuple[int, GameView] | None:
        """The party's game in this story, if it has challenged."""
        for number in self.scene.contract.games_of(self.job):
            game = self.scene.contract.game(number)
            if game.challenger == party.address:
                return number, game
        return None

    def expect(self, text: str, expected: Any, observed: Any) -> None:
        check = Check(text, expected, observed)
        self.story.checks.append(check)
        self.screen.check(check)

    def settle(self, moved: dict[Party, int]) -> None:
        """Reads the end from the chain. moved: what the contract should have paid to each party, net, in wei."""
        scene, story = self.scene, self.story
        job = scene.contract.job(self.job)
        story.root = job.claim.checkpoint_root
        story.verdict = job.status.name
        story.rounds = sum(self._moves(game) for game in scene.contract.games_of(self.job))
        story.log_bytes = sum(path.stat().st_size for path in self.run_of(scene.trainer, "run").glob("log/*.rlog"))
        spent = scene.spent_since(self._first_block)
        story.gas = sum(one.gas for one in spent)
        story.transactions = len(spent)
        for party in self._parties:
            fees = sum(one.fee for one in spent if one.sender == party.address)
            before, after = self._before[party.name], scene.node.balance(party.address)
            story.accounts.append(AccountReport(party.name, before, after, fees))
        # To the wei: a balance has changed by what the contract moved, less the fees of the party's own transactions.
        self.expect(
            "every balance has moved as the rules say, to the wei",
            {party.name: moved.get(party, 0) for party in self._parties},
            {account.name: account.moved for account in story.accounts},
        )
        kept = scene.node.balance(scene.contract.address)
        self.expect("the contract keeps what is burnt and nothing else", scene.contract.burnt(), kept)
        story.seconds = time.monotonic() - self._started

    def run_of(self, party: Party, kind: str) -> Any:
        """Directory of a party's run in this story: `run` of a trainer, `alone` of an auditor."""
        posted = self.scene.contract.job(self.job)
        return self.scene.room(party) / f"job-{self.job}-{posted.spec_hash.hex()[:16]}" / kind

    def _moves(self, game: int) -> int:
        """Transactions of a game after its challenge."""
        events = self.scene.contract.events(game=game)
        challenge = {event.transaction for event in events if isinstance(event, Challenged)}
        return len({event.transaction for event in events} - challenge)

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

    def __enter__(self) -> Stage:
        self._children.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._children.__exit__(kind, error, trace)
