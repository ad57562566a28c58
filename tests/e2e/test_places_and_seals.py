"""Places and seals of blind audits: taken, filled and opened, whatever is killed, lost or overtaken in between."""

from __future__ import annotations

import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from tiebreak.contract.contract_calls import ANY_PLACE, ContractCall
from tiebreak.contract.enums import AuditStatus, JobStatus, Side
from tiebreak.contract.game import VerificationGame
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.sealing import Sealing
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.store import FolderStore, StoreError
from tiebreak.transactions.sender import Sender
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer, silenced

from tests.client.inline_jobs import Paced
from tests.e2e.market import (
    BLIND,
    FEE,
    audit,
    auditors,
    by,
    context,
    pass_audits,
    pass_openings,
    posted,
    room,
    sealed,
    statuses,
)
from tests.e2e.world import World


@pytest.fixture
def world(embedded_world: World) -> World:
    return embedded_world


BOND = BLIND.attestation_bond
THREE = replace(BLIND, attestations_needed=3, audit_fee=3 * FEE)


def paced(world: World, name: str = "auditor", pace: float = 1.0, **context_parts: object) -> tuple[AuditorRole, Paced]:
    """A fresh process of an auditor, and what its runs wait for."""
    background_jobs = Paced(pace)
    found = replace(context(world, name), background_jobs=background_jobs, **context_parts)  # type: ignore[arg-type]
    return AuditorRole(found, world.job), background_jobs


def look(auditor: AuditorRole, times: int = 4) -> Progress:
    return [auditor.step() for _ in range(times)][-1]


def with_a_place(world: World) -> tuple[TrainerRole, AuditorRole, Paced]:
    """A sealed claim, and an auditor that has taken a place and works."""
    trainer = sealed(world)
    auditor, background_jobs = paced(world)
    look(auditor)
    assert posted(world).audits.count == 0, "nothing is measured yet"
    background_jobs.take(3)
    look(auditor)
    assert posted(world).audits.count == 1
    return trainer, auditor, background_jobs


def seal_others(world: World) -> None:
    """Others take the places behind, and more."""
    for name in ("second", "customer", "referee"):
        given = {"spec_hash": posted(world).spec_hash, "seal": bytes(32), "last_place": ANY_PLACE}
        by(world, name).send(world.contract.paying("sealAudit", world.job, bond=BOND, **given))


def test_a_place_is_taken_before_the_work_filled_after_it_and_paid(world: World) -> None:
    world.post(terms=THREE)
    trainer, auditor, background_jobs = with_a_place(world)
    taken = audit(world, "auditor").seal
    assert not (room(world, "auditor") / "sealed-audit.json").exists(), "nothing is sealed yet"
    progress = look(auditor)
    assert progress.stake == BOND and progress.deadline == posted(world).audits.audit_deadline
    seal_others(world)
    background_jobs.take(20)
    look(auditor)
    assert audit(world, "auditor").seal != taken and posted(world).audits.count == 4
    assert world.contract.audits_of(world.job)[0].auditor == world.senders["auditor"].address
    pass_audits(world)
    world.run(trainer, auditor)
    assert statuses(world)["auditor"] is AuditStatus.ATTESTED
    pass_openings(world)
    world.pass_challenge_window()
    world.run(trainer, auditor)
    assert world.status is JobStatus.LAPSED and world.gains()["auditor"] == FEE, "its share, though nobody else opened"
    assert len(world.said("take a place for its audit")) == len(world.said("seal its audit in the place")) == 1


@pytest.mark.slow
def test_a_run_that_may_not_be_done_in_time_takes_no_place_before_it_is(world: World) -> None:
    world.post(terms=THREE)
    sealed(world)
    # 12 steps of 15 are left. Data can make them much dearer than the first three.
    auditor, background_jobs = paced(world, pace=BLIND.audit_window / 12 / 2.5)
    look(auditor)
    background_jobs.take(3)
    look(auditor)
    assert posted(world).audits.count == 0
    background_jobs.take(20)
    look(auditor)
    assert posted(world).audits.count == 1 and (room(world, "auditor") / "sealed-audit.json").exists()
    assert not world.said("take a place")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("instant", "loss"),
    [
        ("the place is taken", "everything"),
        ("the root is on disk", "the place"),
        ("the root is on disk", "nothing"),
        ("the seal is replaced", "the run"),
    ],
)
def test_a_killed_auditor_fills_its_place_whatever_its_disk_has_lost(world: World, instant: str, loss: str) -> None:
    world.post(terms=THREE)
    trainer, auditor, background_jobs = with_a_place(world)
    if instant != "the place is taken":
        if instant == "the root is on disk":
            auditor.context.queue.put = lambda order: False  # type: ignore[method-assign]
        background_jobs.take(20)
        look(auditor)
        assert (room(world, "auditor") / "sealed-audit.json").exists()
    auditor.close()
    mine = room(world, "auditor")
    if loss == "the run":
        shutil.rmtree(mine / "blind")
    elif loss == "the place":
        (mine / "sealed-place.json").unlink()
    elif loss == "everything":
        shutil.rmtree(mine)
    again = AuditorRole(context(world, "auditor"), world.job)
    look(again)
    pass_audits(world)
    world.run(trainer, again)
    assert statuses(world) == {"auditor": AuditStatus.ATTESTED} and posted(world).audits.count == 1
    assert world.contract_balance() == THREE.reward + THREE.audit_fee + THREE.trainer_bond + BOND, "one bond"


@pytest.mark.slow
def test_a_place_that_is_not_filled_in_time_is_told_and_the_claim_audited_all_the_same(world: World) -> None:
    world.post(terms=THREE)
    wrong = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    sealed(world, trainer=wrong)
    auditor, background_jobs = paced(world)
    look(auditor)
    background_jobs.take(3)
    look(auditor)
    assert posted(world).audits.count == 1
    background_jobs.pace = BLIND.audit_window
    background_jobs.take(1)
    look(auditor)
    (alert,) = [notice for notice in world.notices if notice.what is What.ALERT]
    assert "will not be done by" in alert.text and "on its place is lost" in alert.text
    pass_audits(world)
    assert "waits until the claim is opened" in look(auditor).state
    auditor.close()
    world.run(wrong)
    late = AuditorRole(context(world, "auditor"), world.job)
    look(late, 8)
    assert len(world.said("so that the bond of the place that it had taken is lost")) == 1
    assert posted(world).game_count == 1, "the claim is wrong, and challenged with another bond"
    pass_openings(world)
    by(world, "customer").send(ContractCall.of("collect", world.job, world.senders["auditor"].address))
    assert statuses(world) == {"auditor": AuditStatus.CLOSED} and world.contract.burnt() == BOND // 2


@pytest.mark.slow
def test_the_salt_is_on_disk_for_the_owners_eyes_before_the_seal_is_sent(world: World) -> None:
    world.post(terms=BLIND)
    sealed(world)
    (auditor,) = auditors(world, "auditor")
    seen: list[int] = []
    submit = auditor.context.sender.submit

    def watched(*arguments: object, **options: object) -> object:
        path = room(world, "auditor") / "sealed-audit.json"
        seen.append(stat.S_IMODE(path.stat().st_mode))
        return submit(*arguments, **options)  # type: ignore[arg-type]

    auditor.context.sender.submit = watched  # type: ignore[method-assign,assignment]
    world.run(auditor)
    assert seen == [0o600] and posted(world).audits.count == 1
    assert stat.S_IMODE((room(world, "trainer") / "sealed-claim.json").stat().st_mode) == 0o600


def sealing_of(role: AuditorRole, kind: str) -> Sealing:
    return Sealing(role, role.long_work, kind)


@pytest.mark.slow
def test_a_damaged_file_of_a_seal_is_told_and_does_no_harm(world: World) -> None:
    world.post(terms=BLIND)
    sealing = sealing_of(AuditorRole(world.context("auditor"), world.job), "audit")
    secret = sealing.of_audit(posted(world), bytes(32))
    assert sealing.kept(posted(world)) is None and sealing.keep(posted(world), secret) == secret
    for content in (b"", b"[]", b"{}", b'{"checkpoint_root": 1}', b"[" * 9000, b"\xff" * 70_000):
        (room(world, "auditor") / "sealed-audit.json").write_bytes(content)
        world.notices.clear()
        assert sealing.kept(posted(world)) is None
        sealing = sealing_of(AuditorRole(world.context("auditor"), world.job), "audit")  # a new one warns anew
        assert sealing.keep(posted(world), secret) == secret and sealing.kept(posted(world)) == secret
        assert "sealed-audit.json is damaged" in world.notices[0].text


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["the seal", "half of the seal", "everything"])
def test_a_killed_auditor_opens_what_it_sealed_whatever_its_disk_has_lost(world: World, loss: str) -> None:
    world.post(terms=BLIND)
    trainer = sealed(world, *auditors(world, "auditor"))
    mine = room(world, "auditor")
    seal = mine / "sealed-audit.json"
    if loss == "the seal":
        seal.unlink()
    elif loss == "half of the seal":
        seal.write_bytes(seal.read_bytes()[: seal.stat().st_size // 2])
    elif loss == "everything":
        shutil.rmtree(mine)
    pass_audits(world)
    world.run(trainer, AuditorRole(world.context("auditor"), world.job))
    assert statuses(world) == {"auditor": AuditStatus.ATTESTED}
    world.pass_challenge_window()
    world.run(trainer, AuditorRole(world.context("auditor"), world.job), world.customer())
    assert world.gains()["auditor"] == FEE


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["the run", "everything"])
def test_a_killed_trainer_opens_what_it_sealed_whatever_its_disk_has_lost(world: World, loss: str) -> None:
    """Its log is part of the seal. The same machine writes the same one again."""
    world.post(terms=BLIND)
    sealed(world, *auditors(world, "auditor"))
    mine = room(world, "trainer")
    if loss == "the run":
        shutil.rmtree(mine / "run")
    else:
        shutil.rmtree(mine)
    pass_audits(world)
    trainer = TrainerRole(world.context("trainer"), world.job)
    world.run(trainer, AuditorRole(world.context("auditor"), world.job))
    assert world.status is JobStatus.CLAIMED and world.store.has(posted(world).claim.log_cid)
    world.pass_challenge_window()
    world.run(trainer, AuditorRole(world.context("auditor"), world.job), world.customer())
    assert world.status is JobStatus.FINAL


@pytest.mark.slow
def test_a_signer_without_a_secret_still_seals_and_opens_from_its_disk(world: World) -> None:
    """A remote signer is such a one. Without its file it could not open, which is told."""
    world.post(terms=BLIND)
    trainer = sealed(world)
    world.senders["auditor"].secret = lambda name: None  # type: ignore[method-assign]
    world.run(AuditorRole(world.context("auditor"), world.job))
    pass_audits(world)
    world.run(trainer)
    path = room(world, "auditor") / "sealed-audit.json"
    kept = path.read_bytes()
    path.unlink()
    lost = AuditorRole(world.context("auditor"), world.job)
    for _ in range(5):
        lost.step()
    assert len(world.said("the sealed audit cannot be opened: its file is lost")) == 1
    path.write_bytes(kept)
    world.run(AuditorRole(world.context("auditor"), world.job))
    assert statuses(world) == {"auditor": AuditStatus.ATTESTED}


# Stores and nodes that fail at the wrong moment.


class BrokenStore:
    """A store that takes nothing."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def add_directory(self, path: Path) -> str:
        raise StoreError("the store is full: make room.")

    def add_file(self, path: Path) -> str:
        raise StoreError("the store is full: make room.")


@pytest.mark.slow
def test_a_store_that_is_away_costs_no_bond(world: World) -> None:
    """In the second half of the window both open without it, and publish when it is back."""
    world.post(terms=BLIND)
    broken = BrokenStore(world.store)
    trainer, auditor = (
        role(replace(context(world, name), store=broken), world.job)  # type: ignore[arg-type]
        for role, name in ((TrainerRole, "trainer"), (AuditorRole, "auditor"))
    )
    sealed(world, auditor, trainer=trainer)
    pass_audits(world)
    steps(trainer, 10)
    assert world.status is JobStatus.SEALED and len(world.said("publishing log and model did not succeed")) == 1
    world.pass_time(posted(world).audits.opening_deadline - BLIND.opening_window // 2)
    steps(trainer, 5)
    assert world.status is JobStatus.CLAIMED
    steps(auditor, 10)
    assert statuses(world) == {"auditor": AuditStatus.SEALED}
    world.pass_time(posted(world).audits.audit_opening_deadline - BLIND.opening_window // 2)
    steps(auditor, 10)
    assert statuses(world) == {"auditor": AuditStatus.ATTESTED}
    addresses = {posted(world).claim.log_cid, audit(world, "auditor").log_cid, audit(world, "auditor").model_cid}
    assert not any(world.store.has(cid) for cid in addresses)

    broken.add_directory, broken.add_file = world.store.add_directory, world.store.add_file  # type: ignore[method-assign]
    steps(trainer, 10)
    steps(auditor, 10)
    assert all(world.store.has(cid) for cid in addresses)


def steps(role: JobRole, number: int) -> None:
    for _ in range(number):
        assert not role.step().finished


def with_confirmations(world: World, name: str, depth: int) -> RoleContext:
    """A party that waits for blocks."""
    node = type(world.node)(world.node._transport, confirmations=depth)
    sender = Sender(node, world.senders[name]._account)
    contract = VerificationGame(node, world.contract.address, sender)
    return replace(context(world, name), contract=contract, sender=sender)


def blocks(world: World, role: JobRole, number: int, seconds: int = 12) -> None:
    """Blocks as on a public chain, with a look of the role at each."""
    for _ in range(number):
        world.node.advance_time(seconds)
        role.step()


@pytest.mark.slow
def test_an_audit_is_sealed_and_an_appeal_made_only_upon_what_lies_deep_enough(world: World) -> None:
    world.post(terms=BLIND)
    deep = AuditorRole(with_confirmations(world, "auditor", 3), world.job)
    trainer = TrainerRole(silenced(world.context("trainer")), world.job)
    sealed(world, trainer=trainer)
    deep.step()
    assert posted(world).audits.count == 0
    blocks(world, deep, 6)
    assert posted(world).audits.count == 1
    pass_audits(world)
    world.run(trainer)
    blocks(world, deep, 2)
    assert statuses(world) == {"auditor": AuditStatus.ATTESTED}
    puppet = lying_auditor(world.context("second"), world.job, first_wrong_step=4)
    world.run(puppet)
    pass_openings(world)
    world.run(trainer, puppet)
    world.pass_time(world.game(1).deadlines[Side.TRAINER])
    world.run(puppet)
    assert world.status is JobStatus.APPEALABLE
    deep.step()
    assert posted(world).game_count == 1
    blocks(world, deep, 6)
    assert posted(world).game_count == 2 and world.game(2).trainer == world.senders["auditor"].address


@pytest.mark.slow
def test_a_node_that_lags_behind_makes_nobody_seal_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows no seal where there is one."""
    world.post(terms=BLIND)
    trainer = sealed(world)
    (auditor,) = auditors(world, "auditor")
    world.run(auditor)
    assert posted(world).audits.count == 1
    before = replace(posted(world), audits=replace(posted(world).audits, count=0))
    again = AuditorRole(world.context("auditor"), world.job)
    with monkeypatch.context() as lagging:
        lagging.setattr(again, "posted", lambda: before)
        lagging.setattr(again.context.queue.watch, "audits_of", lambda job: [])
        for _ in range(5):
            again.step()
    assert posted(world).audits.count == 1
    pass_audits(world)
    world.run(trainer, again)
    assert statuses(world) == {"auditor": AuditStatus.ATTESTED}
