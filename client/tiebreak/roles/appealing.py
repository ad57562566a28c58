"""Appealing: the defence of an attestation where the claim was lost by its trainer. An auditor plays the lost game
again, on the trainer's side, before the verdict takes its bond."""

from __future__ import annotations

from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.structs import AuditView, GameView, JobView
from tiebreak.roles.auditing import Auditing
from tiebreak.roles.background_jobs import Priority
from tiebreak.roles.job_on_chain import Decisions, JobOnChain, MakeCall, Tell
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import Games, await_appeals, earliest_deadline, end_overdue
from tiebreak.roles.policy import stakes


class Appealing:
    """The appeal of an auditor in one job."""

    def __init__(self, chain: JobOnChain, long_work: LongWork, auditing: Auditing) -> None:
        self._chain = chain
        self._auditing = auditing
        self._games = Games(chain, long_work, Side.TRAINER)
        self._told_stakes = False

    def games(self) -> dict[int, GameView]:
        """The appeals that this account has made."""
        return self._chain.games(lambda game: game.is_appeal and game.trainer == self._chain.address)

    def consider(self, posted: JobView, audit: AuditView) -> Decisions[Progress]:
        """Do what is due for an attestation to a claim in status APPEALABLE."""
        mine = self.games()
        yield from self._games.tell_ended(mine)
        if live := {number: game for number, game in mine.items() if game.phase is not Phase.OVER}:
            return (yield from self._play(posted, live))
        if not audit.appeal and self._chain.now() <= posted.audits.appeal_deadline:
            return (yield from self._appeal(posted))
        return (yield from await_appeals(self._chain, posted))

    def _appeal(self, posted: JobView) -> Decisions[Progress]:
        chain, bond, deadline = self._chain, posted.terms.challenger_bond, posted.audits.appeal_deadline
        root = posted.claim.checkpoint_root
        if (why := chain.policy.objection(posted, bond)) is not None:
            return (yield from self._gives_up(why, deadline))
        if (missing := (yield from chain.missing_reserve(bond))) is not None:
            return Progress(state=missing, deadline=deadline)
        priority = Priority(deadline=deadline, stake=posted.terms.attestation_bond + bond, bonded=True)
        trees = self._auditing.trees(posted, priority, root)
        if trees is None:
            return Progress(working=True, state="gets its audit ready for an appeal", deadline=deadline)
        if trees.claim.root != root:
            return (yield from self._gives_up(f"its own replay comes to 0x{trees.claim.root.hex()} now", deadline))
        if not chain.confirmed_verdict(posted):
            return Progress(working=True, state="waits until the verdict lies deep enough", deadline=deadline)
        if not self._told_stakes:
            self._told_stakes = True
            lost = f"the claim is right, and was lost in game {posted.audits.verdict}"
            yield Tell(What.STAKED, f"{lost}: {stakes(posted, bond)}")
        purpose = f"appeal against game {posted.audits.verdict} in {chain.intention(posted)}"
        call = chain.calls.appeal(chain.job, spec_hash=posted.spec_hash, bond=bond, purpose=purpose)
        yield MakeCall("appeal against the verdict", call)
        return Progress(state="appeals", deadline=deadline)

    def _gives_up(self, why: str, deadline: int) -> Decisions[Progress]:
        text = f"does not appeal against the verdict on job {self._chain.job}, which takes its bond: {why}"
        yield Tell(What.WARNING, text)
        return Progress(state=text, until=deadline + 1)

    def _play(self, posted: JobView, live: dict[int, GameView]) -> Decisions[Progress]:
        running = {number: game for number, game in live.items() if game.phase is not Phase.QUEUED}
        # While the own appeal is queued, appeals of others whose clocks ran out hold it up.
        yield from end_overdue(self._chain, running or self._chain.live_games())
        due = earliest_deadline(running.values(), Side.TRAINER)
        priority = Priority(
            deadline=due or self._chain.now() + posted.terms.clock_allowance,
            stake=posted.terms.attestation_bond + posted.terms.challenger_bond,
            bonded=True,
        )
        trees = self._auditing.trees(posted, priority, posted.claim.checkpoint_root)
        if trees is None:
            return Progress(working=True, state="gets its audit ready for its appeal", deadline=due)
        if not running:
            return Progress(state="waits until its appeal begins")
        return (yield from self._games.play(running, trees))
