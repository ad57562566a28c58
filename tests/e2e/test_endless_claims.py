"""Claims about runs that cannot be: that have no end, were made up, or fit nobody's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from roundlog.capture import Task
from roundlog.program import first_store
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.run_cost import run_bytes
from tiebreak.contract.enums import JobStatus, Level, Outcome, Reason
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleLimits
from tiebreak.roles.engine import Engine
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.parties import poisoning_trainer, tampering_auditor, tampering_trainer
from tiebreak_demo.adversary.tampering import Lie
from torch import nn

from tests.adversaries import hiding_trainer
from tests.e2e.market import OPEN
from tests.e2e.world import TERMS, World, ended, small_job


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
