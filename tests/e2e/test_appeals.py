"""Appeals: a winner defends its verdict, and an attester defends its bond where the trainer loses on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiebreak.contract.enums import JobStatus, Outcome, Side
from tiebreak.devnet.embedded import embedded_node
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.transactions.signer import Funds
from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer

from tests.e2e.market import FEE, OPEN, attest, by, pass_appeals, posted
from tests.e2e.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(embedded_node(), tmp_path)


@pytest.mark.slow
def test_an_auditor_that_has_won_plays_the_appeal_and_takes_the_bonds(world: World) -> None:
    world.post(terms=OPEN)
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    world.run(trainer)
    attest(world, "second")
    auditor, customer = AuditorRole(world.context("auditor"), world.job), world.customer()
    world.run(trainer, auditor, customer)
    assert (world.game(1).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.APPEALABLE)

    job = posted(world)
    by(world, "second").send(world.contract.appeal(world.job, spec_hash=job.spec_hash, bond=job.terms.challenger_bond))
    world.run(auditor, customer)
    appeal = world.game(2)
    assert appeal.is_appeal and appeal.deadlines[Side.TRAINER] and not appeal.deadlines[Side.CHALLENGER]
    world.pass_time(appeal.deadlines[Side.TRAINER])
    world.run(auditor, customer)
    assert (world.game(2).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.APPEALABLE)
    pass_appeals(world)
    world.run(auditor, customer)
    assert world.status is JobStatus.REJECTED and world.contract.job(world.job).audits.lost

    gains = world.gains()
    fine = OPEN.trainer_bond + OPEN.attestation_bond
    gas = min(world.game(1).spent[Side.CHALLENGER], fine // 4)
    appealed = min(world.game(2).spent[Side.CHALLENGER], OPEN.challenger_bond // 4)
    won = gas + (fine - gas) // 2 + appealed + (OPEN.challenger_bond - appealed) // 2
    assert gains["auditor"] == won
    assert gains["second"] == -OPEN.attestation_bond - OPEN.challenger_bond
    assert gains["trainer"] == -OPEN.trainer_bond
    assert world.contract_balance() == 0


@pytest.mark.slow
def test_the_first_with_the_root_waits_for_its_half_though_another_one_has_won(world: World) -> None:
    """Its own game is void, and its bond is back, long before the fine is divided."""
    world.post(terms=OPEN)
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    world.run(trainer)
    attest(world, "second")
    first, quicker = (AuditorRole(world.context(name), world.job) for name in ("auditor", "deployer"))
    for count, auditor in ((1, first), (2, quicker)):
        while posted(world).game_count < count:
            auditor.step()
    world.run(trainer, quicker)
    assert (world.game(2).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.APPEALABLE)
    world.run(first)
    assert not world.game(1).bond_held and not first.step().finished
    appellant = by(world, "second")
    appellant.send(appellant.appeal(world.job, spec_hash=posted(world).spec_hash, bond=OPEN.challenger_bond))
    assert "waits for 1 appeal of others" in first.step().state
    world.run(quicker)
    world.pass_time(world.game(3).deadlines[Side.TRAINER] + 100)  # its parties have a head start
    world.run(first)
    assert world.game(3).outcome is Outcome.CHALLENGER_WON, "whoever waits for it ends an appeal that nobody plays"
    pass_appeals(world)
    world.run(first, quicker, world.customer())
    fine = OPEN.trainer_bond + OPEN.attestation_bond
    gas = min(world.game(2).spent[Side.CHALLENGER], fine // 4)
    assert world.gains()["auditor"] == (fine - gas) // 2
    assert world.contract_balance() == 0


def lost_by_silence(world: World) -> tuple[AuditorRole, AuditorRole]:
    """A right claim that its trainer loses to a puppet, by silence. Returns the auditor's and the puppet's roles."""
    world.post(terms=OPEN)
    trainer = TrainerRole(silenced(world.context("trainer")), world.job)
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(trainer, auditor)
    puppet = lying_auditor(world.context("second"), world.job, first_wrong_step=4)
    world.run(trainer, auditor, puppet)
    world.pass_time(world.game(1).deadlines[Side.TRAINER])
    world.run(puppet)
    assert (world.game(1).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.APPEALABLE)
    return auditor, puppet


@pytest.mark.slow
def test_an_auditor_appeals_where_the_trainer_loses_on_purpose_and_wins(world: World) -> None:
    auditor, puppet = lost_by_silence(world)
    assert auditor.step().stake == OPEN.attestation_bond
    world.run(auditor, puppet, world.customer())
    appeal = world.game(2)
    assert appeal.is_appeal and appeal.trainer == world.senders["auditor"].address
    if appeal.outcome is Outcome.NONE:
        assert auditor.step().stake == OPEN.attestation_bond + OPEN.challenger_bond
        world.pass_time(max(appeal.deadlines))
        world.run(auditor, puppet, world.customer())
    assert (world.game(2).outcome, world.status) == (Outcome.TRAINER_WON, JobStatus.REJECTED)
    assert not posted(world).audits.lost
    lost = world.shares(2)
    gains = world.gains()
    assert gains["auditor"] == lost.winner + FEE
    assert gains["second"] == -OPEN.challenger_bond and gains["trainer"] == -OPEN.trainer_bond
    assert gains["customer"] == OPEN.trainer_bond - OPEN.trainer_bond // 2 + lost.customer - FEE
    assert world.contract_balance() == 0


@pytest.mark.slow
def test_an_auditor_that_is_killed_in_its_appeal_carries_on(world: World) -> None:
    auditor, puppet = lost_by_silence(world)
    while world.contract.job(world.job).game_count < 2:
        auditor.step()
    for _ in range(60):
        reborn = AuditorRole(world.context("auditor"), world.job)
        for role in (reborn, puppet):
            role.step()
            role.step()
        if world.game(2).outcome is not Outcome.NONE:
            break
        if world.game(2).deadlines[Side.CHALLENGER] and not puppet.step().acted:
            world.pass_time(world.game(2).deadlines[Side.CHALLENGER])
    assert world.game(2).outcome is Outcome.TRAINER_WON and posted(world).game_count == 2
    world.run(AuditorRole(world.context("auditor"), world.job))
    assert world.gains()["auditor"] == world.shares(2).winner + FEE


@pytest.mark.slow
def test_an_appeal_that_another_one_has_decided_returns_its_bond(world: World) -> None:
    world.post(terms=replace(OPEN, concurrent_games=1, attestations_needed=2))
    trainer = TrainerRole(silenced(world.context("trainer")), world.job)
    first, second = (AuditorRole(world.context(name), world.job) for name in ("auditor", "deployer"))
    world.run(trainer, first, second)
    puppet = lying_auditor(world.context("second"), world.job, first_wrong_step=4)
    world.run(trainer, puppet)
    world.pass_time(world.game(1).deadlines[Side.TRAINER])
    world.run(puppet)
    for _ in range(20):  # both appeal before the puppet moves
        first.step()
        second.step()
    assert posted(world).game_count == 3
    world.run(first, second, puppet)
    if world.game(2).outcome is Outcome.NONE:
        world.pass_time(world.game(2).deadlines[Side.CHALLENGER])
        world.run(first, second, puppet)
    assert (world.game(2).outcome, world.game(3).outcome) == (Outcome.TRAINER_WON, Outcome.VOID)
    assert not world.game(3).bond_held
    gains, share = world.gains(), FEE // 2
    assert (gains["auditor"], gains["deployer"]) == (world.shares(2).winner + share, share)


def test_an_appeal_waits_for_the_money_that_it_takes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    auditor, _ = lost_by_silence(world)
    enough = auditor.context.queue.funds

    def poor(bond: int, clock: float, *, job: int | None = None) -> Funds:
        return replace(enough(bond, clock), balance=OPEN.challenger_bond)

    monkeypatch.setattr(auditor.context.queue, "funds", poor)
    progress = [auditor.step() for _ in range(3)][-1]
    assert "and needs" in progress.state and progress.deadline == posted(world).audits.appeal_deadline
    assert posted(world).game_count == 1
    monkeypatch.undo()
    world.run(auditor)
    assert posted(world).game_count == 2
