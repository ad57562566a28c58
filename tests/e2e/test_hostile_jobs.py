"""Strangers' jobs: what a role does when files, specs, terms or sizes are not as they should be."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from roundlog.data import fields_of, write_fields
from roundlog.training.job import JobError
from tiebreak.contract.code import ADJUDICATORS_PARTS, ContractCode
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.quantities import in_ether, in_time
from tiebreak.roles import fetched_content, long_work
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleLimits
from tiebreak.roles.customer_role import post_job
from tiebreak.roles.fetched_content import Refused, fetch_job
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.policy import MeasuredPace, Policy
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.store import FolderStore
from tiebreak_demo.adversary.parties import poisoning_trainer

from tests.client.disputes import made
from tests.e2e.world import TERMS, World, ended, small_job
from tests.engine.kept_jobs import kept_job

pytestmark = pytest.mark.slow


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


def post_with_cid(world: World, cid: str, **spec: object) -> int:
    job = small_job()
    posted = world.spec(replace(job.spec, **spec))  # type: ignore[arg-type]
    contract = world.contract.by(world.senders["customer"])
    world.job, _ = made(contract, contract.post_job(posted, TERMS, cid))
    return world.job


def refusal(world: World, **limits: int) -> str:
    context = replace(world.context("trainer"), limits=RoleLimits(**limits))
    progress = ended(TrainerRole(context, world.job))
    assert progress.finished and world.status is JobStatus.OPEN
    return progress.state


def test_a_job_whose_files_are_another_one_s_is_refused(world: World) -> None:
    kept_job("convolution").write(world.root / "files")
    post_with_cid(world, world.store.add_directory(world.root / "files"))
    assert "another job than the posted one" in refusal(world)


def test_a_job_whose_files_are_not_a_job_is_refused(world: World) -> None:
    post_with_cid(world, world.store.add_bytes(b"not a directory"))
    assert "is not a directory" in refusal(world)
    post_with_cid(world, "not a cid")
    assert "is not a content identifier" in refusal(world)


def test_a_job_with_a_data_set_that_does_not_fit_its_root_is_refused(world: World) -> None:
    job = small_job()
    job.write(world.root / "files")
    other = fields_of({"x": job.dataset["x"][:] + 1, "y": job.dataset["y"][:]})
    write_fields(world.root / "files" / "data.safetensors", other)
    post_with_cid(world, world.store.add_directory(world.root / "files"))
    assert "dataset" in refusal(world)


def test_a_spec_that_this_version_cannot_follow_is_refused(world: World) -> None:
    post_with_cid(world, "whatever", rounding_bits=24)
    assert "the spec's rounding_bits are 24, to which the contract does not round" in refusal(world)


def test_a_job_that_names_another_adjudicator_gets_no_bond(world: World) -> None:
    """Its code is the right one, but it asks other contracts."""
    job = small_job()
    job.write(world.root / "files")
    cid = world.store.add_directory(world.root / "files")
    sender = world.senders["customer"]
    stranger = ContractCode.load("Claims").deploy(sender).contract
    assert stranger is not None
    argument = (bytes(12) + bytes.fromhex(stranger[2:])) * len(ADJUDICATORS_PARTS)
    other = ContractCode.load("Adjudicator").deploy(sender, argument=argument).contract
    assert other is not None
    contract = world.contract.by(sender)
    world.job, _ = made(contract, contract.post_job(replace(world.spec(job.spec), adjudicator=other), TERMS, cid))
    assert f"the posted adjudicator {other} is not this version's" in refusal(world)
    world.claim_anything(5, cid)
    progress = ended(AuditorRole(world.context("auditor"), world.job))
    assert progress.finished and "nobody knows what it would compute" in progress.state
    assert world.contract.job(world.job).game_count == 0
    with pytest.raises(JobError, match="is not this version's: deploy a contract"):
        game = VerificationGame(world.node, world.contract.address, sender)
        game.adjudicator = lambda: other  # type: ignore[method-assign]
        post_job(replace(world.context("customer"), contract=game), world.root / "files", TERMS, sender.address)


def test_a_job_of_which_a_proof_fits_no_transaction_gets_no_bond(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.post()
    monkeypatch.setattr(fetched_content, "MOST_PROOF_BYTES", 2_000)
    assert "more than the 2000 of a transaction" in refusal(world)
    with pytest.raises(JobError, match="more than the 2000 of a transaction"):
        world.post()


def test_jobs_beyond_the_limits_are_refused_before_anything_is_fetched_or_run(world: World) -> None:
    world.post()
    assert "15 steps, more than the 14 allowed" in refusal(world, steps=14)
    assert "bytes" in refusal(world, job_bytes=100)
    assert not (world.root / "trainer").exists() or not list((world.root / "trainer").rglob("*.safetensors"))
    assert "memory" in refusal(world, memory_bytes=1000)


def test_files_damaged_after_they_were_fetched_are_fetched_again(world: World) -> None:
    world.post()
    context, posted = world.context("trainer"), world.contract.job(world.job)
    room = context.room(world.job, posted)
    fetch_job(context, posted, room)
    told: list[str] = []
    for name, change in (
        ("program.json", lambda content: b"{}"),
        ("spec.json", lambda content: content.replace(b"15", b"12")),
        ("initial.safetensors", lambda content: content[:-4] + b"\xff\xff\xff\x7f"),  # a NaN
        ("data.safetensors", lambda content: content[:-9]),
        ("data.blocks", lambda content: bytes(len(content))),
    ):
        path = room / "job" / name
        content = path.read_bytes()
        path.write_bytes(change(content))
        assert path.read_bytes() != content
        assert fetch_job(context, posted, room, warn=told.append).spec == posted.spec.training
        assert path.read_bytes() == content and "are damaged on this disk" in told.pop() and not told
    shutil.rmtree(room / "job")
    assert fetch_job(context, posted, room).spec == posted.spec.training


def test_of_another_job_only_the_program_is_fetched_and_nothing_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store gives is not what the chain commits to."""
    world.post()
    context, posted = world.context("trainer"), world.contract.job(world.job)
    other, told, asked = replace(posted, spec_hash=bytes(32)), [], []
    read = FolderStore.block
    monkeypatch.setattr(FolderStore, "block", lambda *arguments: (asked.append(arguments), read(*arguments))[1])
    with pytest.raises(Refused, match="those of another job"):
        fetch_job(context, other, context.room(world.job, other), warn=told.append)
    assert len(asked) == 3, "the directory, program.json and spec.json"
    assert not told and not list(context.room(world.job, other).iterdir())


@pytest.mark.parametrize(
    ("policy", "objection"),
    [
        (Policy(referees=frozenset()), "is not among the trusted ones"),
        (Policy(least_clock=TERMS.clock_allowance + 1), f"less than the {in_time(TERMS.clock_allowance + 1)} needed"),
        (Policy(most_bond=min(TERMS.trainer_bond, TERMS.challenger_bond) - 1), "is more than"),
    ],
    ids=["referee", "clock", "bond"],
)
def test_no_bond_is_put_on_a_trap(world: World, policy: Policy, objection: str) -> None:
    world.post()
    refused = ended(TrainerRole(replace(world.context("trainer"), policy=policy), world.job))
    assert refused.finished and objection in refused.state
    world.run(poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7))
    auditor = AuditorRole(replace(world.context("auditor"), policy=policy), world.job)
    progress = ended(auditor)
    assert progress.finished and "wrong" in progress.state and objection in progress.state
    assert world.contract.job(world.job).game_count == 0
    assert [notice.role for notice in world.notices if notice.what is What.STAKED] == ["trainer"]
    auditor = AuditorRole(world.context("auditor"), world.job)
    while not world.said("challenge the claim"):
        auditor.step()
    # Its other threads tell of their work in between, and more may have been sent by now.
    told = [notice for notice in world.notices if notice.what in (What.STAKED, What.SENT)]
    sent = next(place for place, notice in enumerate(told) if notice.text == "challenge the claim")
    assert told[sent].what is What.SENT
    assert told[sent - 1].what is What.STAKED and told[sent - 1].text == (
        f"the referee {world.senders['referee'].address} can decide over the bond of {in_ether(TERMS.challenger_bond)} "
        "where the contract cannot"
    )


def test_a_job_of_two_steps_is_measured_before_a_bond_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.post(small_job(2, 1))

    def measured(role: JobRole) -> Progress:
        with monkeypatch.context() as patch:
            paces: list[MeasuredPace] = []
            patch.setattr(long_work, "least_clock", lambda program, spec, pace, *more: paces.append(pace) or 10**9)
            progress = ended(role)
            assert len(paces) == 1 and 0 < paces[0].step < 1
        return progress

    assert f"less than the {in_time(10**9)} needed" in measured(TrainerRole(world.context("trainer"), world.job)).state
    assert world.status is JobStatus.OPEN
    world.run(poisoning_trainer(world.context("trainer"), world.job, poisoned_step=1))
    assert f"less than the {in_time(10**9)} needed" in measured(AuditorRole(world.context("auditor"), world.job)).state
    assert world.contract.job(world.job).game_count == 0
