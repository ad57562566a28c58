"""The auditor: repeats a claimed training, and attests to the claim, or challenges it and plays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from roundlog.training import job as engine
from roundlog.training.options import StepEvent

from tiebreak.chain.records import GameView, JobStatus, JobView, Outcome, Phase, Side
from tiebreak.roles.agenda import Duty
from tiebreak.roles.contents import fetch_log, require_decidable, require_small_rows
from tiebreak.roles.context import RoleContext
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.overdue import end_appeals, end_overdue, start_waiting
from tiebreak.roles.player import Games
from tiebreak.roles.policy import stakes
from tiebreak.roles.stops import confirm_stop
from tiebreak.roles.workshop import Errand, Lane

_FINDINGS_TOLD = 5
"""Findings that are told one by one. The log of a wrong training has hundreds of thousands, since almost all entries
after its first wrong step are wrong."""

_LOG_SHARE = 8
"""Part of the remaining time that fetching the log may take: 1 / `_LOG_SHARE`. After that the audit goes without the
log."""
_MOST_LOG_SECONDS = 3600.0


class _LogArrived(Exception):
    """The log has arrived while the audit without it is still in its first interval."""


class AuditorRole(JobRole):
    """A role that audits the claim on one job."""

    name = "auditor"

    def __init__(
        self,
        context: RoleContext,
        job: int,
        *,
        verify_log: float = 1.0,
        use_log: bool = True,
        only_with_bond: bool = False,
    ) -> None:
        """verify_log: share of the logged decisions that are verified; 1.0 for all. use_log: False to make every
        decision without the trainer's log. only_with_bond: whether to leave a job unaudited if the policy allows no
        bond on it, so that the machine is free for other jobs."""
        super().__init__(context, job)
        self._verify_log = verify_log
        self._use_log = use_log
        self._only_with_bond = only_with_bond
        self._games = Games(self, Side.CHALLENGER)
        self._told_stakes = False

    # The work.

    def refusal(self, why: str) -> str:
        return f"job {self.job} cannot be audited: {why}"

    def bond_held(self, posted: JobView) -> int:
        mine = self.games(lambda game: game.challenger == self.context.address)
        # The bond of an appeal is the appellant's.
        own = [game for game in mine.values() if not game.is_appeal]
        return sum(game.challenger_bond for game in own if game.phase is not Phase.OVER or game.bond_held)

    def consider(self, posted: JobView) -> Progress:
        if posted.status is JobStatus.EXPIRED:
            return self.leave(f"nobody has committed to job {self.job} in time")
        if posted.status in (JobStatus.OPEN, JobStatus.SEALED):
            return Progress(state="waits for a claim")
        mine = self.games(lambda game: game.challenger == self.context.address)
        self._games.tell_ended(mine)
        held = self.bond_held(posted)
        void = [
            number
            for number, game in mine.items()
            if game.outcome is Outcome.VOID and game.bond_held and not game.is_appeal
        ]
        for number in void:
            self.order("fetch the bond of a void game back", "releaseBond", number, job=self.job, game=number)
        if void:
            return Progress(state="fetches its bond back", stake=held)
        if posted.status is JobStatus.APPEALABLE and held:
            return replace(self._during_appeals(posted, mine), stake=held)
        if posted.status is not JobStatus.CLAIMED:
            return self.leave(f"job {self.job} is {posted.status.name}")
        return replace(self._during_claim(posted, mine), stake=held)

    def _during_appeals(self, posted: JobView, mine: dict[int, GameView]) -> Progress:
        """After a game that this auditor has won: plays it again with each auditor that appeals, since its bond and its
        prize wait for that."""
        live = {number: game for number, game in mine.items() if game.phase is not Phase.OVER}
        if live:
            return self._play(posted, live)
        return end_appeals(self, posted)

    def _during_claim(self, posted: JobView, mine: dict[int, GameView]) -> Progress:
        live = {number: game for number, game in mine.items() if game.phase is not Phase.OVER}
        if live:
            return self._play(posted, live)
        if mine:
            return self.leave("the game is over and the claim stands")
        contract, now = self.context.contract, self.context.now()
        # Attestations are read before the audit and after it, not while it runs.
        asks = "audit" not in self._errands or self._is_audited()
        if asks and contract.has_attested(self.job, self.context.address):
            return self.leave(f"the claim on job {self.job} is right, and this account has said so")
        if now > posted.claim.challenge_deadline and not posted.live_games:
            return self.leave(f"the window for challenges to job {self.job} is closed")
        policy, bond = self.context.policy, posted.terms.challenger_bond
        if (why := policy.objection(posted, bond) if self._only_with_bond else policy.not_worth_it(posted)) is not None:
            return self.leave(f"job {self.job} is left alone: {why}")
        if (missing := self.missing_funds(posted.terms.challenger_bond)) is not None:
            return Progress(state=missing)
        evidence = self._audited(posted, self._duty(posted))
        if evidence is None:
            return Progress(working=True, state="audits", until=posted.claim.challenge_deadline)
        return self._conclude(posted, evidence)

    def _duty(self, posted: JobView) -> Duty:
        return Duty(deadline=posted.claim.challenge_deadline, stake=posted.terms.trainer_bond)

    def _conclude(self, posted: JobView, evidence: Evidence) -> Progress:
        root, claimed = evidence.claim.root, posted.claim.checkpoint_root
        if self.context.now() > posted.claim.challenge_deadline:
            return self._help_others(root == claimed, evidence)
        if root == claimed and evidence.fabricated.needed:
            return self.leave(
                f"the claim on job {self.job} is about a run that has no end, and nothing in it shows that"
            )
        if root != claimed:
            return self._challenge(posted, evidence)
        if posted.terms.attestations_needed:
            return self.leave(
                f"the claim on job {self.job} is right; it asks for attestations with a bond of "
                f"{posted.terms.attestation_bond} wei, which this auditor does not give by itself"
            )
        self.order("attest", "attest", self.job, posted.spec_hash, root, "", "", job=self.job)
        return Progress(state="attests")

    def _challenge(self, posted: JobView, evidence: Evidence) -> Progress:
        root, bond = evidence.claim.root, posted.terms.challenger_bond
        objection = self.context.policy.objection(posted, bond) or self._too_large(evidence.job)
        if objection is None:
            confirmed = self.work(
                Lane.GAMES,
                "stop",
                lambda errand: [confirm_stop(evidence)],
                self._duty(posted),
                "asking for a second opinion on a stop",
                about=root,
            )
            if confirmed is None:
                return Progress(working=True, state="asks for a second opinion on a stop")
            objection = confirmed[0]
        if objection is not None:
            wrong = f"the claim on job {self.job} is wrong (root 0x{root.hex()})"
            return self.leave(f"{wrong}, but not challenged: {objection}")
        if not self.confirmed(posted):
            return Progress(working=True, state="waits until the claim lies deep enough")
        if not self._told_stakes:
            self._told_stakes = True
            self.notify_job(What.COMPUTED, f"found checkpoint root 0x{root.hex()}, which is not the claimed one")
            self.notify_job(What.STAKED, stakes(posted, bond))
        claimed = posted.claim.checkpoint_root
        self.order(
            "challenge the claim",
            "challenge",
            *(self.job, posted.spec_hash, claimed, root),
            value=bond,
            purpose=f"challenge 0x{claimed.hex()} on {self.intention(posted)}",
            job=self.job,
        )
        return Progress(state="challenges")

    def _too_large(self, job: engine.Job) -> str | None:
        """The reason why a disputed step could not be executed here; None if it could. Audits cut batches, but a
        disputed step is executed whole."""
        need, most = engine.run_bytes(job.program, job.spec), self.context.limits.memory_bytes
        if need <= most:
            return None
        return f"a whole step of it takes up to {need} bytes of memory, more than the {most} allowed"

    def _play(self, posted: JobView, mine: dict[int, GameView]) -> Progress:
        running = {number: game for number, game in mine.items() if game.phase is not Phase.QUEUED}
        start_waiting(self, posted)
        # While all own games are queued, games of others whose clocks ran out hold them up.
        end_overdue(self, running or self._live())
        due = min((game.deadlines[Side.CHALLENGER] for game in running.values()), default=0) or None
        duty = Duty(
            deadline=due or self.context.now() + posted.terms.clock_allowance,
            stake=posted.terms.challenger_bond + posted.terms.trainer_bond,
            bonded=True,
        )
        challenged = next(iter(mine.values())).levels[0].roots[Side.CHALLENGER]
        evidence = self._evidence(posted, duty, challenged)
        if evidence is None:
            return Progress(working=True, state="gets its audit ready for a game", deadline=due)
        if not running:
            return Progress(state="waits until its game begins")
        return self._games.play(running, evidence)

    def _help_others(self, claim_is_right: bool, evidence: Evidence) -> Progress:
        """After the challenge deadline: makes moves in the games of others that hold the right root."""
        if claim_is_right:
            return self.leave(f"the claim on job {self.job} is right")
        root, live = evidence.claim.root, self._live()
        mates = {number: game for number, game in live.items() if game.levels[0].roots[Side.CHALLENGER] == root}
        for number, game in mates.items():
            self._games.help_along(number, game, evidence)
        # A game that is lost by the clock is left alone, unless a game that can be won waits behind it.
        waits = any(game.phase is Phase.QUEUED for game in mates.values())
        won = {number: game for number, game in mates.items() if not game.deadlines[Side.CHALLENGER]}
        end_overdue(self, live if waits else won)
        return Progress(state="the claim is wrong, but only the games of others can still show it")

    def _live(self) -> dict[int, GameView]:
        """Games of the job that are not over, including queued ones."""
        return self.games(lambda game: game.phase is not Phase.OVER)

    # The audit.

    def _evidence(self, posted: JobView, duty: Duty, challenged: bytes) -> Evidence | None:
        """The evidence that games are played with; None until it is ready."""
        if not self.files_are_here(posted, duty):
            return None
        if not self._is_audited():
            recalled = self.recalled(posted, duty, "alone", "reading the audit again", root=challenged)
            if recalled is None:
                return None
            if recalled:
                return recalled[0]
        return self._audited(posted, duty)

    def _is_audited(self) -> bool:
        known = self._errands.get("audit")
        return known is not None and known.done and known.error is None

    def _audited(self, posted: JobView, duty: Duty) -> Evidence | None:
        """The audit, resumed or read from its directory; None until it is done."""
        if not duty.bonded:
            require_decidable(self.context, posted)
        if not self.files_are_here(posted, duty):
            return None
        log = self._log(posted, duty) if self._use_log else None
        bonded = duty.bonded
        return self.work(
            Lane.RUNS,
            "audit",
            lambda errand: self._audit(posted, log, errand, bonded),
            duty,
            "the audit",
            about=posted.claim.checkpoint_root,
        )

    def _log(self, posted: JobView, duty: Duty) -> Errand[list[Path]]:
        """The errand that fetches the log. The audit does not wait for it; its result is an empty list if the log
        cannot be had."""
        left = max(0.0, posted.claim.challenge_deadline - self.context.now())
        within = min(_MOST_LOG_SECONDS, left / _LOG_SHARE)
        room = self.context.room(self.job, posted)

        def fetch(errand: Errand[list[Path]]) -> list[Path]:
            found = fetch_log(self.context, posted, room, within=within)
            return [] if found is None else [found]

        return self.begin(Lane.FILES, "log", fetch, duty, "fetching the log", about=posted.claim.log_cid)

    def _audit(
        self, posted: JobView, log: Errand[list[Path]] | None, errand: Errand[Evidence], bonded: bool
    ) -> Evidence:
        """The audit that all statements and bonds rest on. The log is a hint: if it comes late it is left out."""
        job = self.read_job(posted)
        if not bonded:
            require_small_rows(self.context, job)

        def arrived() -> list[Path]:
            return log.result() if log is not None and log.done and log.error is None else []

        def look_for_log(event: StepEvent) -> None:
            if event.step < job.spec.interval and arrived():
                raise _LogArrived

        if not arrived():
            if log is not None and log.done:
                text = f"the log {posted.claim.log_cid} cannot be had: the audit goes without it"
                self.notify_job(What.WARNING, text)
            with suppress(_LogArrived):
                return self._execute(posted, job, None, errand, look_for_log, bonded)
        return self._execute(posted, job, arrived()[0], errand, lambda event: None, bonded)

    def _execute(
        self,
        posted: JobView,
        job: engine.Job,
        log_dir: Path | None,
        errand: Errand[Evidence],
        also: Callable[[StepEvent], None],
        bonded: bool,
    ) -> Evidence:
        on_step = self.on_step(errand, posted, job, "auditing", bonded=bonded)

        def told(event: StepEvent) -> None:
            also(event)
            on_step(event)

        verdict = self.context.engine.audit(
            job,
            self.context.room(self.job, posted) / "alone",
            told,
            claim=posted.claim.checkpoint_root,
            log_dir=log_dir,
            verify_log=self._verify_log,
            on_distrust=lambda why: self.notify_job(What.COMPUTED, f"auditing again without the log: {why}"),
        )
        for finding in verdict.findings[:_FINDINGS_TOLD]:
            where = f"step {finding.step}, operator {finding.operator}, element {finding.element}"
            self.notify_job(What.COMPUTED, f"the log is wrong at {where}: {finding.message}")
        if (more := len(verdict.findings) - _FINDINGS_TOLD) > 0:
            self.notify_job(What.COMPUTED, f"the log has {more} more wrong entries")
        for unreadable in verdict.unreadable:
            self.notify_job(What.WARNING, f"goes on without the log: {unreadable}")
        if verdict.stopped is not None:
            self.notify_job(What.COMPUTED, f"the run has no end: {verdict.stopped}")
        evidence = self.context.engine.evidence(job, verdict.run_dir, verdict.state_roots)
        self.notify_job(What.COMPUTED, f"audited to checkpoint root 0x{evidence.claim.root.hex()}")
        return evidence
