"""Roles in jobs that need attestations: a winner defends its verdict, waiting games are started, what cannot be done by
itself is left alone in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from tiebreak.adversary.parties import lying_auditor, poisoning_trainer
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.node import connect
from tiebreak.chain.records import AuditStatus, JobStatus, Outcome, Phase, Side
from tiebreak.chain.seals import claim_seal, new_salt
from tiebreak.game import Leaves
from tiebreak.roles.auditor import AuditorRole
from tiebreak.roles.trainer import TrainerRole
from world import TERMS, World, ended, with_terms

FEE = 10**14 + 1
OPEN = with_terms(attestations_needed=1, audit_fee=FEE, attestation_bond=10**15)
BLIND = with_terms(
    attestations_needed=1,
    audit_fee=FEE,
    attestation_bond=TERMS.challenger_bond,
    audit_window=3600,
    opening_window=3600,
)
CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(connect("embedded"), tmp_path)


def by(world: World, name: str) -> VerificationGame:
    return world.contract.by(world.senders[name])


def attest(world: World, name: str) -> None:
    posted = world.contract.job(world.job)
    by(world, name).attest(
        world.job,
        spec_hash=posted.spec_hash,
        checkpoint_root=posted.claim.checkpoint_root,
        log_cid=CID,
        model_cid=CID,
        bond=posted.terms.attestation_bond,
    )


def seal_and_open(world: World) -> None:
    """The trainer's right claim, sealed and opened by hand."""
    job = Job.read(world.root / "files")
    result = Trainer(job, world.root / "by hand").run()
    tree = Leaves(list(result.state_roots))
    salt, contract = new_salt(), by(world, "trainer")
    facts = {"checkpoint_root": tree.root, "final_state_root": tree.payloads[-1], "log_cid": CID, "model_cid": CID}
    seal = claim_seal(
        world.node.chain_id, contract.address, world.job, world.senders["trainer"].address, **facts, salt=salt
    )
    posted = world.contract.job(world.job)
    contract.seal_claim(world.job, spec_hash=posted.spec_hash, seal=seal, bond=posted.terms.trainer_bond)
    world.pass_time(world.contract.job(world.job).audits.audit_deadline)
    contract.open_claim(world.job, **facts, proof=tree.as_next_root().last_leaf_proof, salt=salt)


def test_an_auditor_that_has_won_plays_the_appeal_and_takes_the_bonds(world: World) -> None:
    world.post(terms=OPEN)
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    world.run(trainer)
    attest(world, "second")
    auditor, customer = AuditorRole(world.context("auditor"), world.job), world.customer()
    world.run(trainer, auditor, customer)
    assert (world.game(1).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.APPEALABLE)

    posted = world.contract.job(world.job)
    by(world, "second").appeal(world.job, spec_hash=posted.spec_hash, bond=posted.terms.challenger_bond)
    world.run(auditor, customer)
    appeal = world.game(2)
    assert appeal.is_appeal and appeal.deadlines[Side.TRAINER] and not appeal.deadlines[Side.CHALLENGER]
    world.pass_time(appeal.deadlines[Side.TRAINER])
    world.run(auditor, customer)
    assert (world.game(2).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.APPEALABLE)
    world.pass_time(posted.audits.appeal_deadline)
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


def test_a_right_claim_that_needs_attestations_is_audited_and_not_attested_for_nothing(world: World) -> None:
    world.post(terms=OPEN)
    trainer = TrainerRole(world.context("trainer"), world.job)
    world.run(trainer)
    last = ended(AuditorRole(world.context("auditor"), world.job))
    assert "is right; it asks for attestations with a bond of 1000000000000000 wei" in last.state
    assert world.contract.job(world.job).attestations == 0
    attest(world, "second")
    world.pass_challenge_window()
    world.run(trainer, world.customer())
    assert world.status is JobStatus.FINAL and (world.root / "model.safetensors").exists()
    by(world, "second").collect(world.job, world.senders["second"].address)
    by(world, "second").withdraw()
    assert world.gains() == {
        "customer": -OPEN.reward - FEE,
        "trainer": OPEN.reward,
        "second": FEE,
    }


def test_a_lapsed_claim_refunds_the_customer(world: World) -> None:
    world.post(terms=OPEN)
    trainer, customer = TrainerRole(world.context("trainer"), world.job), world.customer()
    world.run(trainer, customer)
    world.pass_challenge_window()
    world.run(trainer, customer)
    assert world.status is JobStatus.LAPSED
    assert world.gains() == {}
    assert world.contract_balance() == 0


def test_a_blind_job_is_left_alone_by_a_trainer_that_seals_nothing(world: World) -> None:
    world.post(terms=BLIND)
    last = ended(TrainerRole(world.context("trainer"), world.job))
    assert "its audits are blind" in last.state


def test_waiting_games_of_a_blind_job_are_started_by_whoever_they_hold_up(world: World) -> None:
    world.post(terms=BLIND)
    seal_and_open(world)
    liar = lying_auditor(world.context("auditor"), world.job, first_wrong_step=4)
    world.run(liar)
    trainer, customer = TrainerRole(world.context("trainer"), world.job), world.customer()
    world.run(trainer, customer)
    assert world.game(1).phase is Phase.QUEUED
    world.pass_time(world.contract.job(world.job).audits.audit_opening_deadline)
    world.run(trainer, customer, liar)
    assert world.game(1).phase not in (Phase.NONE, Phase.QUEUED)
    if world.game(1).phase is not Phase.OVER:
        world.pass_time(max(world.game(1).deadlines))
        world.run(trainer, customer)
    assert world.game(1).outcome is Outcome.TRAINER_WON
    world.pass_challenge_window()
    world.run(trainer, customer)
    assert world.status is JobStatus.LAPSED


def test_a_seal_that_is_never_opened_returns_the_reward(world: World) -> None:
    world.post(terms=BLIND)
    posted = world.contract.job(world.job)
    by(world, "trainer").seal_claim(
        world.job, spec_hash=posted.spec_hash, seal=bytes(32), bond=posted.terms.trainer_bond
    )
    by(world, "second").seal_audit(
        world.job, spec_hash=posted.spec_hash, seal=bytes(32), bond=posted.terms.attestation_bond
    )
    customer = world.customer()
    world.run(customer)
    assert world.status is JobStatus.SEALED
    world.pass_time(world.contract.job(world.job).audits.opening_deadline)
    world.run(customer)
    assert world.status is JobStatus.EXPIRED
    assert world.contract.audits_of(world.job)[0].status is AuditStatus.SEALED
    by(world, "customer").collect(world.job, world.senders["second"].address)
    by(world, "second").withdraw()
    burnt = BLIND.trainer_bond // 2
    assert world.gains() == {"customer": BLIND.trainer_bond - burnt, "trainer": -BLIND.trainer_bond}
