"""Places of blind audits: taken before the work where it is sure to be done in time, filled once it is done, and never
mistaken for a seal, whatever is killed, lost or overtaken in between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tiebreak.contract.enums import AuditStatus, JobStatus
from tiebreak.devnet.embedded import embedded_node
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.transactions.spending import Spending
from tiebreak_demo.adversary.parties import poisoning_trainer

from tests.e2e.market import BLIND, FEE, audit, by, context, pass_audits, pass_openings, posted, room, sealed, statuses
from tests.e2e.paced import Paced
from tests.e2e.world import World

BOND = BLIND.attestation_bond
THREE = replace(BLIND, attestations_needed=3, audit_fee=3 * FEE)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield World(embedded_node(), tmp_path)


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
        by(world, name).send(
            world.contract.seal_audit(world.job, spec_hash=posted(world).spec_hash, seal=bytes(32), bond=BOND)
        )


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
@pytest.mark.parametrize("times", [2.5, 25])
def test_a_run_that_may_not_be_done_in_time_takes_no_place_before_it_is(world: World, times: float) -> None:
    world.post(terms=THREE)
    sealed(world)
    # 12 steps of 15 are left. Data can make them much dearer than the first three.
    auditor, background_jobs = paced(world, pace=BLIND.audit_window / 12 / times)
    look(auditor)
    background_jobs.take(3)
    look(auditor)
    assert posted(world).audits.count == 0
    background_jobs.take(20)
    look(auditor)
    assert posted(world).audits.count == 1 and (room(world, "auditor") / "sealed-audit.json").exists()
    assert not world.said("take a place")


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["nothing", "the run", "the place", "everything"])
@pytest.mark.parametrize("instant", ["the place is taken", "the root is on disk", "the seal is replaced"])
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
    by(world, "customer").send(world.contract.collect(world.job, world.senders["auditor"].address))
    assert statuses(world) == {"auditor": AuditStatus.CLOSED} and world.contract.burnt() == BOND // 2


@pytest.mark.slow
def test_a_place_that_others_get_in_front_of_pays_no_bond(world: World) -> None:
    world.post(terms=THREE)
    sealed(world)
    auditor, background_jobs = paced(world)
    look(auditor)
    background_jobs.take(3)
    flush = auditor.context.queue.flush

    def overtaken() -> bool:
        if auditor.context.queue.is_busy and not posted(world).audits.count:
            seal_others(world)
        return flush()

    auditor.context.queue.flush = overtaken  # type: ignore[method-assign]
    assert "it has the 3 that it needs" in look(auditor).state
    assert "auditor" not in world.gains() and posted(world).audits.count == 3
    assert len(world.said("PlaceTaken")) == 1


@pytest.mark.slow
def test_a_place_counts_once_against_a_limit_on_spending(world: World) -> None:
    """To fill it begins nothing new, whatever the limit says by then."""
    world.post(terms=THREE)
    sealed(world)
    auditor, background_jobs = paced(world)
    spending = Spending(world.root / "auditor", "chain", per_job=BOND + 10**17)
    auditor.context.queue.spending = spending
    look(auditor)
    background_jobs.take(3)
    look(auditor)
    taken = audit(world, "auditor").seal
    auditor.context.queue.spending = Spending(world.root / "auditor", "chain", per_job=1)
    background_jobs.take(20)
    look(auditor)
    assert audit(world, "auditor").seal != taken
