"""Postings and claims that would fill the disks of all who follow jobs: what is refused leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from roundlog.segment_audits.segment import CHECKPOINTS_FILE
from roundlog.training.job import DATA, JOB_FILES
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.structs import JobView
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext, size_of
from tiebreak.roles.job_role import JobFollower
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.store.dagpb import Cid

from tests.client.crafted_blocks import Blocks, repeated
from tests.client.disputes import made
from tests.e2e.world import TERMS, World, ended, small_job

pytestmark = pytest.mark.slow

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
