"""Roles in jobs with blind audits: claims and audits that are sealed, opened in their windows, and paid or lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiebreak.contract.contract_calls import Shares
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Phase, Side
from tiebreak.devnet.embedded import embedded_node
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.parties import lazy_auditor, lying_auditor, poisoning_trainer

from tests.e2e.market import (
    BLIND,
    FEE,
    auditors,
    by,
    pass_appeals,
    pass_audits,
    pass_openings,
    posted,
    seal_by_hand,
    sealed,
    statuses,
)
from tests.e2e.world import World, ended

pytestmark = pytest.mark.slow

BOND = BLIND.attestation_bond


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(embedded_node(), tmp_path)


def test_auditors_that_sealed_the_claimed_root_share_the_fee(world: World) -> None:
    world.post(terms=replace(BLIND, attestations_needed=2))
    both, customer = auditors(world, "auditor", "second"), world.customer()
    trainer = sealed(world, customer, *both)
    assert statuses(world) == dict.fromkeys(("auditor", "second"), AuditStatus.SEALED)
    assert trainer.step().stake == BLIND.trainer_bond and both[0].step().stake == BOND
    pass_audits(world)
    world.run(trainer, customer, *both)
    assert statuses(world) == dict.fromkeys(("auditor", "second"), AuditStatus.ATTESTED)
    # The auditors serve what is their own: they needed nothing of the trainer.
    assert all(world.store.has(one.log_cid) for one in world.contract.audits_of(world.job))
    world.pass_challenge_window()
    world.run(trainer, customer, *both)
    assert world.status is JobStatus.FINAL and (world.root / "model.safetensors").exists()
    share = FEE // 2
    gains = {"customer": -BLIND.reward - 2 * share, "trainer": BLIND.reward, "auditor": share, "second": share}
    assert world.gains() == gains and world.contract_balance() == 0


def test_nothing_of_a_sealed_claim_can_be_read_before_it_is_opened(world: World) -> None:
    world.post(terms=BLIND)
    before = set((world.store._root / "blocks").glob("*/*/*"))
    trainer = sealed(world, *auditors(world, "auditor"))
    assert set((world.store._root / "blocks").glob("*/*/*")) == before
    world.pass_time(posted(world).audits.audit_deadline - 1)
    world.run(trainer)
    assert world.status is JobStatus.SEALED and set((world.store._root / "blocks").glob("*/*/*")) == before
    pass_audits(world)
    world.run(trainer)
    assert world.status is JobStatus.CLAIMED
    assert world.store.has(posted(world).claim.log_cid) and world.store.has(posted(world).claim.model_cid)


def test_a_sealed_audit_with_another_root_is_a_challenge_and_wins(world: World) -> None:
    world.post(terms=BLIND)
    (auditor,), customer = auditors(world, "auditor"), world.customer()
    wrong = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    sealed(world, auditor, customer, trainer=wrong)
    pass_audits(world)
    world.run(wrong, auditor, customer)
    assert statuses(world) == {"auditor": AuditStatus.CHALLENGED} and world.game(1).phase is Phase.QUEUED
    assert auditor.step().stake == BOND
    pass_openings(world)
    world.run(wrong, auditor, customer)
    assert (world.game(1).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.REJECTED)
    shares = world.shares()
    assert world.gains() == {
        "customer": shares.customer,
        "trainer": -BLIND.trainer_bond,
        "auditor": shares.winner,
    }
    assert world.contract_balance() == 0


def test_an_audit_that_is_not_finished_in_time_is_not_sealed_and_challenges_later(world: World) -> None:
    world.post(terms=BLIND)
    wrong = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    sealed(world, trainer=wrong)
    late = AuditorRole(world.context("auditor"), world.job)
    pass_audits(world)
    world.run(late)
    assert "audited to" not in "".join(notice.text for notice in world.notices)
    world.run(wrong, late)
    assert posted(world).audits.count == 0 and posted(world).game_count == 1
    pass_openings(world)
    world.run(wrong, late, world.customer())
    assert world.game(1).outcome is Outcome.CHALLENGER_WON


def lazy(world: World, trainer: TrainerRole) -> AuditorRole:
    """An auditor to whom the trainer whispers its run."""
    (run,) = (trainer.context.directory).glob("job-*/run")
    return lazy_auditor(world.context("second"), world.job, whispered=run)


def test_a_lazy_auditor_is_paid_for_a_right_claim(world: World) -> None:
    """Nobody can tell a leaked root from work as long as it is right."""
    world.post(terms=BLIND)
    trainer = sealed(world)
    copier = lazy(world, trainer)
    world.run(copier)
    assert posted(world).audits.count == 1
    pass_audits(world)
    world.run(trainer, copier)
    world.pass_challenge_window()
    world.run(trainer, copier)
    assert world.gains()["second"] == FEE


def test_a_lazy_auditor_loses_its_bond_with_a_wrong_claim_and_the_honest_one_has_its_share(world: World) -> None:
    world.post(terms=replace(BLIND, attestations_needed=2))
    (auditor,), customer = auditors(world, "auditor"), world.customer()
    wrong = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    sealed(world, auditor, customer, trainer=wrong)
    copier = lazy(world, wrong)
    world.run(copier)
    pass_audits(world)
    world.run(wrong, copier, auditor, customer)
    assert statuses(world) == {"auditor": AuditStatus.CHALLENGED, "second": AuditStatus.ATTESTED}
    pass_openings(world)
    world.run(wrong, copier, auditor, customer)
    assert world.status is JobStatus.APPEALABLE
    pass_appeals(world)
    world.run(copier, auditor, customer)
    assert world.status is JobStatus.REJECTED and posted(world).audits.lost
    lost = Shares.of(BLIND.trainer_bond + BOND, world.game(1).spent[Side.CHALLENGER])
    assert world.gains() == {
        "trainer": -BLIND.trainer_bond,
        "second": -BOND,
        "auditor": lost.winners,
        "customer": lost.quarter,
    }
    assert world.contract_balance() == 0


# Parties that do not open.


def test_an_auditor_ends_a_job_whose_claim_is_never_opened_and_has_its_bond_back(world: World) -> None:
    world.post(terms=BLIND)
    seal_by_hand(world)
    (auditor,) = auditors(world, "auditor")
    world.run(auditor)
    world.pass_time(posted(world).audits.opening_deadline + 100)
    world.run(auditor)
    assert world.status is JobStatus.EXPIRED
    assert "has not opened its claim on job 1 in time" in ended(auditor).state
    assert world.gains()["auditor"] == FEE, "its share, out of the trainer's bond"
    assert ended(world.customer()).finished
    assert world.gains()["customer"] == BLIND.trainer_bond - BLIND.trainer_bond // 2


def test_the_customer_takes_its_half_of_an_audit_that_is_not_opened(world: World) -> None:
    world.post(terms=BLIND)
    (auditor,), customer = auditors(world, "auditor"), world.customer()
    trainer = sealed(world, auditor)
    by(world, "second").send(
        world.contract.seal_audit(world.job, spec_hash=posted(world).spec_hash, seal=bytes(32), bond=BOND)
    )
    pass_audits(world)
    world.run(trainer, auditor, customer)
    pass_openings(world)
    world.run(trainer, auditor, customer)
    assert statuses(world) == {"second": AuditStatus.CLOSED, "auditor": AuditStatus.ATTESTED}
    world.pass_challenge_window()
    world.run(trainer, auditor, customer)
    assert world.gains()["second"] == -BOND
    assert world.gains()["customer"] == BOND - BOND // 2 - BLIND.reward - FEE


def test_the_customer_takes_its_half_though_others_have_ended_the_claim_meanwhile(world: World) -> None:
    world.post(terms=BLIND)
    (auditor,) = auditors(world, "auditor")
    trainer = sealed(world, auditor)
    by(world, "second").send(
        world.contract.seal_audit(world.job, spec_hash=posted(world).spec_hash, seal=bytes(32), bond=BOND)
    )
    pass_audits(world)
    world.run(trainer, auditor)
    world.pass_challenge_window()
    world.run(trainer, auditor)
    assert world.status is JobStatus.FINAL and statuses(world)["second"] is AuditStatus.SEALED
    world.run(world.customer())
    assert world.gains()["customer"] == BOND - BOND // 2 - BLIND.reward - FEE


def test_waiting_games_are_started_by_whoever_they_hold_up(world: World) -> None:
    world.post(terms=BLIND)
    claim = seal_by_hand(world)
    pass_audits(world)
    claim.open()
    liar = lying_auditor(world.context("auditor"), world.job, first_wrong_step=4)
    world.run(liar)
    trainer, customer = TrainerRole(world.context("trainer"), world.job), world.customer()
    world.run(trainer, customer)
    assert world.game(1).phase is Phase.QUEUED
    pass_openings(world)
    world.run(trainer, customer, liar)
    assert world.game(1).phase not in (Phase.NONE, Phase.QUEUED)
    if world.game(1).phase is not Phase.OVER:
        world.pass_time(max(world.game(1).deadlines))
        world.run(trainer, customer)
    assert world.game(1).outcome is Outcome.TRAINER_WON
    world.pass_challenge_window()
    world.run(trainer, customer)
    assert world.status is JobStatus.LAPSED
