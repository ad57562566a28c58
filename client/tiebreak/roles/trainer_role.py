"""The trainer: trains, publishes log and model, claims the result, and defends the claim until it is paid. Where audits
are blind it seals its claim first, and publishes when it opens it."""

from __future__ import annotations

from dataclasses import replace

from tiebreak.contract.enums import JobStatus, Phase, Side
from tiebreak.contract.struct_bases import ANYONE
from tiebreak.contract.structs import JobView
from tiebreak.roles.background_jobs import Priority
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.fetched_content import require_decidable
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import Games, earliest_deadline, end_overdue, start_waiting
from tiebreak.roles.policy import stakes
from tiebreak.roles.publishing import PublishedAddresses, Publishing
from tiebreak.roles.sealed_claim import RUN, SealedClaim, TrainedRun

_HELD = (JobStatus.SEALED, JobStatus.CLAIMED)
"""Statuses in which a job holds its trainer's bond and the trainer can still do something for it."""


class TrainerRole(JobRole):
    """A role that trains one job, claims the result and defends the claim."""

    name = "trainer"

    def __init__(self, context: RoleContext, job: int, *, publish_every: int = 0) -> None:
        """publish_every: publish every so many checkpoints, for audits by many workers; 0 for none."""
        super().__init__(context, job)
        self._games = Games(self.chain, self.long_work, Side.TRAINER)
        self._run = TrainedRun(self.long_work)
        self._publishing = Publishing(self.long_work, RUN, publish_every)
        self._sealed = SealedClaim(self.chain, self.long_work, self._run, self._publishing)
        self._told_stakes = False

    # The work.

    def refusal(self, why: str) -> str:
        return f"job {self.job} cannot be trained: {why}"

    def bond_held(self, posted: JobView) -> int:
        mine = posted.status in _HELD and posted.claim.trainer == self.context.address
        return posted.terms.trainer_bond if mine else 0

    def consider(self, posted: JobView) -> Progress:
        if posted.status is not JobStatus.OPEN:
            return self._after_commit(posted)
        if posted.terms.trainer not in (ANYONE, self.context.address):
            return self.leave(f"job {self.job} is reserved for {posted.terms.trainer}")
        if (objection := self.context.policy.objection(posted, posted.terms.trainer_bond)) is not None:
            return self.leave(f"job {self.job} is left alone: {objection}")
        if self.context.now() > posted.commit_deadline:
            return self.leave(f"nobody has committed to job {self.job} in time")
        require_decidable(self.context, posted)
        if (missing := self.carry_out(self.chain.missing_funds(posted.terms.trainer_bond))) is not None:
            return Progress(state=missing)
        if not self._told_stakes:
            # Told before the work, so that a user can object in time.
            self.notify_job(What.STAKED, stakes(posted, posted.terms.trainer_bond))
            self._told_stakes = True
        priority = Priority(deadline=posted.commit_deadline, stake=posted.terms.reward)
        if not self.long_work.files_are_here(posted, priority):
            return Progress(working=True, state="fetches the job's files", until=posted.commit_deadline)
        trees = self._run.trained(posted, priority)
        if trees is None:
            self._publishing.publish_so_far(posted, priority)
            return Progress(working=True, state="trains", until=posted.commit_deadline)
        if posted.terms.opening_window:
            return self.progress_of(self._sealed.seal(posted, trees, priority))
        addresses = self._publishing.published(posted, priority)
        if addresses is None:
            return Progress(working=True, state="publishes log and model", until=posted.commit_deadline)
        return self._commit(posted, trees, addresses)

    def _after_commit(self, posted: JobView) -> Progress:
        if posted.claim.trainer != self.context.address:
            return self.leave(f"job {self.job} was not claimed by this trainer")
        if posted.status is JobStatus.SEALED:
            return self.progress_of(self._sealed.open(posted))
        if posted.status is not JobStatus.CLAIMED:
            return self.leave(f"job {self.job} is {posted.status.name}")
        return self._defend(posted)

    def _commit(self, posted: JobView, trees: DisputeTrees, addresses: PublishedAddresses) -> Progress:
        if not self.chain.confirmed(posted):
            return Progress(working=True, state="waits until the job lies deep enough")
        claim = trees.claim
        call = self.context.contract.commit(
            self.job,
            spec_hash=posted.spec_hash,
            claimed=claim.as_next_root(),
            final_state_root=claim.payloads[-1],
            log_cid=addresses.log_cid,
            model_cid=addresses.model_cid,
            bond=posted.terms.trainer_bond,
        )
        self.order(f"commit to checkpoint root 0x{claim.root.hex()}", call, job=self.job)
        return Progress(state="commits")

    def _defend(self, posted: JobView) -> Progress:
        stake = posted.terms.trainer_bond
        if posted.game_count:
            self.carry_out(self._games.tell_ended(self.chain.games(lambda game: True)))
        self.carry_out(start_waiting(self.chain, posted))
        if posted.live_games or posted.queued_games:
            return self._play(posted, stake)
        if posted.terms.opening_window and not self._publishing.is_done:
            self._sealed.finish_publishing(posted)
        else:
            self._run.rest()
        if self.context.now() <= posted.claim.challenge_deadline:
            return Progress(
                state="waits for the challenge window to close", until=posted.claim.challenge_deadline + 1, stake=stake
            )
        self.order("finalize", self.context.contract.finalize(self.job), job=self.job)
        return Progress(state="finalizes", stake=stake)

    def _play(self, posted: JobView, stake: int) -> Progress:
        games = self.chain.games(lambda game: game.phase not in (Phase.OVER, Phase.QUEUED))
        # Every game delays the claim. A silent challenger loses by the clock, for which nothing has to be computed.
        self.carry_out(end_overdue(self.chain, games))
        due = earliest_deadline(games.values(), Side.TRAINER)
        later = self.context.now() + posted.terms.clock_allowance
        priority = Priority(deadline=due or later, stake=stake, bonded=True)
        trees = self._run.trees(posted, priority)
        if trees is None:
            return Progress(working=True, state="gets its run ready for a game", stake=stake, deadline=due)
        return replace(self.carry_out(self._games.play(games, trees)), stake=stake)
