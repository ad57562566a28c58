"""A world in which audits are paid: terms of open and of blind audits, and calls that tests make by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tiebreak.contract.contract_calls import ANY_PLACE
from tiebreak.contract.enums import AuditStatus, JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import AuditView, JobView
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.trainer_role import TrainerRole

from tests.e2e.world import TERMS, Ticks, World, with_terms

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


def by(world: World, name: str) -> VerificationGame:
    return world.contract.by(world.senders[name])


def posted(world: World) -> JobView:
    return world.contract.job(world.job)


def context(world: World, name: str) -> RoleContext:
    """The context of a party that does not wait for pauses."""
    return replace(world.context(name), clock=Ticks())


def audit(world: World, name: str) -> AuditView:
    """A party's audit."""
    address = world.senders[name].address
    return next(one for one in world.contract.audits_of(world.job) if one.auditor == address)


def auditors(world: World, *names: str) -> list[AuditorRole]:
    return [AuditorRole(world.context(name), world.job) for name in names]


def sealed(world: World, *others: JobRole, trainer: TrainerRole | None = None) -> TrainerRole:
    """A sealed claim, and sealed audits."""
    trainer = trainer or TrainerRole(world.context("trainer"), world.job)
    world.run(trainer, *others)
    assert world.status is JobStatus.SEALED
    return trainer


def statuses(world: World) -> dict[str, AuditStatus]:
    """The status of every audit, by party."""
    names = {sender.address: name for name, sender in world.senders.items()}
    return {names[one.auditor]: one.status for one in world.contract.audits_of(world.job)}


def attest(world: World, name: str) -> None:
    job = posted(world)
    by(world, name).send(
        world.contract.paying(
            "attest",
            world.job,
            spec_hash=job.spec_hash,
            checkpoint_root=job.claim.checkpoint_root,
            log_cid=CID,
            model_cid=CID,
            bond=job.terms.attestation_bond,
            last_place=ANY_PLACE,
        )
    )


def pass_audits(world: World) -> None:
    """The time for auditors to seal ends."""
    world.pass_time(posted(world).audits.audit_deadline)


def pass_openings(world: World) -> None:
    """The time for auditors to open ends."""
    world.pass_time(posted(world).audits.audit_opening_deadline)


def pass_appeals(world: World) -> None:
    world.pass_time(posted(world).audits.appeal_deadline)


def room(world: World, name: str) -> Path:
    """A party's directory of the job."""
    (found,) = (world.root / name).glob("job-*")
    return found
