"""One process with many jobs: none of them may wait for another's training, and none may break another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiebreak.chain.records import Job, JobStatus, Outcome
from tiebreak.demo.dishonest import LyingAuditor
from tiebreak.roles.auditor import AuditorRole
from tiebreak.roles.follower import Follower
from tiebreak.roles.notices import Notice, What
from tiebreak.roles.trainer import TrainerRole
from world import World, linear_task, with_terms


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


def test_followers_carry_several_jobs_from_the_posting_to_the_money(world: World) -> None:
    jobs = [world.post(linear_task(steps, 2)) for steps in (2, 6)]
    trainer = Follower(
        world.station("trainer"), "trainer", lambda job, posted: TrainerRole(world.station("trainer"), job)
    )
    auditor = Follower(
        world.station("auditor"), "auditor", lambda job, posted: AuditorRole(world.station("auditor"), job)
    )
    world.run(trainer, auditor)
    jobs.append(world.post(linear_task(4, 2)))
    world.run(trainer, auditor)
    assert [world.contract.job(job).attestations for job in jobs] == [1, 1, 1]
    world.pass_challenge_window()
    world.run(trainer, auditor)
    assert {world.contract.job(job).status for job in jobs} == {JobStatus.FINAL}
    assert trainer.step().state == "following 0 jobs"


def test_the_games_of_one_job_go_on_while_another_job_is_trained(world: World) -> None:
    disputed = world.post()
    world.run(TrainerRole(world.station("trainer"), disputed))
    liar = LyingAuditor(world.station("auditor"), disputed, first_wrong_step=7)
    long = world.post(linear_task(40, 4), with_terms(reward=5))
    moved_while_training: list[str] = []
    busy = False

    def notify(notice: Notice) -> None:
        nonlocal busy
        if notice.what is What.STEP and notice.job == long:
            busy = notice.done < notice.total
            liar.step()
        elif notice.what is What.SENT and busy and notice.job == disputed:
            moved_while_training.append(notice.text)

    station = replace(world.station("trainer"), notify=notify)
    # The long job comes first, so that nothing of the other one is in memory when the training begins.
    makers = {long: TrainerRole, disputed: TrainerRole}
    follower = Follower(station, "trainer", lambda job, posted: makers[job](station, job))
    follower.patience = 0.0
    follower._look_for_jobs()
    follower._roles.reverse()
    world.run(liar)
    follower.step()
    assert any("open leaf" in text for text in moved_while_training)
    assert any("bisect OPERATOR" in text for text in moved_while_training)
    world.run(follower, liar, world.referee())
    assert world.game().outcome is Outcome.TRAINER_WON
    assert world.contract.job(long).status is JobStatus.CLAIMED


def test_a_job_that_breaks_its_role_does_not_stop_the_others(world: World) -> None:
    broken, sound = world.post(linear_task(2, 1)), world.post(linear_task(4, 2))

    class Breaking(TrainerRole):
        def batches(self, job):  # type: ignore[no-untyped-def, override]
            raise RuntimeError("an operator nobody has thought of")

    def make(job: int, posted: Job) -> TrainerRole:
        return (Breaking if job == broken else TrainerRole)(world.station("trainer"), job)

    world.run(Follower(world.station("trainer"), "trainer", make))
    assert world.contract.job(sound).status is JobStatus.CLAIMED
    assert len(world.said("gave up the work on job 1")) == 1


def test_a_follower_leaves_alone_what_it_is_told_to(world: World) -> None:
    world.post(linear_task(2, 1))
    follower = Follower(world.station("trainer"), "trainer", lambda job, posted: None)
    assert not follower.step().acted
    assert world.status is JobStatus.OPEN
