"""Strangers' jobs, claims and logs that are not as they should be: what a role does, says, and puts no bond on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from roundlog.capture import Task
from roundlog.data import fields_of, write_fields
from roundlog.execution import NonFiniteError, RunningStep
from roundlog.program import first_store
from roundlog.segment_audits.segment import CHECKPOINTS_FILE
from roundlog.training.auditor import Auditor
from roundlog.training.job import DATA, JOB_FILES, Job, JobError
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions
from roundlog.training.rank_runs import Helpers, MakeExecution
from roundlog.training.run_cost import run_bytes
from tiebreak.contract.code import ADJUDICATORS_PARTS, ContractCode
from tiebreak.contract.enums import JobStatus, Level, Outcome, Reason
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import JobView
from tiebreak.quantities import in_ether, in_time
from tiebreak.roles import engine as engines
from tiebreak.roles import fetched_content, long_work
from tiebreak.roles.auditing import confirm_stop
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext, RoleLimits, size_of
from tiebreak.roles.customer_role import post_job
from tiebreak.roles.engine import DisputeTrees, Engine
from tiebreak.roles.fetched_content import JobContent, Refused
from tiebreak.roles.job_role import JobFollower, JobRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.policy import MeasuredPace, Policy
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.store import FolderStore
from tiebreak.store.dagpb import Cid
from tiebreak_demo.adversary.engines import BentExecutor, Lie, execution_of, lying
from tiebreak_demo.adversary.parties import poisoning_trainer, tampering_auditor, tampering_trainer
from torch import nn

from tests.adversaries import hiding_trainer
from tests.client.crafted_blocks import Blocks, repeated
from tests.client.disputes import made
from tests.e2e.market import OPEN
from tests.e2e.world import TERMS, World, ended, small_job

pytestmark = pytest.mark.slow


def diverging_job() -> Job:
    """Step 7 makes its weights so large that step 8 stops, at the end of an interval."""
    return small_job(rate=lambda step: 1.0 if step < 7 else 1e39)


def test_a_claim_about_a_run_that_has_no_end_is_rejected_at_the_number_where_it_ends(world: World) -> None:
    world.post(diverging_job())
    honest = ended(TrainerRole(world.context("second"), world.job))
    assert honest.finished and "cannot be trained: step 8: operator" in honest.state
    trainer, auditor = (
        hiding_trainer(world.context("trainer"), world.job),
        AuditorRole(world.context("auditor"), world.job),
    )
    world.run(trainer, auditor)
    assert world.said("the run has no end: step 8: operator")
    assert [level.index for level in world.game().levels[:2]] == [2, 2]
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    stopped = int(honest.state.split("operator ")[1].split()[0])
    assert world.game().levels[Level.OPERATOR].index == stopped


def test_two_liars_who_agree_on_a_wrong_state_do_not_save_the_claim(world: World) -> None:
    world.post()
    first = first_store(Job.read(world.root / "files").program)
    lies = [Lie(step=4, operator=first, only_stored=True), Lie(step=9, operator=first, only_stored=True)]
    trainer = tampering_trainer(world.context("trainer"), world.job, lies=lies[:1])
    accomplice = tampering_auditor(world.context("second"), world.job, lies=lies)
    world.run(trainer, accomplice)
    assert [level.index for level in world.game(1).levels[:2]] == [3, 0]
    assert world.game(1).outcome is Outcome.TRAINER_WON
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(trainer, auditor)
    assert [level.index for level in world.game(2).levels[:2]] == [1, 1]
    assert (world.game(2).outcome, world.game(2).reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.status is JobStatus.REJECTED


def wide_task() -> Task:
    """Batches that take most of a step's memory."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    return Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(300, 4), "y": torch.randint(0, 3, (300,))},
        batch_size=256,
        steps=3,
        interval=1,
        seed=9,
    )


@pytest.mark.parametrize("honest", [False, True])
def test_who_cannot_hold_a_disputed_step_puts_no_bond_on_it(world: World, honest: bool) -> None:
    """Neither on a challenge nor on an attestation, which may have to be defended in an appeal."""
    world.post(Job.from_task(wide_task), terms=OPEN if honest else TERMS)
    job = Job.read(world.root / "files")
    trainer = TrainerRole(world.context("trainer"), world.job)
    world.run(trainer if honest else poisoning_trainer(world.context("trainer"), world.job, poisoned_step=1))
    engine = Engine(options=RunOptions(micro_batches=4))
    small = RoleLimits(memory_bytes=engine.dispute_bytes(job) - 1)
    assert run_bytes(job.program, job.spec, 4) < small.memory_bytes < run_bytes(job.program, job.spec)
    auditor = AuditorRole(replace(world.context("auditor"), limits=small, engine=engine), world.job)
    progress = ended(auditor)
    why = "gets no attestation from here" if honest else "not challenged"
    assert progress.finished and f"{why}: a disputed step of it takes up to" in progress.state
    posted = world.contract.job(world.job)
    assert posted.game_count == posted.attestations == 0


def test_a_step_that_is_too_large_as_a_whole_is_disputed_in_micro_batches(world: World) -> None:
    world.post(Job.from_task(wide_task), terms=TERMS)
    job = Job.read(world.root / "files")
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=1)
    world.run(trainer)
    engine = Engine(options=RunOptions(micro_batches=4))
    small = RoleLimits(memory_bytes=engine.dispute_bytes(job))
    assert small.memory_bytes < run_bytes(job.program, job.spec)
    world.run(trainer, AuditorRole(replace(world.context("auditor"), limits=small, engine=engine), world.job))
    assert (world.game(1).outcome, world.game(1).reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)


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


def test_a_spec_that_no_contract_can_judge_is_refused(world: World) -> None:
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
    room, told = context.room(world.job, posted), list[str]()
    content_of = JobContent(context=context, posted=posted, room=room, warn=told.append)
    content_of.job()
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
        assert content_of.job().spec == posted.spec.training
        assert path.read_bytes() == content and "are damaged on this disk" in told.pop() and not told
    shutil.rmtree(room / "job")
    assert content_of.job().spec == posted.spec.training


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
        JobContent(context=context, posted=other, room=context.room(world.job, other), warn=told.append).job()
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


class Busy:
    """Helpers that never have time (as `roundlog.training.Helpers`)."""

    def execute(self, job: Job, run: Callable[[MakeExecution], Any], alone: MakeExecution, warn: object) -> Any:
        return run(alone)


@pytest.mark.parametrize(
    ("helped", "seconds", "keep_every", "enough"),
    [(False, 1e6, 1, True), (True, 20.0, 1, True), (True, 20.0, 5, False)],
)
def test_clocks_are_judged_by_what_rank_0_does_alone(
    helped: bool, seconds: float, keep_every: int, enough: bool, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    """From the states that it keeps. seconds: of a step, which only a helped role measures beside its run."""
    world.post()
    monkeypatch.setattr(engines, "step_seconds", lambda job, options: seconds)
    context = world.context("trainer")
    helpers = cast(Helpers, Busy()) if helped else None
    chosen = replace(context.engine, helpers=helpers, options=RunOptions(keep_every=keep_every))
    trainer = TrainerRole(replace(context, engine=chosen), world.job)
    if enough:
        world.run(trainer)
    else:
        assert "clock" in ended(trainer).state
    assert (world.status is JobStatus.CLAIMED) is enough


class NoLogQueue(TransactionQueue):
    """Commits with content identifiers that lead nowhere."""

    def put(self, order: Order) -> bool:
        if order.call.function == "commit":
            *claim, _, _ = order.call.arguments
            order = replace(order, call=replace(order.call, arguments=(*claim, "Qm" + "1" * 44, "rubbish")))
        return super().put(order)


def test_a_log_that_cannot_be_had_is_done_without_and_a_missing_model_is_reported(world: World) -> None:
    world.post()
    trainer = TrainerRole(replace(world.context("trainer"), make_queue=NoLogQueue), world.job)
    world.run(trainer, AuditorRole(world.context("auditor"), world.job))
    assert world.said("the audit goes without it")
    assert world.contract.job(world.job).attestations == 1
    world.pass_challenge_window()
    progress = ended(world.customer())
    assert "has not published its model" in progress.state
    assert not (world.root / "model.safetensors").exists()


SIZE = 3 << 30
"""Bytes of a file that would be fetched for nothing."""


@pytest.fixture
def blocks(world: World) -> Blocks:
    """The world's store, with blocks of a test's making."""
    world.store = Blocks(world.root / "store")
    return world.store


def files_of(blocks: Blocks, directory: Path) -> dict[str, Cid]:
    return {path.name: Cid.parse(blocks.add_file(path)) for path in sorted(directory.iterdir())}


def post(world: World, files: dict[str, Cid], blocks: Blocks) -> int:
    """A posting of these files under the spec of the linear task."""
    job = small_job()
    contract = world.contract.by(world.senders["customer"])
    world.job, _ = made(
        contract, contract.post_job(world.spec(job.spec), TERMS, str(blocks.directory(*sorted(files.items()))))
    )
    return world.job


def follower(context: RoleContext) -> JobFollower:
    def make(number: int, posted: JobView) -> TrainerRole:
        return TrainerRole(context, number)

    return JobFollower(context, "trainer", make)


def test_three_postings_of_one_leaf_repeated_leave_nothing_on_a_trainer_s_disk(world: World, blocks: Blocks) -> None:
    small_job().write(world.root / "files")
    files = files_of(blocks, world.root / "files")
    for name in (DATA, "torch.py", "program.json"):
        post(world, files | {name: repeated(blocks, SIZE)[0]}, blocks)
    context = world.context("trainer")
    role = follower(context)
    for _ in range(30):
        role.step()
    # The one with a superfluous file is a good job, and is trained without it.
    assert [world.contract.job(job).status for job in (1, 2, 3)] == [JobStatus.OPEN, JobStatus.CLAIMED, JobStatus.OPEN]
    (room,) = (path for path in context.directory.iterdir() if path.name.startswith("job-"))
    assert {path.name for path in (room / "job").iterdir()} == set(JOB_FILES)
    assert size_of(context.directory) < 1 << 20
    assert len(world.said("'torch.py' besides what it is fetched for")) == 1


@pytest.mark.parametrize("name", [CHECKPOINTS_FILE, "sitecustomize.py"])
def test_a_claim_whose_log_is_one_leaf_repeated_costs_an_auditor_no_disk(
    world: World, blocks: Blocks, name: str
) -> None:
    class Padding:
        """Publishes another log than the run's."""

        def __getattr__(self, attribute: str) -> Any:
            return getattr(blocks, attribute)

        def add_directory(self, path: Path) -> str:
            files = files_of(blocks, path) | {name: repeated(blocks, SIZE)[0]}
            return str(blocks.directory(*sorted(files.items())))

        address_of_directory = add_directory

    world.post()
    world.run(TrainerRole(replace(world.context("trainer"), store=Padding()), world.job))  # type: ignore[arg-type]
    assert world.status is JobStatus.CLAIMED
    context = world.context("auditor")
    world.run(AuditorRole(context, world.job))
    assert world.contract.job(world.job).attestations == 1
    assert size_of(context.directory) < 1 << 20
    assert bool(world.said("the audit goes without it")) == (name != "sitecustomize.py")


def test_files_that_are_wrong_are_removed_before_the_role_leaves(world: World) -> None:
    """A role looks several times, and deep enough, before it leaves."""
    small_job().write(world.root / "files")
    damaged = world.root / "files" / DATA
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"\0\0\xc0\x7f")
    post(world, files_of(Blocks(world.root / "store"), world.root / "files"), Blocks(world.root / "store"))
    context = world.context("trainer")
    role = TrainerRole(context, world.job)
    progress = role.step()
    assert not progress.finished and size_of(context.directory) == 0
    assert ended(role).finished
    assert not [path for path in context.directory.iterdir() if path.name.startswith("job-")]


UNFOLLOWABLE: list[dict[str, int]] = [
    {"log_guard": 3},
    {"steps": 1 << 33, "interval": 1 << 33},
    {"chunk_size": 8},
]


@pytest.mark.parametrize("change", UNFOLLOWABLE, ids=lambda change: ", ".join(f"{k} {v}" for k, v in change.items()))
def test_a_spec_that_the_contract_takes_and_the_engine_does_not_gets_no_bond(
    change: dict[str, int], world: World
) -> None:
    spec = replace(small_job().spec, steps=15, interval=15)
    customer = world.contract.by(world.senders["customer"])
    # A CID that leads nowhere: the spec alone is reason enough.
    cid = "Qm" + "1" * 44
    world.job, _ = made(customer, customer.post_job(world.spec(replace(spec, **change)), TERMS, cid))
    funds = {name: world.balance(name) for name in ("trainer", "auditor")}

    progress = ended(TrainerRole(world.context("trainer"), world.job))
    assert progress.finished and progress.state.startswith(
        f"job {world.job} cannot be trained: the posted spec cannot be followed: {next(iter(change))} "
    )
    assert world.status is JobStatus.OPEN

    world.claim_anything(1, cid)
    progress = ended(AuditorRole(world.context("auditor"), world.job))
    assert progress.finished and progress.state.startswith(
        f"job {world.job} cannot be audited: the posted spec cannot be followed: {next(iter(change))} "
    )
    assert world.contract.job(world.job).game_count == 0
    assert {name: world.balance(name) for name in funds} == funds


def timid(job: Job) -> BentExecutor:
    """Stop at an element of the first product of step 3 that has a value, as if its kernel had made NaN of it."""
    first = next(i for i, node in enumerate(job.program.nodes) if node.op == "matmul")

    def compute(running: RunningStep, index: int) -> None:
        running.compute(index)
        if index == first:
            bad = running.values[index].clone()
            bad.view(-1)[2] = torch.nan
            raise NonFiniteError.at(job.program, 3, index, bad)

    return BentExecutor(job.program, compute=compute, steps=lambda step: step == 3)


def audited(job: Job, room: Path, options: RunOptions = DEFAULT_OPTIONS) -> DisputeTrees:
    result = Auditor(job, room, replace(options, continue_after_stop=True)).run()
    assert result.stopped is not None
    return DisputeTrees(job, room, result.state_roots, options)


def test_an_auditor_whose_kernel_stops_wrongly_does_not_lose_its_bond_to_an_honest_trainer(world: World) -> None:
    world.post()
    world.run(TrainerRole(world.context("trainer"), world.job))
    progress = ended(AuditorRole(lying(world.context("auditor"), execution_of(timid)), world.job))
    assert progress.finished and "is wrong (root 0x" in progress.state
    assert "not challenged: step 3: operator" in progress.state
    assert "stops here at element 2, but the contract has 0x" in progress.state
    assert world.contract.job(world.job).game_count == 0


def test_a_stop_is_confirmed_by_the_element_itself_after_a_restart_too(tmp_path: Path) -> None:
    job = diverging_job()
    trees = audited(job, tmp_path)
    assert confirm_stop(trees) is None
    recalled = Engine().recall(job, tmp_path)
    assert recalled is not None and confirm_stop(recalled) is None


def test_a_stop_that_does_not_come_again_is_none(tmp_path: Path) -> None:
    job = diverging_job()
    audited(job, tmp_path, RunOptions(execution=execution_of(timid)))
    trees = Engine().recall(job, tmp_path)
    assert trees is not None
    objection = confirm_stop(trees)
    assert objection is not None and "and goes through when it is executed again: check this machine" in objection
