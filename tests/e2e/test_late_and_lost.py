"""Roles that come late, lose their directory or their node, or are stopped in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.customer_role import CustomerRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.rpc.answers import Block
from tiebreak.rpc.chain_errors import ChainUnavailable
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.signer import Sent
from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer

from tests.e2e.world import TERMS, World, acts, ended
from tests.engine.kept_jobs import kept_job

pytestmark = pytest.mark.slow


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


def test_an_auditor_that_comes_too_late_moves_for_a_silent_one_that_is_right(world: World) -> None:
    world.post()
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    silent = AuditorRole(silenced(world.context("second")), world.job)
    world.run(trainer, silent)
    world.pass_time(world.contract.job(world.job).claim.challenge_deadline - TERMS.clock_allowance // 4)
    late = AuditorRole(world.context("auditor"), world.job)
    other = lying_auditor(silenced(world.context("deployer")), world.job, first_wrong_step=1)
    world.run(other)
    world.pass_challenge_window()
    assert world.contract.job(world.job).live_games == 2
    world.run(late)
    # The first game's clock is out, nothing can be done about it; the liar is nobody to help.
    assert [world.game(i).search.height for i in (1, 2)] == [3, 3]


def test_a_customer_that_hears_of_its_own_move_a_look_later_goes_on(
    quick_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = quick_world
    world.post(kept_job("convolution"))
    customer = world.customer()
    world.run(customer, TrainerRole(world.context("trainer"), world.job))
    world.pass_challenge_window()
    look, late = Sender.poll, []

    def poll(sender: Sender, head: Block | None = None) -> list[Sent]:
        """Nothing yet, the first time that anything is on its way."""
        if sender.pending and not late:
            late.append(sender)
            return []
        return look(sender, head)

    monkeypatch.setattr(Sender, "poll", poll)
    assert acts(customer) and late == [customer.context.sender]
    assert world.status is JobStatus.FINAL
    assert ended(customer).finished and (world.root / "model.safetensors").exists()


def test_a_role_outlives_an_outage_of_the_chain(world: World) -> None:
    world.post()

    class FlakyContract(VerificationGame):
        failures = 3

        def views(self, calls: Sequence[ContractCall], *, block: int | None = None) -> list[Any]:
            if self.failures:
                self.failures -= 1
                raise ChainUnavailable("the node is away: start it.")
            return super().views(calls, block=block)

    context = world.context("customer")
    world.pass_time(world.contract.job(world.job).commit_deadline)
    contract = FlakyContract(world.node, world.contract.address, context.sender)
    customer = CustomerRole(replace(context, contract=contract), world.job, model=world.root / "model")
    assert customer.run(poll=0.01).finished
    assert contract.failures == 0
    assert len(world.said("the node is away")) == 1  # told once, as long as it is the same
    assert world.status is JobStatus.EXPIRED
