"""One process with many jobs: none of them may wait for another's training, and none may break another."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from roundlog.execution import StepExecutor
from roundlog.training.job import Job as EngineJob
from tiebreak.contract.enums import JobStatus, Outcome
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.background_jobs import BackgroundJobs
from tiebreak.roles.job_role import JobFollower
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.engines import execution_of, lying, prescribed_executor
from tiebreak_demo.adversary.parties import lying_auditor

from tests.e2e.world import World, small_job, with_terms

pytestmark = pytest.mark.slow


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


def test_followers_carry_several_jobs_from_the_posting_to_the_money(world: World) -> None:
    jobs = [world.post(small_job(steps, 2)) for steps in (2, 6)]
    trainers, auditors = world.context("trainer"), world.context("auditor")
    trainer = JobFollower(trainers, "trainer", lambda job, posted: TrainerRole(trainers, job))
    auditor = JobFollower(auditors, "auditor", lambda job, posted: AuditorRole(auditors, job))
    world.run(trainer, auditor)
    jobs.append(world.post(small_job(4, 2)))
    world.run(trainer, auditor)
    assert [world.contract.job(job).attestations for job in jobs] == [1, 1, 1]
    world.pass_challenge_window()
    world.run(trainer, auditor)
    assert {world.contract.job(job).status for job in jobs} == {JobStatus.FINAL}
    world.run(trainer)
    assert trainer.step().state == "follows 0 jobs"


def test_the_games_of_one_job_go_on_while_another_job_is_trained(world: World) -> None:
    disputed = world.post()
    world.run(TrainerRole(world.context("trainer"), disputed))
    liar = lying_auditor(world.context("auditor"), disputed, first_wrong_step=7)
    long = world.post(small_job(40, 4), with_terms(reward=2 * 10**15, trainer_bond=10**15, challenger_bond=10**15))
    world.run(liar)
    held, goes_on = threading.Event(), threading.Event()

    def slow(job: EngineJob) -> StepExecutor:
        """Stands still before its first step, as if every step took hours."""
        if job.spec.steps == 40:
            held.set()
            assert goes_on.wait(60)
        return prescribed_executor(job)

    context = lying(replace(world.context("trainer"), background_jobs=BackgroundJobs()), execution_of(slow))
    follower = JobFollower(context, "trainer", lambda job, posted: TrainerRole(context, job))
    while not held.is_set():
        follower.step()
    for _ in range(400):
        progress, liars = follower.step(), liar.step()
        world.run(world.referee())
        if world.game().outcome is Outcome.TRAINER_WON:
            break
        if not (progress.acted or liars.acted):
            time.sleep(0.02)
    assert world.game().outcome is Outcome.TRAINER_WON and not goes_on.is_set()
    assert world.contract.job(long).status is JobStatus.OPEN
    goes_on.set()
    for _ in range(2000):
        follower.step()
        if world.contract.job(long).status is JobStatus.CLAIMED:
            break
        time.sleep(0.02)
    assert world.contract.job(long).status is JobStatus.CLAIMED
    assert context.background_jobs.close(10)


def test_a_job_that_breaks_its_role_does_not_stop_the_others(world: World) -> None:
    broken, sound = world.post(small_job(2, 1)), world.post(small_job(4, 2))

    def breaking(job: EngineJob) -> StepExecutor:
        raise RuntimeError("an operator nobody has thought of")

    context = world.context("trainer")
    contexts = {broken: lying(context, execution_of(breaking)), sound: context}
    follower = JobFollower(context, "trainer", lambda job, posted: TrainerRole(contexts[job], job))
    for _ in range(5):
        follower.step()
    assert world.contract.job(sound).status is JobStatus.CLAIMED
    assert len(world.said("the training did not succeed: RuntimeError: an operator nobody has thought of")) == 1
