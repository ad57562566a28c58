"""Jobs whose audits are paid, open or blind: seals, attestations, appeals, what is served, and what each gains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiebreak.contract.contract_calls import ANY_PLACE
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.customer_role import CustomerRole
from tiebreak.roles.policy import Policy
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.store import Store
from tiebreak.store.dag_reader import Plan
from tiebreak.store.store_errors import FetchTooSlow
from tiebreak.transactions.signer import Funds
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer, silenced

from tests.adversaries import withholding
from tests.e2e.market import (
    BLIND,
    CID,
    FEE,
    OPEN,
    attest,
    audit,
    auditors,
    by,
    context,
    pass_appeals,
    pass_audits,
    posted,
    sealed,
)
from tests.e2e.world import World, ended


@pytest.fixture
def world(embedded_world: World) -> World:
    return embedded_world


BOND = BLIND.attestation_bond


@pytest.mark.slow
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


# Parties that do not open.


def attest_with_model(world: World) -> Path:
    """The second auditor attests to the model that the trainer has made, and says where it lies. Gives its file."""
    (model,) = (world.root / "trainer").glob("job-*/run/checkpoints/00000015.safetensors")
    by(world, "second").send(
        world.contract.paying(
            "attest",
            world.job,
            spec_hash=posted(world).spec_hash,
            checkpoint_root=posted(world).claim.checkpoint_root,
            log_cid=posted(world).claim.log_cid,
            model_cid=world.store.address_of_file(model),
            bond=OPEN.attestation_bond,
            last_place=ANY_PLACE,
        )
    )
    return model


def test_an_honest_auditor_attests_serves_the_model_and_is_paid(world: World) -> None:
    world.post(terms=OPEN)
    trainer, customer = TrainerRole(world.context("trainer"), world.job), world.customer()
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(trainer, customer, auditor)
    mine, claim = audit(world, "auditor"), posted(world).claim
    assert (mine.status, mine.log_cid, mine.model_cid) == (AuditStatus.ATTESTED, claim.log_cid, claim.model_cid)
    progress = auditor.step()
    assert progress.stake == OPEN.attestation_bond and progress.until is not None and not progress.finished
    world.pass_challenge_window()
    world.run(trainer, customer, auditor)
    assert world.status is JobStatus.FINAL and audit(world, "auditor").status is AuditStatus.CLOSED
    assert world.gains() == {"customer": -OPEN.reward - FEE, "trainer": OPEN.reward, "auditor": FEE}
    assert world.contract_balance() == 0


@pytest.mark.slow
def test_a_model_that_its_trainer_withholds_is_delivered_by_the_auditor(world: World) -> None:
    world.post(terms=OPEN)
    honest = world.context("trainer")
    trainer = TrainerRole(replace(honest, store=withholding(honest.store, log=False)), world.job)
    world.run(trainer)
    assert not world.store.has(posted(world).claim.model_cid)
    auditor, customer = AuditorRole(world.context("auditor"), world.job), world.customer()
    world.run(auditor)
    assert audit(world, "auditor").model_cid == posted(world).claim.model_cid
    world.pass_challenge_window()
    world.run(trainer, auditor, customer)
    assert world.status is JobStatus.FINAL and (world.root / "model.safetensors").exists()


def misleading_trainer(world: World, cid: str = CID) -> TrainerRole:
    """A trainer that says of every file that it is at an address."""
    honest = world.context("trainer")

    class Elsewhere:
        def __getattr__(self, name: str) -> object:
            return getattr(honest.store, name)

        def add_file(self, path: Path) -> str:
            honest.store.add_file(path)
            return cid

    return TrainerRole(replace(honest, store=Elsewhere()), world.job)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_file_that_lies_where_the_model_belongs_is_not_taken_for_it(world: World) -> None:
    """Another job's model, or a tutorial that was followed twice."""
    world.post(terms=OPEN)
    (model := world.root / "model.safetensors").write_bytes(b"of another job")
    trainer, customer = TrainerRole(world.context("trainer"), world.job), world.customer()
    world.run(trainer, customer, AuditorRole(world.context("auditor"), world.job))
    assert len(world.said("exists already: move it away")) == 1, "told long before it is in the way"
    world.pass_challenge_window()
    world.run(trainer, customer)
    assert world.status is JobStatus.FINAL and model.read_bytes() == b"of another job"
    assert not customer.step().finished and len(world.said("is not the model of job 1")) == 1
    model.unlink()
    assert "the model is in" in ended(customer).state
    assert "the model is in" in ended(world.customer()).state, "a second time it is found right"
    model.write_bytes(model.read_bytes()[:-1])
    assert "is not the model of job 1" in [world.customer().step() for _ in range(3)][-1].state


class Dripping:
    """A store that would let one piece of content drip for weeks, to whoever sets no time for it."""

    def __init__(self, store: Store, cid: str) -> None:
        self._store, self._cid = store, cid
        self.asked: list[float] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def get_file(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        self._drip(cid, within)
        self._store.get_file(cid, dest, max_bytes=max_bytes, within=within)

    def get_directory(
        self, cid: str, dest: Path, plan: Plan, *, max_bytes: int, within: float | None = None
    ) -> list[str]:
        self._drip(cid, within)
        return self._store.get_directory(cid, dest, plan, max_bytes=max_bytes, within=within)

    def _drip(self, cid: str, within: float | None) -> None:
        if cid == self._cid:
            assert within is not None, "this waits for weeks"
            self.asked.append(within)
            raise FetchTooSlow(f"{cid} did not come within {within:g} seconds: try again later.")


@pytest.mark.slow
def test_a_model_that_its_trainer_lets_drip_comes_from_an_auditor(world: World) -> None:
    """The trainer cuts the model into other blocks than the auditor, whose peers it does not rule."""
    world.post(terms=OPEN)
    trainer = misleading_trainer(world)
    world.run(trainer)
    dripping = Dripping(world.store, CID)
    patient = replace(context(world, "auditor"), store=dripping)  # type: ignore[arg-type]
    auditor = AuditorRole(patient, world.job)
    for _ in range(30):
        auditor.step()
    assert posted(world).attestations == 0, "it cannot know that a model is there"
    assert dripping.asked == sorted(dripping.asked) and dripping.asked[1] > dripping.asked[0] > 0
    model = attest_with_model(world)
    world.pass_challenge_window()
    customer = replace(world.context("customer"), store=dripping)  # type: ignore[arg-type]
    world.run(trainer, CustomerRole(customer, world.job, model=world.root / "model.safetensors"))
    assert (world.root / "model.safetensors").read_bytes() == model.read_bytes()


@pytest.mark.slow
def test_an_address_with_other_bytes_than_the_model_gets_no_attestation(world: World) -> None:
    world.post(terms=OPEN)
    junk = world.store.add_bytes(b"not a model")
    world.run(misleading_trainer(world, junk))
    last = ended(AuditorRole(world.context("auditor"), world.job))
    assert f"gets no attestation from here: the file at {junk} is not a state of this job" in last.state
    assert posted(world).attestations == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "attested", "why"),
    [
        (Policy(least_fee=FEE + 1), 0, "place 1 is sure of 0.000100000000000001 ether of its audit fee, less than"),
        (Policy(), 1, "it has the 1 that it needs, and is sure to pay for no other"),
        (Policy(most_bond=OPEN.challenger_bond - 1), 0, "its bond of 0.002000000000000001 ether is more than"),
    ],
)
def test_an_attestation_that_the_policy_does_not_allow_is_not_given(
    world: World, policy: Policy, attested: int, why: str
) -> None:
    world.post(terms=OPEN)
    world.run(TrainerRole(world.context("trainer"), world.job))
    if attested:
        attest(world, "second")
    last = ended(AuditorRole(replace(world.context("auditor"), policy=policy), world.job))
    assert "is right, and gets no attestation from here" in last.state and why in last.state
    assert posted(world).attestations == attested


@pytest.mark.slow
def test_the_bond_of_an_appeal_has_to_be_at_hand_before_an_attestation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.post(terms=OPEN)
    world.run(TrainerRole(world.context("trainer"), world.job))
    auditor = AuditorRole(world.context("auditor"), world.job)
    enough = auditor.context.queue.funds

    def poor(bond: int, clock: float, *, job: int | None = None) -> Funds:
        """An account with a bond and the gas of a dispute, and a wei less than the other bond."""
        found = enough(bond, clock)
        first = replace(found, bond=OPEN.challenger_bond).needed
        return replace(found, balance=first + OPEN.attestation_bond - 1)

    monkeypatch.setattr(auditor.context.queue, "funds", poor)
    progress = [auditor.step() for _ in range(5)][-1]
    assert "send it 1 wei more" in progress.state and not progress.finished
    assert posted(world).attestations == 0 and len(world.said("send it 1 wei more")) == 1
    monkeypatch.undo()
    world.run(auditor)
    assert posted(world).attestations == 1


@pytest.mark.slow
def test_an_attestation_that_others_get_in_front_of_pays_no_bond(world: World) -> None:
    """They saw it before a block had it: its sender has named the last place that it takes."""
    world.post(terms=OPEN)
    world.run(TrainerRole(world.context("trainer"), world.job))
    auditor = AuditorRole(world.context("auditor"), world.job)
    flush = auditor.context.queue.flush

    def overtaken() -> bool:
        if auditor.context.queue.is_busy and not posted(world).attestations:
            attest(world, "second")
        return flush()

    auditor.context.queue.flush = overtaken  # type: ignore[method-assign]
    last = [auditor.step() for _ in range(8)][-1]
    assert "it has the 1 that it needs" in last.state and world.said("PlaceTaken")
    assert posted(world).attestations == 1 and world.gains() == {
        "trainer": -OPEN.trainer_bond,
        "second": -OPEN.attestation_bond,
        "customer": -OPEN.reward - FEE,
    }


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
    bond = job.terms.challenger_bond
    by(world, "second").send(world.contract.paying("appeal", world.job, spec_hash=job.spec_hash, bond=bond))
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
    appellant.send(appellant.paying("appeal", world.job, spec_hash=posted(world).spec_hash, bond=OPEN.challenger_bond))
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
