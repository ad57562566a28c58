"""The trainer's run, trained once, and read again, or trained again to the same bits, where a game needs it; and its
sealed claim: sealed while nobody knows its root, opened once nobody can seal an audit any more."""

from __future__ import annotations

from roundlog.execution import StoppedError

from tiebreak.contract.enums import JobStatus
from tiebreak.contract.structs import JobView
from tiebreak.roles.background_jobs import BackgroundJob, Lane, Priority
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.fetched_content import Refused
from tiebreak.roles.job_on_chain import Decisions, JobOnChain, Leave, MakeCall, Tell, WholeLook
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.publishing import PublishedAddresses, Publishing
from tiebreak.roles.sealing import Sealing, Secret

RUN = "run"
"""Name of the training's directory in the job's room."""


class TrainedRun:
    """The training of one job."""

    def __init__(self, long_work: LongWork) -> None:
        self._work = long_work

    def trained(self, posted: JobView, priority: Priority) -> DisputeTrees | None:
        """The dispute trees of the finished training; None until it is done."""
        return self._work.result(
            Lane.RUNS, "training", lambda background_job: self._train(posted, background_job), priority, "the training"
        )

    def _train(self, posted: JobView, background_job: BackgroundJob[DisputeTrees]) -> DisputeTrees:
        """Trains. Raises Refused for a run that stops, or for clocks that are too short for this machine."""
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
        """The trees that games are played with; None until they are ready."""
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
        """Frees the memory of a run that nothing needs at present: what games need is on disk, and a role with many
        claims keeps none in memory."""
        self._work.forget("training")
        self._work.forget("recalling")


class SealedClaim:
    """The claim of a trainer on a job with blind audits, until it is open.

    Log and model are published when it is opened: an auditor that could read them earlier could seal an audit without
    work."""

    def __init__(self, chain: JobOnChain, long_work: LongWork, run: TrainedRun, publishing: Publishing) -> None:
        self._chain = chain
        self._run = run
        self._publishing = publishing
        self._sealing = Sealing(chain, long_work, "claim")

    def seal(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> Decisions[Progress]:
        """Seals the claim, of a job in status OPEN."""
        addresses = self._publishing.addresses(posted, priority)
        if addresses is None:
            return Progress(working=True, state="computes the addresses of log and model")
        if not self._chain.confirmed(posted):
            return Progress(working=True, state="waits until the job lies deep enough")
        secret = self._sealing.keep(posted, self._sealing.of_claim(posted, trees.claim, addresses))
        if secret.checkpoint_root != trees.claim.root:
            # Never on a sound machine: the same job always comes to the same root.
            why = "this run came to another root than an earlier one, which may be sealed already: check this machine"
            yield Tell(What.WARNING, why)
            return Progress(state=why)
        call = self._chain.calls.seal_claim(
            self._chain.job,
            spec_hash=posted.spec_hash,
            seal=self._sealing.seal(secret),
            bond=posted.terms.trainer_bond,
        )
        yield MakeCall("seal the claim", call)
        return Progress(state="seals its claim")

    def open(self, posted: JobView) -> WholeLook:
        """Opens the claim in its window, of a job in status SEALED; never earlier."""
        audits, now, stake = posted.audits, self._chain.now(), posted.terms.trainer_bond
        if now <= audits.audit_deadline:
            return Progress(state="waits for auditors to seal", until=audits.audit_deadline + 1, stake=stake)
        if now > audits.opening_deadline:
            return Leave(f"the claim on job {self._chain.job} was not opened in time, so its bond is lost")
        # In the second half of the window nothing is waited for: the bond is lost at its end.
        late = now > audits.audit_deadline + posted.terms.opening_window // 2
        deadline = audits.opening_deadline
        if not late and not self._chain.is_confirmed_after(audits.audit_deadline):
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
                yield Tell(What.WARNING, f"{why}: publish them with the release that sealed them")
        call = self._chain.calls.open_claim(
            self._chain.job,
            claimed=secret.claimed,
            final_state_root=secret.final_state_root,
            log_cid=secret.log_cid,
            model_cid=secret.model_cid,
            salt=secret.salt,
        )
        text = f"open the claim of checkpoint root 0x{secret.checkpoint_root.hex()}"
        yield MakeCall(text, call)
        return Progress(state="opens its claim", stake=stake, deadline=deadline)

    def finish_publishing(self, posted: JobView) -> None:
        """Publishes log and model of an open claim, if this process has not done so: the claim may have been opened at
        the last moment without a store, or by a process that was killed."""
        priority = Priority(deadline=posted.claim.challenge_deadline, stake=posted.terms.trainer_bond, bonded=True)
        if self._run.trees(posted, priority) is not None:
            self._publishing.published(posted, priority)

    def _again(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> Secret | None:
        """The content of the seal, computed again because its file is lost; None until that is done."""
        addresses = self._publishing.addresses(posted, priority)
        if addresses is None:
            return None
        return self._sealing.keep(posted, self._sealing.of_claim(posted, trees.claim, addresses))
