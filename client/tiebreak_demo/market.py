"""The story `market`: a job that pays for blind audits, once with a right claim and once with a wrong one.

Three auditors seal: one that has repeated the run, one that has copied what the trainer whispered, and one that lies.
The first has its place before the other two begin, since it takes one as soon as it knows how long its work takes.
Parties are roles in this process, since the order in which they open their audits decides whose game is played first.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from roundlog.commitments import MerkleTree
from tiebreak.contract.contract_calls import Shares, fee_share
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Phase, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.trainer_role import TrainerRole

from tiebreak_demo.adversary.parties import lazy_auditor, lying_auditor, poisoning_trainer
from tiebreak_demo.report import Report, Story, StoryName
from tiebreak_demo.scene import PACE, Scene
from tiebreak_demo.screen import Screen
from tiebreak_demo.stage import TERMS, Stage

_ETHER = 10**18
MARKET = replace(
    TERMS,
    challenger_bond=_ETHER // 2,
    concurrent_games=1,
    attestations_needed=2,
    audit_window=6 * 3600,
    opening_window=6 * 3600,
    audit_fee=15 * _ETHER // 100,
    attestation_bond=_ETHER // 2,
)
"""Terms of docs/economics.md, "What it comes to in money". One game at a time, so the first to open plays first."""

_REST = 0.02
"""Seconds between two looks while nobody has anything to do but wait for its own work."""


def play(scene: Scene, screen: Screen, report: Report, job_dir: Path) -> None:
    """Plays both acts."""
    screen.text(
        "A customer pays 0.15 ether for two audits that are sealed before anybody knows the claim. Three auditors put "
        "0.5 ether on theirs: one has repeated the run, one has copied the trainer's, one lies."
    )
    right_root = b""
    for poisoned in (None, report.steps // 2 + 2):
        title = "a right claim pays audits" if poisoned is None else "a copied root costs a bond"
        story = Story(name=StoryName.MARKET, title=title)
        report.stories.append(story)
        screen.heading(f"Story {len(report.stories)}: {title}")
        parties = [scene.customer, scene.trainer, scene.auditor, scene.lazy, scene.liar, scene.referee]
        with screen.bars(), Stage(scene, screen, story, parties) as stage:
            stage.post(job_dir, MARKET)
            act = _Act(stage, poisoned, lie_at=report.steps // 3 + 1)
            act.play()
            if poisoned is None:
                right_root = act.judge_right()
            else:
                act.judge_wrong(right_root)


class _Act:
    """One job of the story. poisoned: the step that its trainer trains on wrong labels; None for an honest one."""

    def __init__(self, stage: Stage, poisoned: int | None, *, lie_at: int) -> None:
        self._stage, self._scene = stage, stage.scene
        self._poisoned = poisoned
        job, context = stage.job, stage.context
        scene = stage.scene
        trainer = context(scene.trainer)
        self._trainer = (
            TrainerRole(trainer, job) if poisoned is None else poisoning_trainer(trainer, job, poisoned_step=poisoned)
        )
        # Both seal wherever there is place, so that each is seen to get what it deserves.
        liar, lazy = (
            replace(one, policy=replace(one.policy, without_fee=True))
            for one in (context(scene.liar), context(scene.lazy))
        )
        self._liar = lying_auditor(liar, job, first_wrong_step=lie_at)
        self._lazy = lazy_auditor(lazy, job, whispered=stage.run_of(scene.trainer, "run"))
        self._honest = AuditorRole(context(scene.auditor), job)

    @property
    def _job(self) -> JobView:
        return self._scene.contract.job(self._stage.job)

    def play(self) -> None:
        """Lets everybody move until nobody has anything left to do; time passes where nothing else helps."""
        working: list[JobRole] = [self._trainer, self._liar, self._lazy, self._honest]
        idle = 0
        while working:
            late = () if self._job.audits.count else (self._liar, self._lazy)
            progress = {role: role.step() for role in working if role not in late}
            for role, seen in progress.items():
                if seen.finished:
                    role.close()
            working = [role for role in working if role in late or not progress[role].finished]
            acted = any(seen.acted for seen in progress.values())
            busy = acted or any(seen.working for seen in progress.values())
            # Twice: a party that only hears that a block has its move has changed what the one before it sees.
            idle = 0 if busy else idle + 1
            if working and idle == 2:
                idle = 0
                self._pass_time()
            elif not acted:
                time.sleep(self._scene.pace if self._scene.pace > PACE else _REST)
            elif self._scene.pace > PACE:
                time.sleep(self._scene.pace)  # somebody watches
        self._stage.collect()

    def _pass_time(self) -> None:
        job, games = self._job, self._games()
        live = [game for game in games if game.phase not in (Phase.QUEUED, Phase.OVER)]
        if job.status is JobStatus.SEALED:
            words, instant = "the time for audits ends, and the trainer may open its claim", job.audits.audit_deadline
        elif any(game.phase is Phase.QUEUED for game in games) and not live:
            words, instant = "the time to open audits ends, and games begin", job.audits.audit_opening_deadline
        elif live:
            words, instant = "an hour passes", max(deadline for game in live for deadline in game.deadlines)
        elif job.status is JobStatus.APPEALABLE:
            words, instant = "a week passes, in which nobody appeals", job.audits.appeal_deadline
        else:
            words, instant = "a week passes, and the window for challenges closes", job.claim.challenge_deadline
        self._stage.screen.meanwhile(words)
        self._scene.pass_time(instant)

    def _games(self) -> list[GameView]:
        contract = self._scene.contract
        return [contract.game(number) for number in contract.games_of(self._stage.job)]

    # Expected results.

    def judge_right(self) -> bytes:
        """Compares the end of the first act with what is expected; returns the right root."""
        expect, scene, job = self._stage.expect, self._scene, self._job
        (lie,) = self._games()
        expect("the lying auditor has lost its game", Outcome.TRAINER_WON.name, lie.outcome.name)
        expect("two auditors have attested", 2, job.attestations)
        expect("the claim is final", JobStatus.FINAL.name, job.status.name)
        self._expect_own_run(job.claim.checkpoint_root)
        audits = self._scene.contract.audits_of(self._stage.job)
        expect("the honest auditor has the first place", scene.auditor.address, audits[0].auditor)
        lost, share = Shares.of(MARKET.challenger_bond, lie.spent[Side.TRAINER]), fee_share(MARKET)
        self._stage.settle(
            {
                scene.customer: -MARKET.reward - 2 * share + lost.quarter,
                scene.trainer: MARKET.reward + lost.winners,
                scene.auditor: share,
                scene.lazy: share,
                scene.liar: -MARKET.attestation_bond,
            }
        )
        return job.claim.checkpoint_root

    def judge_wrong(self, right_root: bytes) -> None:
        """Compares the end of the second act with what is expected."""
        expect, scene, job = self._stage.expect, self._scene, self._job
        lie, verdict = self._games()
        roots = verdict.levels[0].roots
        expect("the trainer has claimed another root than the right one", True, roots[Side.TRAINER] != right_root)
        expect("the lying auditor has lost its game", Outcome.TRAINER_WON.name, lie.outcome.name)
        expect("the honest auditor has won with the right root", right_root, roots[Side.CHALLENGER])
        expect("by what the contract has computed", Outcome.CHALLENGER_WON.name, verdict.outcome.name)
        place = (level.index for level in verdict.levels[:2])
        found = next(place) * job.spec.training.interval + next(place)
        expect(f"the game has found step {self._poisoned}, the poisoned one", self._poisoned, found)
        audits = self._scene.contract.audits_of(self._stage.job)
        attested = [audit.auditor for audit in audits if audit.status is AuditStatus.ATTESTED]
        expect("the lazy auditor alone has attested to it", [scene.lazy.address], attested)
        expect("the claim is rejected, and the verdict upheld", ("REJECTED", True), (job.status.name, job.audits.lost))
        self._expect_own_run(right_root)
        alarm = Shares.of(MARKET.challenger_bond, lie.spent[Side.TRAINER])
        fine = Shares.of(MARKET.trainer_bond + MARKET.attestation_bond, verdict.spent[Side.CHALLENGER])
        self._stage.settle(
            {
                scene.customer: alarm.quarter + fine.quarter,
                scene.trainer: alarm.winners - MARKET.trainer_bond,
                scene.auditor: fine.winners,
                scene.lazy: -MARKET.attestation_bond,
                scene.liar: -MARKET.attestation_bond,
            }
        )

    def _expect_own_run(self, root: bytes) -> None:
        recorded = (self._stage.run_of(self._scene.auditor, "blind") / "roots").read_bytes()
        leaves = [recorded[i : i + 32] for i in range(0, len(recorded), 32)]
        self._stage.expect("the honest auditor has come to the right root by itself", root, MerkleTree(leaves).root)
