"""The referee: where a game has come down to one step, executes that step and says what the state after it is."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from roundlog import job as engine
from roundlog.auditor import Auditor
from roundlog.commitments import state_root
from roundlog.replay import referee_step, replay_state
from roundlog.run import StepEvent

from tiebreak.chain.records import Game, Job, Phase
from tiebreak.roles.contents import Refused, fetch_job, fetch_state
from tiebreak.roles.evidence import NO_STATE, RUN_ENDS
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import disputed_step
from tiebreak.roles.role import Role
from tiebreak.roles.station import Station
from tiebreak.store import StoreError


class RefereeRole(Role):
    """Answers every game that calls this account. Never finishes by itself."""

    name = "referee"

    def __init__(self, station: Station, *, offers: Iterable[str] = (), device: torch.device | str = "cpu") -> None:
        """offers: CIDs of states that parties offer; one with the agreed root saves executing all steps before it."""
        super().__init__(station)
        self._offers = tuple(offers)
        self._device = device
        self._seen = 0
        self._live: set[int] = set()
        self._jobs: dict[int, Job] = {}
        self._verdicts: dict[int, bytes] = {}

    def step(self) -> Progress:
        contract = self.station.contract
        count = contract.game_count()
        self._live |= set(range(self._seen + 1, count + 1))
        self._seen = count
        acted = False
        for game_id in sorted(self._live):
            game = contract.game(game_id)
            if game.phase is Phase.OVER or not self._is_mine(game.job):
                self._live.discard(game_id)
            elif game.phase is Phase.REFEREE and self.station.now() <= game.referee_deadline:
                acted |= self._rule(game_id, game)
        return Progress(acted=acted, state=f"watching {len(self._live)} games")

    def _is_mine(self, job_id: int) -> bool:
        if job_id not in self._jobs:
            self._jobs[job_id] = self.station.contract.job(job_id)
        return self._jobs[job_id].spec.referee == self.station.address

    def _rule(self, game_id: int, game: Game) -> bool:
        posted = self._jobs[game.job]
        try:
            job = fetch_job(self.station, posted, self.station.room(game.job, posted))
        except Refused as error:
            self.tell(What.WARNING, f"cannot decide game {game_id}: {error}", job=game.job, game=game_id)
            self._live.discard(game_id)
            return False
        step = disputed_step(game, job.spec.interval)
        if game_id not in self._verdicts:
            self._verdicts[game_id] = self._verdict(game_id, game, job, step)
            text = f"after step {step} the state root is 0x{self._verdicts[game_id].hex()}"
            self.tell(What.COMPUTED, text, job=game.job, game=game_id)
        return self.send(
            f"decide about step {step}",
            lambda: self.station.contract.adjudicate(game_id, self._verdicts[game_id]),
            job=game.job,
            game=game_id,
        )

    def _verdict(self, game_id: int, game: Game, job: engine.Job, step: int) -> bytes:
        run_dir = self.station.room(game.job, self._jobs[game.job]) / "run"
        try:
            before = self._offered(game, job) or self._replayed(game.job, job, step, run_dir)
            if state_root(before) != game.agreed:
                # Both sides agree on a state that this job never reaches, so neither can be right about what follows.
                self.tell(What.WARNING, f"both sides are wrong before step {step}", job=game.job, game=game_id)
                return NO_STATE
            return referee_step(job, before, step, run_dir, device=self._device)
        except RUN_ENDS as error:
            self.tell(What.COMPUTED, f"the run ends here: {error}", job=game.job, game=game_id)
            return NO_STATE

    def _offered(self, game: Game, job: engine.Job) -> list[torch.Tensor] | None:
        path = self.station.room(game.job, self._jobs[game.job]) / "offered.safetensors"
        for cid in self._offers:
            try:
                states = fetch_state(self.station, cid, job.program, game.agreed, path)
            except (Refused, StoreError) as error:
                self.tell(What.WARNING, str(error), job=game.job)
                continue
            self.tell(What.FETCHED, f"starts from the offered state {cid}", job=game.job)
            return states
        return None

    def _replayed(self, job_id: int, job: engine.Job, step: int, run_dir: Path) -> list[torch.Tensor]:
        """The state before `step`, from the initial one. Whole intervals are executed as an audit, which keeps
        checkpoints, so that a killed referee carries on and the next game starts from there."""
        intervals = step // job.spec.interval
        tell = self.on_step(job_id, step, "executing the steps before the disputed one")

        def watch(event: StepEvent) -> None:
            if event.step >= intervals * job.spec.interval:
                raise _FarEnough
            tell(event)

        with suppress(_FarEnough):
            Auditor(job, run_dir, device=self._device, on_step=watch).run()
        return replay_state(job, run_dir, step, device=self._device)


class _FarEnough(Exception):
    """The intervals before the disputed one are done."""
