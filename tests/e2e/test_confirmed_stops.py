"""No bond is put on a stop that the contract would not find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from roundlog.execution import Executor, NonFiniteError, RunningStep
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions
from tiebreak.roles.auditing import confirm_stop
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.engine import DisputeTrees, Engine
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.engines import execution_of, lying
from tiebreak_demo.adversary.tampering import BentExecutor, SwitchingExecutor

from tests.e2e.test_endless_claims import diverging_job
from tests.e2e.world import World, ended

pytestmark = pytest.mark.slow


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


def timid(job: Job) -> SwitchingExecutor:
    """Stops at an element of the first product of step 3 that has a value, as if its kernel had made NaN of it."""
    first = next(i for i, node in enumerate(job.program.nodes) if node.op == "matmul")

    def compute(running: RunningStep, index: int) -> None:
        running.compute(index)
        if index == first:
            bad = running.values[index].clone()
            bad.view(-1)[2] = torch.nan
            raise NonFiniteError.at(job.program, 3, index, bad)

    bent = BentExecutor(job.program, compute=compute)
    return SwitchingExecutor(Executor(job.program), bent, lambda step: step == 3)


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
