"""Files of one's own: names and lines from a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from roundlog.capture import Task
from roundlog.training.job import Job
from tiebreak.contract.structs import ANYONE, JobView, PostedSpec
from tiebreak.dashboard.local_files import LocalFiles
from tiebreak.dashboard.showing import UNKNOWN
from torch import nn

from tests.dashboard.test_words_and_pictures import JOB

T = TypeVar("T")


def task() -> Task:
    torch.manual_seed(5)
    model = nn.Linear(4, 3)
    return Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(11, 4), "y": torch.randint(0, 3, (11,))},
        batch_size=4,
        steps=6,
        interval=3,
        seed=9,
    )


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A role's directory with a job. Read only."""
    directory = tmp_path_factory.mktemp("role")
    job = Job.from_task(task)
    room = directory / f"job-7-{posted(job).spec_hash.hex()[:16]}"
    job.write(room / "job")
    return directory


def posted(job: Job) -> JobView:
    spec = PostedSpec(job.spec, ANYONE, ANYONE)
    return replace(JOB, spec=spec, spec_hash=spec.hash)


def room_of(role: Path) -> Path:
    return next(role.iterdir())


def waited(ask: Callable[[], T], good: Callable[[T], bool]) -> T:
    """The answer once it is good: files are read beside."""
    ends = time.monotonic() + 60
    while not good(found := ask()):
        assert time.monotonic() < ends, found
        time.sleep(0.02)
    return found


def test_operators_get_their_names_from_a_roles_directory_or_a_jobs(role: Path) -> None:
    job = Job.read(room_of(role) / "job")
    for directory in (role, room_of(role) / "job"):
        local = LocalFiles([directory])
        names = waited(lambda local=local: local.names(posted(job)), lambda found: found is not UNKNOWN)
        assert [kind for kind, _ in names.operators] == [node.op for node in job.program.nodes]
        assert tuple(names.slots) == job.program.state_names
        local.close()


def test_files_of_another_job_and_damaged_ones_give_no_names(role: Path, tmp_path: Path) -> None:
    (tmp_path / "program.json").write_bytes(b"\x00" * 100)
    (tmp_path / "spec.json").write_text("[" * 100_000)
    for directory in (room_of(role) / "job", tmp_path):
        done = threading.Event()
        local = LocalFiles([directory], done=done.set)
        assert local.names(JOB) is UNKNOWN and done.wait(60) and local.names(JOB) is UNKNOWN
        local.close()
