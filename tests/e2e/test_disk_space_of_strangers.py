"""Postings and claims that would fill the disks of all who follow jobs: what is refused leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from roundlog.segment_audits.segment import CHECKPOINTS_FILE
from roundlog.training.job import DATA, JOB_FILES, Job
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.structs import JobView
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext, RoleLimits, size_of
from tiebreak.roles.job_role import JobFollower
from tiebreak.roles.notices import Notice, What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.store.dagpb import Cid

from tests.client.crafted_blocks import Blocks, repeated
from tests.client.disputes import made
from tests.e2e.world import TERMS, World, ended, linear_task

SIZE = 3 << 30
"""Bytes of a file that would be fetched for nothing."""


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


@pytest.fixture
def blocks(world: World) -> Blocks:
    """The world's store, with blocks of a test's making."""
    world.store = Blocks(world.root / "store")
    return world.store


def files_of(blocks: Blocks, directory: Path) -> dict[str, Cid]:
    return {path.name: Cid.parse(blocks.add_file(path)) for path in sorted(directory.iterdir())}


def post(world: World, files: dict[str, Cid], blocks: Blocks) -> int:
    """A posting of these files under the spec of the linear task."""
    job = Job.from_task(linear_task)
    contract = world.contract.by(world.senders["customer"])
    world.job, _ = made(
        contract, contract.post_job(world.spec(job.spec), TERMS, str(blocks.directory(*sorted(files.items()))))
    )
    return world.job


def follower(context: RoleContext) -> JobFollower:
    def make(number: int, posted: JobView) -> TrainerRole:
        return TrainerRole(context, number)

    return JobFollower(context, "trainer", make)


@pytest.mark.slow
def test_three_postings_of_one_leaf_repeated_leave_nothing_on_a_trainer_s_disk(world: World, blocks: Blocks) -> None:
    Job.from_task(linear_task).write(world.root / "files")
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["00000000.rlog", CHECKPOINTS_FILE, "sitecustomize.py"])
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
    Job.from_task(linear_task).write(world.root / "files")
    damaged = world.root / "files" / DATA
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"\0\0\xc0\x7f")
    post(world, files_of(Blocks(world.root / "store"), world.root / "files"), Blocks(world.root / "store"))
    context = world.context("trainer")
    role = TrainerRole(context, world.job)
    progress = role.step()
    assert not progress.finished and size_of(context.directory) == 0
    assert ended(role).finished
    assert not [path for path in context.directory.iterdir() if path.name.startswith("job-")]


@pytest.mark.slow
def test_what_a_killed_fetch_has_left_of_a_refused_job_is_removed(
    world: World, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    Job.from_task(linear_task).write(world.root / "files")
    post(world, files_of(blocks, world.root / "files"), blocks)
    read, left = blocks.block, [5]

    def killed(*arguments: Any) -> bytes:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return read(*arguments)

    context = world.context("trainer")
    with monkeypatch.context() as patched:
        patched.setattr(blocks, "block", killed)
        with pytest.raises(KeyboardInterrupt):
            TrainerRole(context, world.job).step()
    assert size_of(context.directory) > 0
    small = replace(context, limits=RoleLimits(memory_bytes=1000))
    assert "memory" in ended(TrainerRole(small, world.job)).state
    assert size_of(context.directory) == 0


@pytest.mark.slow
def test_a_run_survives_a_refusal_that_is_only_for_now(world: World) -> None:
    """Memory may be short after a restart, and before it commits a trainer has no bond that would show what it has
    done."""
    world.post()
    context = world.context("trainer")
    steps: list[int] = []

    def killed(notice: Notice) -> None:
        if notice.what is What.STEP:
            steps.append(notice.done)
            if notice.done == 10:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TrainerRole(replace(context, notify=killed), world.job).step()
    room = context.room(world.job, world.contract.job(world.job))
    run = {path: path.read_bytes() for path in (room / "run").rglob("*") if path.is_file()}
    assert run
    small = replace(context, limits=RoleLimits(memory_bytes=1000))
    assert "memory" in ended(TrainerRole(small, world.job)).state
    assert {path: path.read_bytes() for path in room.rglob("*") if path.is_file()} == {**run, room / "left": b""}
    world.run(TrainerRole(context, world.job))
    assert world.status is JobStatus.CLAIMED and not (room / "left").exists()
    assert next(notice.done for notice in world.notices if notice.what is What.STEP) == 10, "it carries on"
