"""Content that a trainer has published is kept until its claim is final and its time is up, and no longer if asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiebreak.contract.enums import JobStatus
from tiebreak.roles.notices import What
from tiebreak.roles.published_content import Keeper, PublishedContent
from tiebreak.roles.trainer_role import TrainerRole

from tests.e2e.world import World, acts, conv_task, ended

pytestmark = pytest.mark.slow

DAY = 86_400


def test_log_and_model_are_unpinned_thirty_days_after_the_claim_is_final(quick_world: World) -> None:
    world = quick_world
    world.post(conv_task())
    (posted,) = world.store.pins()
    context = world.context("trainer")
    published = PublishedContent(world.store, context.directory)
    trainer = TrainerRole(replace(context, store=published), world.job)
    keeper = Keeper("trainer", published, world.contract, world.notices.append, 30 * DAY)
    world.run(world.customer(), trainer)
    keeper.round()
    claim = world.contract.job(world.job).claim
    assert set(world.store.pins()) == {posted, claim.log_cid, claim.model_cid}
    assert published.held() == {claim.log_cid, claim.model_cid}

    world.pass_challenge_window()
    customer = world.customer()
    assert acts(customer) and ended(trainer).finished and ended(customer).finished
    assert world.status is JobStatus.FINAL
    keeper.round()
    world.pass_time(world.node.now() + 29 * DAY)
    keeper.round()
    assert len(world.store.pins()) == 3

    world.pass_time(world.node.now() + 2 * DAY)
    again = Keeper(
        "trainer", PublishedContent(world.store, context.directory), world.contract, world.notices.append, 30 * DAY
    )
    again.round()
    assert world.store.pins() == [posted] and not world.store.has(claim.model_cid)
    assert [notice.job for notice in world.notices if notice.what is What.UNPINNED] == [world.job] * 2
