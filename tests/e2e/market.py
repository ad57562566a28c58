"""A world in which audits are paid: terms of open and of blind audits, and calls that tests make by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from tiebreak.contract.enums import AuditStatus, JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import AuditView, JobView
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.sealing import claim_seal, new_salt
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.strategy import Leaves

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
        world.contract.attest(
            world.job,
            spec_hash=job.spec_hash,
            checkpoint_root=job.claim.checkpoint_root,
            log_cid=CID,
            model_cid=CID,
            bond=job.terms.attestation_bond,
        )
    )


@dataclass(frozen=True)
class ByHand:
    """A trainer's right claim, sealed by hand; `open` opens it."""

    open: Callable[[], object]


def seal_by_hand(world: World) -> ByHand:
    job = Job.read(world.root / "files")
    result = Trainer(job, world.root / "by hand").run()
    tree = Leaves(list(result.state_roots))
    salt, contract = new_salt(), by(world, "trainer")
    facts = {"checkpoint_root": tree.root, "final_state_root": tree.payloads[-1], "log_cid": CID, "model_cid": CID}
    about = world.node.chain_id, contract.address, world.job, world.senders["trainer"].address
    seal = claim_seal(*about, **facts, salt=salt)
    bond = posted(world).terms.trainer_bond
    contract.send(contract.seal_claim(world.job, spec_hash=posted(world).spec_hash, seal=seal, bond=bond))
    opened = {
        "claimed": tree.as_next_root(),
        **{name: fact for name, fact in facts.items() if name != "checkpoint_root"},
    }
    return ByHand(lambda: contract.send(contract.open_claim(world.job, **opened, salt=salt)))


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
