"""Trees of a disputed step, with and without room for its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from tiebreak.roles import engine as module
from tiebreak.roles.engine import DisputeTrees

from tests.e2e.world import small_job

STEP = (1, 0)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path, list[bytes]]:
    job, room = small_job(4, 2), tmp_path_factory.mktemp("audited")
    return job, room, Auditor(job, room).run().state_roots


class FullDisk:
    """A disk that has room for so many outputs; then none."""

    def __init__(self, room: int) -> None:
        self.left = room
        self.executions = 0

    def __call__(self, program: object, directory: Path) -> FullDisk:
        self.executions += 1
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return self

    def __setitem__(self, operator: int, output: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")


@pytest.mark.slow
@pytest.mark.parametrize("room", [-1, 0, 5])
def test_a_full_disk_costs_executions_and_changes_nothing(
    audited: tuple[Job, Path, list[bytes]], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room = DisputeTrees(*audited)
    right = with_room.tree(STEP)
    disk = FullDisk(room)
    monkeypatch.setattr(module, "OutputsOnDisk", disk)
    without = DisputeTrees(*audited)
    assert without.tree(STEP).tree.root == right.tree.root
    for q in range(len(audited[0].program.nodes)):
        one, other = with_room.tree((*STEP, q)), without.tree((*STEP, q))
        assert one.tree.root == other.tree.root == right.step.operators[q]
        assert one.chunk(0) == other.chunk(0)
    assert disk.executions > 1
