"""The auditor: repeats a claimed training, and attests to the claim, or challenges it and plays.

Its parts stand in files of their own: the audit (`auditing`), and attestations with a bond, also those that are sealed
before the claim is known (`attesting`). `Appealing` is the defence of an attestation."""

from __future__ import annotations

from dataclasses import replace

from tiebreak.contract.contract_calls import ANY_PLACE, ContractCall
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Phase, Side
from tiebreak.contract.structs import AuditView, GameView, JobView
from tiebreak.roles.attesting import Attesting, BlindAudits, bond_in
from tiebreak.roles.auditing import Auditing
from tiebreak.roles.background_jobs import Priority
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import Games, await_appeals, end_overdue, start_waiting
from tiebreak.roles.policy import stakes
from tiebreak.roles.shared_audits import Workers


class Appealing:
    """The appeal of an auditor in one job."""

    def __init__(self, role: JobRole, long_work: LongWork, auditing: Auditing) -> None:
        self._role = role
        self._auditing = auditing
        self._games = Games(role, long_work, Side.TRAINER)

    def games(self) -> dict[int, GameView]:
        """Return the appeals that this account has made."""
        return self._role.games(lambda game: game.is_appeal and game.trainer == self._role.address)

    def consider(self, posted: JobView, audit: AuditView) -> Progress:
        """Do what is due for an attestation to a claim in status APPEALABLE."""
        mine = self.games()
        self._games.tell_ended(mine)
        if live := {number: game for number, game in mine.items() if game.phase is not Phase.OVER}:
            stake, root = posted.terms.attestation_bond + posted.terms.challenger_bond, posted.claim.checkpoint_root
            return self._games.play_running(
                posted, live, stake, lambda priority: self._auditing.trees(posted, priority, root)
            )
        if not audit.appeal and self._role.now() <= posted.audits.appeal_deadline:
            return self._appeal(posted)
        return await_appeals(self._role, posted)

    def _appeal(self, posted: JobView) -> Progress:
        role, bond, deadline = self._role, posted.terms.challenger_bond, posted.audits.appeal_deadline
        root = posted.claim.checkpoint_root
        if (why := role.policy.objection(posted, bond)) is not None:
            return self._gives_up(why, deadline)
        if (missing := role.missing_reserve(bond)) is not None:
            return Progress(state=missing, deadline=deadline)
        priority = Priority(deadline=deadline, stake=posted.terms.attestation_bond + bond, bonded=True)
        trees = self._auditing.trees(posted, priority, root)
        if trees is None:
            return Progress(working=True, state="gets its audit ready for an appeal", deadline=deadline)
        if trees.claim.root != root:
            return self._gives_up(f"its own replay comes to 0x{trees.claim.root.hex()} now", deadline)
        if not role.confirmed_verdict(posted):
            return Progress(working=True, state="waits until the verdict lies deep enough", deadline=deadline)
        lost = f"the claim is right, and was lost in game {posted.audits.verdict}"
        role.tell(What.STAKED, f"{lost}: {stakes(posted, bond)}")
        about = f" against game {posted.audits.verdict}"
        call = role.calls.paying("appeal", role.job, spec_hash=posted.spec_hash, bond=bond, about=about)
        role.order("appeal against the verdict", call)
        return Progress(state="appeals", deadline=deadline)

    def _gives_up(self, why: str, deadline: int) -> Progress:
        text = f"does not appeal against the verdict on job {self._role.job}, which takes its bond: {why}"
        self._role.tell(What.WARNING, text)
        return Progress(state=text, until=deadline + 1)


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
        workers: Workers | None = None,
    ) -> None:
        """verify_log: share of the logged decisions that are verified; 1.0 for all. use_log: False to make every
        decision without the trainer's log. only_with_bond: whether to leave a job unaudited if the policy allows no
        bond on it, so that the machine is free for other jobs. workers: who audits claims whose checkpoints are
        published, in place of this process alone; audits that are sealed are made here all the same."""
        super().__init__(context, job)
        self._only_with_bond = only_with_bond
        self._games = Games(self, self.long_work, Side.CHALLENGER)
        self._auditing = Auditing(self.long_work, verify_log=verify_log, use_log=use_log, workers=workers)
        self._attesting = Attesting(self, self.long_work)
        self._blind = BlindAudits(self, self.long_work, self._auditing, self._attesting)
        self._appealing = Appealing(self, self.long_work, self._auditing)
        self._told_stakes = False

    # The work.

    def refusal(self, why: str) -> str:
        return f"job {self.job} cannot be audited: {why}"

    def bond_held(self, posted: JobView) -> int:
        begun = self._challenges() | self._appealing.games()
        # A challenger's bond in an appeal is that of the game which it has won.
        own = [game for game in begun.values() if self._began(game)]
        bonds = sum(game.challenger_bond for game in own if game.phase is not Phase.OVER or game.bond_held)
        return bonds + bond_in(posted, self.audit(), self.now())

    def _challenges(self) -> dict[int, GameView]:
        """Return games in which this account is the challenger; also of appeals against a game that it has won."""
        return self.games(lambda game: game.challenger == self.address)

    def _began(self, game: GameView) -> bool:
        """Return whether the bond of a game's beginning is this account's."""
        return self.address == (game.trainer if game.is_appeal else game.challenger)

    def consider(self, posted: JobView) -> Progress:
        if posted.status is JobStatus.OPEN:
            return Progress(state="waits for a claim")
        mine, audit = self._challenges(), self.audit()
        self._games.tell_ended(mine)
        held = self.bond_held(posted)
        void = [
            number
            for number, game in (mine | self._appealing.games()).items()
            if game.outcome is Outcome.VOID and game.bond_held and self._began(game)
        ]
        for number in void:
            call = ContractCall.of("releaseBond", number)
            self.order("fetch the bond of a void game back", call, game=number)
        if void:
            return Progress(state="fetches its bond back", stake=held)
        return replace(self._consider(posted, mine, audit, held), stake=held)

    def _consider(self, posted: JobView, mine: dict[int, GameView], audit: AuditView | None, held: int) -> Progress:
        """Do what is due for a job on which there is or was a claim. mine: challenges; held: wei of bonds."""
        attested = audit is not None and audit.status is AuditStatus.ATTESTED
        match posted.status:
            case JobStatus.SEALED:
                if not posted.terms.opening_window:
                    return Progress(state="waits for a claim")
                return self._during_seals(posted, audit)
            case JobStatus.CLAIMED:
                return self._during_claim(posted, mine, audit)
            case JobStatus.APPEALABLE if audit is not None and attested:
                return self._appealing.consider(posted, audit)
            case JobStatus.APPEALABLE if held or self._has_a_share(posted, mine):
                # Bond and prize wait until it has played again with each auditor that appeals.
                live = {number: game for number, game in mine.items() if game.phase is not Phase.OVER}
                return self._play(posted, live) if live else await_appeals(self, posted)
        if (collecting := self._attesting.collect(posted, audit)) is not None:
            return collecting
        if attested and posted.audits.lost:
            return self.leave(f"job {self.job} is REJECTED, and the verdict has taken the bond of the attestation")
        if posted.status is JobStatus.EXPIRED:
            was_sealed = posted.audits.opening_deadline
            late = "the trainer has not opened its claim on" if was_sealed else "nobody has committed to"
            return self.leave(f"{late} job {self.job} in time")
        return self.leave(f"job {self.job} is {posted.status.name}")

    def _has_a_share(self, posted: JobView, mine: dict[int, GameView]) -> bool:
        """Return whether a challenge of this auditor, which another one's verdict has made void, holds the root that
        has won: half of the fine is the first such challenger's, and is paid at the end of the appeals only."""
        won = self.context.queue.games_of(self.job)[posted.audits.verdict].levels[0].roots
        return any(game.outcome is Outcome.VOID and game.levels[0].roots == won for game in mine.values())

    def _during_seals(self, posted: JobView, audit: AuditView | None) -> Progress:
        """Do what is due while claim and audits are sealed."""
        if (why := self._unwanted(posted)) is not None and audit is None:
            return self.leave(f"job {self.job} is left alone: {why}")
        return self._blind.before_opening(posted, audit)

    def _unwanted(self, posted: JobView) -> str | None:
        """Return the objection, in one clause, to an audit of this job; None if there is none."""
        policy, bond = self.policy, posted.terms.challenger_bond
        return policy.objection(posted, bond) if self._only_with_bond else policy.not_worth_it(posted)

    def _during_claim(self, posted: JobView, mine: dict[int, GameView], audit: AuditView | None) -> Progress:
        live = {number: game for number, game in mine.items() if game.phase is not Phase.OVER}
        if live:
            return self._play(posted, live)
        if mine:
            return self.leave("the game is over and the claim stands")
        now = self.now()
        if audit is not None and audit.status is AuditStatus.ATTESTED:
            if not posted.terms.opening_window or self._blind.is_published(posted):
                self._auditing.rest()
            return self._attesting.await_end(posted)
        is_sealed = audit is not None and audit.status is AuditStatus.SEALED
        if audit is not None and is_sealed and not self._blind.is_never_filled(posted, audit):
            if now <= posted.audits.audit_opening_deadline:
                return self._blind.open(posted, audit)
            self.tell(What.WARNING, "its sealed audit was not opened in time, so its bond is lost")
        # Attestations are read before the audit and after it, not while it runs.
        asks = not posted.terms.attestations_needed and not self._auditing.is_under_way
        if asks and self.context.contract.has_attested(self.job, self.address):
            return self.leave(f"the claim on job {self.job} is right, and this account has said so")
        if now > posted.claim.challenge_deadline and not posted.live_games:
            return self.leave(f"the window for challenges to job {self.job} is closed")
        if (why := self._unwanted(posted)) is not None:
            return self.leave(f"job {self.job} is left alone: {why}")
        if (missing := self.missing_funds(posted.terms.challenger_bond)) is not None:
            return Progress(state=missing)
        trees = self._auditing.audited(posted, self._priority(posted))
        if trees is None:
            return Progress(working=True, state="audits", until=posted.claim.challenge_deadline)
        return self._conclude(posted, trees)

    def _priority(self, posted: JobView) -> Priority:
        return Priority(deadline=posted.claim.challenge_deadline, stake=posted.terms.trainer_bond)

    def _conclude(self, posted: JobView, trees: DisputeTrees) -> Progress:
        root, claimed = trees.claim.root, posted.claim.checkpoint_root
        if root == claimed and (missing := self._auditing.unaudited) is not None:
            return self.leave(f"nothing wrong was found in the claim on job {self.job}, and {missing}")
        if self.now() > posted.claim.challenge_deadline:
            return self._help_others(root == claimed, trees)
        if root == claimed and trees.fabricated.needed:
            return self.leave(
                f"the claim on job {self.job} is about a run that has no end, and nothing in it shows that"
            )
        if root != claimed:
            return self._challenge(posted, trees)
        if posted.terms.opening_window:
            return self.leave(f"the claim on job {self.job} is right, and attestations had to be sealed before it")
        if posted.terms.attestations_needed:
            if (why := self._auditing.too_large(trees.job)) is not None:
                return self.leave(f"the claim on job {self.job} is right, and gets no attestation from here: {why}")
            return self._attesting.attest(posted, trees, self._priority(posted))
        self.order("attest", ContractCall.of("attest", self.job, posted.spec_hash, root, "", "", ANY_PLACE))
        return Progress(state="attests")

    def _challenge(self, posted: JobView, trees: DisputeTrees) -> Progress:
        root, bond = trees.claim.root, posted.terms.challenger_bond
        objection = self.policy.objection(posted, bond)
        if objection is None:
            doubts = self._auditing.doubts(posted, trees, self._priority(posted))
            if doubts is None:
                return Progress(working=True, state="asks for a second opinion on a stop")
            objection = doubts[0]
        if objection is not None:
            wrong = f"the claim on job {self.job} is wrong (root 0x{root.hex()})"
            return self.leave(f"{wrong}, but not challenged: {objection}")
        if not self.confirmed(posted):
            return Progress(working=True, state="waits until the claim lies deep enough")
        if not self._told_stakes:
            self._told_stakes = True
            self.tell(What.COMPUTED, f"found checkpoint root 0x{root.hex()}, which is not the claimed one")
            self.tell(What.STAKED, stakes(posted, bond))
        claimed = posted.claim.checkpoint_root
        call = self.calls.paying(
            "challenge",
            self.job,
            spec_hash=posted.spec_hash,
            bond=bond,
            about=f" 0x{claimed.hex()}",
            claimed_root=claimed,
            checkpoint_root=root,
        )
        self.order("challenge the claim", call)
        return Progress(state="challenges")

    def _play(self, posted: JobView, mine: dict[int, GameView]) -> Progress:
        start_waiting(self, posted)
        challenged = next(iter(mine.values())).levels[0].roots[Side.CHALLENGER]
        stake = posted.terms.challenger_bond + posted.terms.trainer_bond
        return self._games.play_running(
            posted, mine, stake, lambda priority: self._auditing.trees(posted, priority, challenged)
        )

    def _help_others(self, claim_is_right: bool, trees: DisputeTrees) -> Progress:
        """Make moves after the challenge deadline, in the games of others that hold the right root."""
        if claim_is_right:
            return self.leave(f"the claim on job {self.job} is right")
        root, live = trees.claim.root, self.live_games()
        mates = {number: game for number, game in live.items() if game.levels[0].roots[Side.CHALLENGER] == root}
        for number, game in mates.items():
            self._games.help_along(number, game, trees)
        # A game that is lost by the clock is left alone, unless a game that can be won waits behind it.
        waits = any(game.phase is Phase.QUEUED for game in mates.values())
        won = {number: game for number, game in mates.items() if not game.deadlines[Side.CHALLENGER]}
        end_overdue(self, live if waits else won)
        return Progress(state="the claim is wrong, but only the games of others can still show it")
