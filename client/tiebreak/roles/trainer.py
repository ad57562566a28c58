"""The trainer: trains, publishes log and model, claims the result, and defends the claim until it is paid."""

from __future__ import annotations

from pathlib import Path

import torch
from roundlog import job as engine
from roundlog import trainer as training
from roundlog.batches import BatchSource
from roundlog.executor import Executor, StoppedError

from tiebreak.chain.records import ANYONE, Job, JobStatus, Side
from tiebreak.game import Leaves
from tiebreak.roles.contents import Refused, fetch_job
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import Games
from tiebreak.roles.policy import stakes
from tiebreak.roles.role import JobRole
from tiebreak.roles.station import Station


class TrainerRole(JobRole):
    """Trains one job and lives with the consequences."""

    name = "trainer"

    def __init__(self, station: Station, job: int, *, device: torch.device | str = "cpu", keep_every: int = 1) -> None:
        """keep_every: intervals between two checkpoints that stay on disk."""
        super().__init__(station, job)
        self._device = device
        self._keep_every = keep_every
        self._evidence: Evidence | None = None
        self._result: training.TrainingResult | None = None
        self._games: Games | None = None
        self._told_stakes = False

    # What a dishonest trainer does otherwise; an honest one follows the spec.

    def batches(self, job: engine.Job) -> BatchSource | None:
        """The data to train on; None for what the spec prescribes."""
        return None

    def executor(self, job: engine.Job) -> Executor | None:
        """What executes the program; None for what the program says."""
        return None

    def alter(self, evidence: Evidence) -> Evidence:
        """What the trainer claims."""
        return evidence

    def claim(self, evidence: Evidence) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """Checkpoint root, final state root, and the proof that ties them."""
        leaves: Leaves = evidence.claim
        return leaves.root, leaves.payloads[-1], leaves.as_next_root().last_leaf_proof

    def log_to_publish(self, log_dir: Path) -> Path:
        return log_dir

    # The work.

    def step(self) -> Progress:
        posted = self.posted()
        if posted is None:
            return self.no_job()
        if posted.status is not JobStatus.OPEN:
            return self._after_commit(posted, may_train=True)
        if posted.terms.trainer not in (ANYONE, self.station.address):
            return Progress(finished=True, state=f"job {self.job} is reserved for {posted.terms.trainer}")
        if (objection := self.station.policy.objection(posted, posted.terms.trainer_bond)) is not None:
            return Progress(finished=True, state=f"job {self.job} is left alone: {objection}")
        if self.station.now() > posted.commit_deadline:
            return Progress(finished=True, state=f"nobody has committed to job {self.job} in time")
        if not self._told_stakes:
            # Before the work, so that whoever does not like it need not wait for the end.
            self.notify_job(What.STAKED, stakes(posted, posted.terms.trainer_bond))
            self._told_stakes = True
        try:
            self._train(posted)
        except (Refused, StoppedError) as error:
            return Progress(finished=True, state=f"job {self.job} cannot be trained: {error}")
        return Progress(acted=self._commit(posted), state="committing")

    def attend(self) -> Progress:
        posted = self.posted()
        if posted is None:
            return self.no_job()
        if posted.status is JobStatus.OPEN:
            return Progress(state="not trained yet")
        return self._after_commit(posted, may_train=False)

    def _after_commit(self, posted: Job, *, may_train: bool) -> Progress:
        if posted.claim.trainer != self.station.address:
            return Progress(finished=True, state=f"job {self.job} was not claimed by this trainer")
        if posted.status is not JobStatus.CLAIMED:
            return Progress(acted=self.withdraw(), finished=True, state=f"job {self.job} is {posted.status.name}")
        return self._defend(posted, may_train=may_train)

    def _train(self, posted: Job) -> None:
        if self._result is not None:
            return
        room = self.station.room(self.job, posted)
        job = fetch_job(self.station, posted, room)
        trainer = training.Trainer(
            job,
            room / "run",
            batches=self.batches(job),
            executor=self.executor(job),
            keep_every=self._keep_every,
            device=self._device,
            on_step=self.on_step(self.job, job.spec.steps, "training"),
        )
        self._result = result = trainer.run()
        self.notify_job(What.COMPUTED, f"trained to checkpoint root 0x{result.checkpoint_root.hex()}")
        self._evidence = self.alter(
            Evidence(
                job,
                room / "run",
                result.state_roots,
                batches=self.batches(job),
                executor=self.executor(job),
                device=self._device,
            )
        )

    def _recall(self, posted: Job) -> None:
        """Reads the evidence of a finished run again, without executing anything."""
        room = self.station.room(self.job, posted)
        job = fetch_job(self.station, posted, room)
        found = Evidence.recall(
            job, room / "run", batches=self.batches(job), executor=self.executor(job), device=self._device
        )
        self._evidence = None if found is None else self.alter(found)

    def _commit(self, posted: Job) -> bool:
        assert self._evidence is not None and self._result is not None
        evidence, result = self._evidence, self._result
        store = self.station.store
        log_cid = store.add_directory(self.log_to_publish(result.log_dir))
        model_cid = store.add_file(result.final_state)
        self.notify_job(What.PUBLISHED, f"published the log ({result.log_bytes} bytes) as {log_cid}")
        self.notify_job(What.PUBLISHED, f"published the final state as {model_cid}")
        root, final, proof = self.claim(evidence)
        return self.send(
            f"commit to checkpoint root 0x{root.hex()}",
            lambda: self.station.contract.commit(
                self.job,
                spec_hash=posted.spec_hash,
                checkpoint_root=root,
                final_state_root=final,
                proof=proof,
                log_cid=log_cid,
                model_cid=model_cid,
                bond=posted.terms.trainer_bond,
            ),
            job=self.job,
        )

    def _defend(self, posted: Job, *, may_train: bool) -> Progress:
        contract = self.station.contract
        if posted.live_games:
            if self._evidence is None:
                self._recall(posted)
            if self._evidence is None and may_train:
                self._train(posted)  # the run directory is lost, but training gives the same bits again
            if self._evidence is None:
                return Progress(state="the run is lost and has to be executed again")
            evidence = self._evidence
            if self._games is None:
                self._games = Games(self, self.job, Side.TRAINER)
            return self._games.play(contract.games_of(self.job), lambda: evidence)
        if self.station.now() <= posted.claim.challenge_deadline:
            return Progress(
                state="waiting for the challenge window to close", until=posted.claim.challenge_deadline + 1
            )
        return Progress(
            acted=self.send("finalize", lambda: contract.finalize(self.job), job=self.job), state="finalizing"
        )
