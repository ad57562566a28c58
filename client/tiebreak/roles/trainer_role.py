"""The trainer: trains, publishes log and model, claims the result, and defends the claim until it is paid. Where audits
are blind it seals its claim first, and publishes when it opens it.

Its run is trained once, and read again, or trained again to the same bits, where a game needs it. A claim is sealed
while nobody knows its root, and opened once nobody can seal an audit any more."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from roundlog.execution import StoppedError

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import JobStatus, Side
from tiebreak.contract.structs import ANYONE, JobView
from tiebreak.roles.background_jobs import BackgroundJob, Lane, Priority
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.fetched_content import Refused, require_decidable
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.long_work import LongWork, PublishedAddresses, Publishing
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import Games, finalize_after, start_waiting
from tiebreak.roles.policy import stakes
from tiebreak.roles.sealing import Sealing, Secret

RUN = "run"
"""Name of the training's directory in the job's room."""


class TrainedRun:
    """The training of one job."""

    def __init__(self, long_work: LongWork) -> None:
        self._work = long_work

    def trained(self, posted: JobView, priority: Priority) -> DisputeTrees | None:
        """Return the dispute trees of the finished training; None until it is done."""
        return self._work.result(
            Lane.RUNS, "training", lambda background_job: self._train(posted, background_job), priority, "the training"
        )

    def _train(self, posted: JobView, background_job: BackgroundJob[DisputeTrees]) -> DisputeTrees:
        """Train. Raises Refused for a run that stops, or for clocks that are too short for this machine."""
        room, job = self._work.room(posted), self._work.read_job(posted)
        bonded = posted.status is not JobStatus.OPEN
        on_step = self._work.on_step(background_job, posted, job, "training", bonded=bonded)
        try:
            result = self._work.context.engine.train(job, room / RUN, on_step)
        except StoppedError as error:
            raise Refused(str(error)) from error
        self._work.tell(What.COMPUTED, f"trained to checkpoint root 0x{result.checkpoint_root.hex()}")
        return self._work.context.engine.trees(job, room / RUN, result.state_roots)

    def trees(self, posted: JobView, priority: Priority) -> DisputeTrees | None:
        """Return the trees that games are played with; None until they are ready."""
        if not self._work.files_are_here(posted, priority):
            return None
        recalled = self._work.recalled(posted, priority, (RUN,), "reading the run again")
        if recalled is None:
            return None
        if recalled:
            self._work.forget("training")
            return recalled[0]
        # The run directory is lost, but training gives the same bits again.
        return self.trained(posted, priority)

    def rest(self) -> None:
        """Free the memory of a run that nothing needs at present: what games need is on disk, and a role with many
        claims keeps none in memory."""
        self._work.forget("training")
        self._work.forget("recalling")


class SealedClaim:
    """The claim of a trainer on a job with blind audits, until it is open.

    Log and model are published when it is opened: an auditor that could read them earlier could seal an audit without
    work."""

    def __init__(self, role: JobRole, long_work: LongWork, run: TrainedRun, publishing: Publishing) -> None:
        self._role = role
        self._run = run
        self._publishing = publishing
        self._sealing = Sealing(role, long_work, "claim")

    def seal(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> Progress:
        """Seal the claim, of a job in status OPEN."""
        addresses = self._publishing.addresses(posted, priority)
        if addresses is None:
            return Progress(working=True, state="computes the addresses of log and model")
        if not self._role.confirmed(posted):
            return Progress(working=True, state="waits until the job lies deep enough")
        secret = self._sealing.keep(posted, self._sealing.of_claim(posted, trees.claim, addresses))
        if secret.checkpoint_root != trees.claim.root:
            # Never on a sound machine: the same job always comes to the same root.
            why = "this run came to another root than an earlier one, which may be sealed already: check this machine"
            self._role.tell(What.WARNING, why)
            return Progress(state=why)
        seal, bond = self._sealing.seal(secret), posted.terms.trainer_bond
        call = self._role.calls.paying("sealClaim", self._role.job, spec_hash=posted.spec_hash, bond=bond, seal=seal)
        self._role.order("seal the claim", call)
        return Progress(state="seals its claim")

    def open(self, posted: JobView) -> Progress:
        """Open the claim in its window, of a job in status SEALED; never earlier."""
        audits, now, stake = posted.audits, self._role.now(), posted.terms.trainer_bond
        if now <= audits.audit_deadline:
            return Progress(state="waits for auditors to seal", until=audits.audit_deadline + 1, stake=stake)
        if now > audits.opening_deadline:
            return self._role.leave(f"the claim on job {self._role.job} was not opened in time, so its bond is lost")
        # In the second half of the window nothing is waited for: the bond is lost at its end.
        late = now > audits.audit_deadline + posted.terms.opening_window // 2
        deadline = audits.opening_deadline
        if not late and not self._role.is_confirmed_after(audits.audit_deadline):
            state = "waits until the end of the time for audits lies deep enough"
            return Progress(working=True, state=state, stake=stake, deadline=deadline)
        priority = Priority(deadline=deadline, stake=stake, bonded=True)
        secret = self._sealing.kept(posted)
        if secret is None or not late:
            trees = self._run.trees(posted, priority)
            if trees is None:
                return Progress(working=True, state="gets its run ready to open", stake=stake, deadline=deadline)
            published = self._publishing.published(posted, priority)
            if published is None and not late:
                return Progress(working=True, state="publishes log and model", stake=stake, deadline=deadline)
            secret = secret or self._again(posted, trees, priority)
            if secret is None:
                return Progress(working=True, state="computes its seal again", stake=stake, deadline=deadline)
            if published is not None and published != PublishedAddresses(secret.log_cid, secret.model_cid):
                why = f"log and model were sealed as {secret.log_cid} and {secret.model_cid}, which are other addresses"
                self._role.tell(What.WARNING, f"{why}: publish them with the release that sealed them")
        said = secret.claimed, secret.final_state_root, secret.log_cid, secret.model_cid
        call = ContractCall.of("openClaim", self._role.job, *said, secret.salt)
        text = f"open the claim of checkpoint root 0x{secret.checkpoint_root.hex()}"
        self._role.order(text, call)
        return Progress(state="opens its claim", stake=stake, deadline=deadline)

    def _again(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> Secret | None:
        """Return the content of the seal, computed again because its file is lost; None until that is done."""
        addresses = self._publishing.addresses(posted, priority)
        if addresses is None:
            return None
        return self._sealing.keep(posted, self._sealing.of_claim(posted, trees.claim, addresses))


_HELD = (JobStatus.SEALED, JobStatus.CLAIMED)
"""Statuses in which a job holds its trainer's bond and the trainer can still do something for it."""


class TrainerRole(JobRole):
    """A role that trains one job, claims the result and defends the claim."""

    name = "trainer"

    def __init__(self, context: RoleContext, job: int, *, publish_every: int = 0) -> None:
        """publish_every: publish every so many checkpoints, for audits by many workers; 0 for none."""
        super().__init__(context, job)
        self._games = Games(self, self.long_work, Side.TRAINER)
        self._run = TrainedRun(self.long_work)
        self._publishing = Publishing(self.long_work, RUN, publish_every)
        self._sealed = SealedClaim(self, self.long_work, self._run, self._publishing)

    # The work.

    def refusal(self, why: str) -> str:
        return f"job {self.job} cannot be trained: {why}"

    def bond_held(self, posted: JobView) -> int:
        mine = posted.status in _HELD and posted.claim.trainer == self.address
        return posted.terms.trainer_bond if mine else 0

    def consider(self, posted: JobView) -> Progress:
        if posted.status is not JobStatus.OPEN:
            return self._after_commit(posted)
        if posted.terms.trainer not in (ANYONE, self.address):
            return self.leave(f"job {self.job} is reserved for {posted.terms.trainer}")
        if (objection := self.policy.objection(posted, posted.terms.trainer_bond)) is not None:
            return self.leave(f"job {self.job} is left alone: {objection}")
        if self.now() > posted.commit_deadline:
            return self.leave(f"nobody has committed to job {self.job} in time")
        require_decidable(self.context, posted)
        if (missing := self.missing_funds(posted.terms.trainer_bond)) is not None:
            return Progress(state=missing)
        # Told before the work, so that a user can object in time.
        self.tell(What.STAKED, stakes(posted, posted.terms.trainer_bond))
        priority = Priority(deadline=posted.commit_deadline, stake=posted.terms.reward)
        if not self.long_work.files_are_here(posted, priority):
            return Progress(working=True, state="fetches the job's files", until=posted.commit_deadline)
        trees = self._run.trained(posted, priority)
        if trees is None:
            self._publishing.publish_so_far(posted, priority)
            return Progress(working=True, state="trains", until=posted.commit_deadline)
        if posted.terms.opening_window:
            return self._sealed.seal(posted, trees, priority)
        addresses = self._publishing.published(posted, priority)
        if addresses is None:
            return Progress(working=True, state="publishes log and model", until=posted.commit_deadline)
        return self._commit(posted, trees, addresses)

    def _after_commit(self, posted: JobView) -> Progress:
        if posted.claim.trainer != self.address:
            return self.leave(f"job {self.job} was not claimed by this trainer")
        if posted.status is JobStatus.SEALED:
            return self._sealed.open(posted)
        if posted.status is not JobStatus.CLAIMED:
            return self.leave(f"job {self.job} is {posted.status.name}")
        return self._defend(posted)

    def _commit(self, posted: JobView, trees: DisputeTrees, addresses: PublishedAddresses) -> Progress:
        if not self.confirmed(posted):
            return Progress(working=True, state="waits until the job lies deep enough")
        claim = trees.claim
        call = self.calls.paying(
            "commit",
            self.job,
            spec_hash=posted.spec_hash,
            bond=posted.terms.trainer_bond,
            claimed=claim.as_next_root(),
            final_state_root=claim.payloads[-1],
            log_cid=addresses.log_cid,
            model_cid=addresses.model_cid,
        )
        self.order(f"commit to checkpoint root 0x{claim.root.hex()}", call)
        return Progress(state="commits")

    def _defend(self, posted: JobView) -> Progress:
        stake, trees = posted.terms.trainer_bond, partial(self._run.trees, posted)
        if posted.game_count:
            self._games.tell_ended(self.games(lambda game: True))
        start_waiting(self, posted)
        if posted.live_games or posted.queued_games:  # every game delays the claim
            return replace(self._games.play_running(posted, self.live_games(), stake, trees), stake=stake)
        if not posted.terms.opening_window or self._publishing.finish(posted, stake, trees):
            self._run.rest()
        end = finalize_after(self, posted.claim.challenge_deadline, "waits for the challenge window to close")
        return replace(end, stake=stake)
