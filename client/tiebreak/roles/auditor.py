"""The auditor: repeats a claimed training, and attests to it or challenges it and plays."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from roundlog import auditor as auditing
from roundlog import job as engine
from roundlog.batches import BatchSource
from roundlog.executor import Executor
from roundlog.microbatch import samples_of

from tiebreak.chain.records import Job, JobStatus, Outcome, Phase, Side
from tiebreak.roles.contents import Refused, fetch_job, fetch_log
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import Games, help_along
from tiebreak.roles.policy import stakes
from tiebreak.roles.role import JobRole
from tiebreak.roles.station import Station

_FINDINGS_TOLD = 5
"""The log of a wrong training is wrong almost everywhere after its first wrong step: hundreds of thousands of times."""


class AuditorRole(JobRole):
    """Audits the claim on one job."""

    name = "auditor"

    def __init__(
        self,
        station: Station,
        job: int,
        *,
        verify_log: float = 0.05,
        use_log: bool = True,
        device: torch.device | str = "cpu",
        keep_every: int = 1,
    ) -> None:
        """verify_log: the share of the logged decisions that is verified; 1.0 for all. use_log: False to resolve every
        decision without the trainer's help."""
        super().__init__(station, job)
        self._verify_log = verify_log
        self._use_log = use_log
        self._device = device
        self._keep_every = keep_every
        self._evidence: Evidence | None = None
        self._games: Games | None = None

    # What a dishonest auditor does otherwise.

    def batches(self, job: engine.Job) -> BatchSource | None:
        """The data to audit with; None for what the spec prescribes."""
        return None

    def executor(self, job: engine.Job) -> Executor | None:
        """What executes the program; None for what the program says."""
        return None

    def alter(self, evidence: Evidence) -> Evidence:
        """What the auditor claims to have found."""
        return evidence

    # The work.

    def step(self) -> Progress:
        return self._step(may_audit=True)

    def attend(self) -> Progress:
        return self._step(may_audit=False)

    def _step(self, *, may_audit: bool) -> Progress:
        posted = self.posted()
        if posted is None:
            return self.no_job()
        if posted.status is JobStatus.EXPIRED:
            return Progress(finished=True, state=f"nobody has committed to job {self.job} in time")
        if posted.status is JobStatus.OPEN:
            return Progress(state="waiting for a claim")
        mine = self._my_games()
        if posted.status is not JobStatus.CLAIMED:
            return self._leave(posted, mine)
        try:
            if not may_audit and self._evidence is None and not self._recall(posted, mine):
                return Progress(state="not audited yet")
            return self._during_claim(posted, mine)
        except Refused as error:
            return Progress(finished=True, state=f"job {self.job} cannot be audited: {error}")

    def _during_claim(self, posted: Job, mine: list[int]) -> Progress:
        contract = self.station.contract
        if mine:
            progress = self._play(posted, mine)
            if progress.acted or any(contract.game(game).phase is not Phase.OVER for game in mine):
                return progress
            return Progress(acted=self.withdraw(), finished=True, state="the game is over and the claim stands")
        if contract.has_attested(self.job, self.station.address):
            return Progress(finished=True, state=f"the claim on job {self.job} is right, and this account has said so")
        if self.station.now() > posted.claim.challenge_deadline and not posted.live_games:
            return Progress(finished=True, state=f"the window for challenges to job {self.job} is closed")
        evidence = self._audited(posted)
        root, claimed = evidence.claim.root, posted.claim.checkpoint_root
        if self.station.now() > posted.claim.challenge_deadline:
            return self._help_others(root == claimed, evidence)
        if root == claimed and evidence.made_up.needed:
            state = f"the claim on job {self.job} is about a run that has no end, and nothing in it shows that"
            return Progress(finished=True, state=state)
        if root == claimed:
            return Progress(
                acted=self.send(
                    "attest",
                    lambda: contract.attest(self.job, spec_hash=posted.spec_hash, checkpoint_root=root),
                    job=self.job,
                ),
                state="attesting",
            )
        return self._challenge(posted, evidence)

    def _challenge(self, posted: Job, evidence: Evidence) -> Progress:
        root = evidence.claim.root
        objection = self.station.policy.objection(posted, posted.terms.challenger_bond)
        if (objection := objection or self._too_large(evidence.job)) is not None:
            state = f"the claim on job {self.job} is wrong (root 0x{root.hex()}), but not challenged: {objection}"
            return Progress(finished=True, state=state)
        # A challenge of a former life of this process may still be on its way; two would cost two bonds.
        self.station.sender.settle()
        if self._my_games():
            return Progress(acted=True)
        self.notify_job(What.COMPUTED, f"found checkpoint root 0x{root.hex()}, which is not the claimed one")
        bond = posted.terms.challenger_bond
        self.notify_job(What.STAKED, stakes(posted, bond))
        sent = self.send(
            "challenge the claim",
            lambda: self.station.contract.challenge(
                self.job,
                spec_hash=posted.spec_hash,
                claimed_root=posted.claim.checkpoint_root,
                checkpoint_root=root,
                bond=bond,
            )[1],
            job=self.job,
        )
        return Progress(acted=sent, state="challenging")

    def _too_large(self, job: engine.Job) -> str | None:
        """Why a disputed step could not be executed here: audits cut batches, but a step that is disputed is whole."""
        need, most = engine.run_bytes(job.program, job.spec), self.station.limits.memory_bytes
        if need <= most:
            return None
        return f"a whole step of it takes up to {need} bytes of memory, more than the {most} allowed"

    def _play(self, posted: Job, mine: list[int]) -> Progress:
        evidence = self._audited(posted)
        if self._games is None:
            self._games = Games(self, self.job, Side.CHALLENGER)
        return self._games.play(mine, lambda: evidence)

    def _help_others(self, claim_is_right: bool, evidence: Evidence) -> Progress:
        """Too late for a game of one's own: all that is left is to move for others who hold the right root."""
        if claim_is_right:
            return Progress(finished=True, state=f"the claim on job {self.job} is right")
        contract = self.station.contract
        helped = False
        for game_id in contract.games_of(self.job):
            if contract.game(game_id).levels[0].roots[Side.CHALLENGER] == evidence.claim.root:
                helped |= help_along(self, game_id, Side.CHALLENGER, evidence)
        return Progress(acted=helped, state="the claim is wrong, but only the games of others can still show it")

    def _leave(self, posted: Job, mine: list[int]) -> Progress:
        contract = self.station.contract
        for game_id in mine:
            game = contract.game(game_id)
            if game.outcome is Outcome.VOID and game.bond_held:
                self.send("fetch the bond back", partial(contract.release_bond, game_id), job=self.job)
        acted = bool(mine) and self.withdraw()
        return Progress(acted=acted, finished=True, state=f"job {self.job} is {posted.status.name}")

    def _my_games(self) -> list[int]:
        contract = self.station.contract
        return [game for game in contract.games_of(self.job) if contract.game(game).challenger == self.station.address]

    def _audited(self, posted: Job) -> Evidence:
        """The audit, resumed or read again from its directory."""
        if self._evidence is None:
            self._evidence = self.alter(self._audit(posted))
        return self._evidence

    def _recall(self, posted: Job, mine: list[int]) -> bool:
        """Whether the audit behind a game that runs already could be read again, without executing anything."""
        if not mine:
            return False
        room = self.station.room(self.job, posted)
        job = fetch_job(self.station, posted, room)
        challenged = self.station.contract.game(mine[0]).levels[0].roots[Side.CHALLENGER]
        for run_dir in (room / "alone", room / "audit"):
            found = Evidence.recall(
                job,
                run_dir,
                batches=self.batches(job),
                executor=self.executor(job),
                device=self._device,
                micro_batches=self._micro_batches(job),
            )
            if found is not None and (evidence := self.alter(found)).claim.root == challenged:
                self._evidence = evidence
        return self._evidence is not None

    def _audit(self, posted: Job) -> Evidence:
        room = self.station.room(self.job, posted)
        job = fetch_job(self.station, posted, room)
        log_dir = fetch_log(self.station, posted, room) if self._use_log else None
        if log_dir is None:
            if self._use_log:
                self.notify_job(
                    What.WARNING, f"the log {posted.claim.log_cid} cannot be had: the audit goes without it"
                )
            return self._execute(job, room / "alone", None)
        evidence = self._execute(job, room / "audit", log_dir)
        if evidence.claim.root == posted.claim.checkpoint_root or self._verify_log == 1.0:
            return evidence
        # Decisions that the sample has missed may be bent, and would make this root wrong as well. Only what was found
        # without the trainer's help can be defended in a game.
        self.notify_job(What.COMPUTED, "the claim seems wrong: auditing again without the trainer's log")
        return self._execute(job, room / "alone", None)

    def _micro_batches(self, job: engine.Job) -> int:
        return min(self.station.limits.micro_batches, samples_of(job.program))

    def _execute(self, job: engine.Job, run_dir: Path, log_dir: Path | None) -> Evidence:
        auditor = auditing.Auditor(
            job,
            run_dir,
            log_dir=log_dir,
            verify_log=self._verify_log,
            batches=self.batches(job),
            keep_every=self._keep_every,
            device=self._device,
            on_step=self.on_step(self.job, job.spec.steps, "auditing" if log_dir else "auditing without a log"),
            micro_batches=self._micro_batches(job),
            go_on=True,
            executor=self.executor(job),
        )
        result = auditor.run()
        for finding in result.findings[:_FINDINGS_TOLD]:
            where = f"step {finding.step}, operator {finding.operator}, element {finding.element}"
            self.notify_job(What.COMPUTED, f"the log is wrong at {where}: {finding.message}")
        if (more := len(result.findings) - _FINDINGS_TOLD) > 0:
            self.notify_job(What.COMPUTED, f"the log has {more} more wrong entries")
        for unreadable in result.unreadable:
            self.notify_job(What.WARNING, f"goes on without the log: {unreadable}")
        if result.stopped is not None:
            self.notify_job(What.COMPUTED, f"the run has no end: {result.stopped}")
        evidence = Evidence(
            job,
            run_dir,
            result.state_roots,
            batches=self.batches(job),
            executor=self.executor(job),
            device=self._device,
            micro_batches=self._micro_batches(job),
        )
        self.notify_job(What.COMPUTED, f"audited to checkpoint root 0x{evidence.claim.root.hex()}")
        return evidence
