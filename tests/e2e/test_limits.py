"""Roles whose spending is limited: the work that a bond would follow is not begun, and what was begun goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiebreak.contract.enums import JobStatus
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.notices import What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.transactions.spending import DAY
from tiebreak_demo.adversary.parties import poisoning_trainer

from tests.e2e.world import TERMS, World

pytestmark = pytest.mark.slow


def limited(world: World, name: str, *, day: int | None = None, job: int | None = None) -> RoleContext:
    context = world.context(name)
    return replace(context, limits=replace(context.limits, wei_per_day=day, wei_per_job=job))


def test_a_trainer_waits_for_its_day_and_says_until_when(quick_world: World) -> None:
    world = quick_world
    first = world.post()
    trainer = TrainerRole(limited(world, "trainer", day=TERMS.trainer_bond * 3 // 2), first)
    for _ in range(10):
        trainer.step()
    assert world.status is JobStatus.CLAIMED
    claimed = world.contract.job(first).claim.committed_at
    second = world.post()
    context = limited(world, "trainer", day=TERMS.trainer_bond * 3 // 2)
    waiting = TrainerRole(context, second)
    seen = [waiting.step() for _ in range(5)][-1]
    assert seen.state.startswith("--spend-per-day 0.006000000000000001 ether is reached")
    assert seen.until is not None and abs(seen.until - (claimed + DAY)) <= 60
    warnings = [one for one in world.notices if one.what is What.WARNING and "--spend-per-day" in one.text]
    assert len(warnings) == 1 and warnings[0].job == second
    assert not context.room(second, world.contract.job(second)).exists(), "nothing is trained for nothing"
    world.pass_time(seen.until)
    assert world.contract.job(second).commit_deadline > world.node.now()
    for _ in range(10):
        waiting.step()
    assert world.contract.job(second).status is JobStatus.CLAIMED


def test_an_auditor_above_its_limit_leaves_a_wrong_claim_alone(quick_world: World) -> None:
    world = quick_world
    world.post()
    cheat = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    auditor = AuditorRole(limited(world, "auditor", job=TERMS.challenger_bond - 1), world.job)
    world.run(cheat, auditor)
    assert world.status is JobStatus.CLAIMED
    assert world.contract.game_count() == 0
    said = [one.text for one in world.notices if one.what is What.WARNING and "--spend-per-job" in one.text]
    assert len(said) == 1
