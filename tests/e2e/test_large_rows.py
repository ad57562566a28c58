"""Rows of data that no transaction can carry: what was loaded of them is the referee's to decide, and nobody gets into
that without having said so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from roundlog.adjudication.size import row_bytes
from roundlog.training.job import Job, JobError
from tiebreak.adversary.parties import poisoning_trainer, tampering_auditor
from tiebreak.adversary.tampering import Lie
from tiebreak.chain.records import JobStatus, Outcome, Phase, Reason
from tiebreak.roles import referee as referees
from tiebreak.roles.auditor import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.customer import post_job
from tiebreak.roles.policy import Policy
from tiebreak.roles.trainer import TrainerRole
from world import TERMS, World, ended, linear_task, wide_task

ROW = 17_000 * 4 + 8
"""Bytes of a row of `wide_task`."""


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


def posted(world: World) -> None:
    """A job with large rows, of a customer that accepts the risk."""
    world.policy = Policy(large_rows=True)
    world.post(wide_task())
    world.policy = Policy()


def accepting(world: World, name: str) -> RoleContext:
    return replace(world.context(name), policy=Policy(large_rows=True))


def test_a_row_is_as_large_as_all_its_fields() -> None:
    assert row_bytes(Job.from_task(wide_task()).program) == ROW
    assert row_bytes(Job.from_task(linear_task()).program) == 4 * 4 + 8


def test_such_a_job_is_not_posted_unless_the_customer_accepts_it(world: World) -> None:
    Job.from_task(wide_task()).write(world.root / "files")
    with pytest.raises(JobError) as refusal:
        post_job(world.context("customer"), world.root / "files", TERMS, world.senders["referee"].address)
    for part in (f"takes {ROW} bytes", "more than the 65536", "--allow-large-rows", "make the rows smaller"):
        assert part in str(refusal.value)
    assert world.contract.job_count() == 0
    assert post_job(accepting(world, "customer"), world.root / "files", TERMS, world.senders["referee"].address) == 1


def test_a_trainer_leaves_such_a_job_alone_unless_it_accepts_it(world: World) -> None:
    posted(world)
    progress = ended(TrainerRole(world.context("trainer"), world.job))
    assert f"takes {ROW} bytes" in progress.state and "--allow-large-rows" in progress.state
    assert world.status is JobStatus.OPEN and not world.said("trained to")
    world.run(TrainerRole(accepting(world, "trainer"), world.job))
    assert world.status is JobStatus.CLAIMED


def test_an_auditor_leaves_such_a_job_alone_unless_it_accepts_it(world: World) -> None:
    posted(world)
    world.run(poisoning_trainer(accepting(world, "trainer"), world.job, poisoned_step=1))
    progress = ended(AuditorRole(world.context("auditor"), world.job))
    assert "--allow-large-rows" in progress.state
    assert world.contract.job(world.job).game_count == 0 and not world.said("audited to")
    world.run(AuditorRole(accepting(world, "auditor"), world.job))
    assert world.contract.job(world.job).game_count == 1


def test_who_has_a_bond_at_stake_plays_on_whatever_its_next_process_accepts(world: World) -> None:
    posted(world)
    trainer = poisoning_trainer(accepting(world, "trainer"), world.job, poisoned_step=1)
    auditor = AuditorRole(accepting(world, "auditor"), world.job)
    for _ in range(3):
        trainer.step()
        auditor.step()
    assert world.contract.job(world.job).game_count == 1 and world.game().phase is not Phase.OVER
    restarted = (
        poisoning_trainer(world.context("trainer"), world.job, poisoned_step=1),
        AuditorRole(world.context("auditor"), world.job),
    )
    world.run(*restarted, world.referee())
    assert world.game().outcome is Outcome.CHALLENGER_WON


def falsely_accused(world: World) -> tuple[TrainerRole, tampering_auditor]:
    """An honest trainer whose challenger lies about what was loaded; up to the referee's turn."""
    posted(world)
    load = next(q for q, node in enumerate(Job.read(world.root / "files").program.nodes) if node.op == "data")
    lies = [Lie(step=2, operator=load, element=17_001, bit=22)]
    trainer = TrainerRole(accepting(world, "trainer"), world.job)
    liar = tampering_auditor(accepting(world, "auditor"), world.job, lies=lies)
    world.run(trainer, liar)
    assert world.game().phase is Phase.REFEREE
    return trainer, liar


def test_a_referee_answers_only_a_game_that_lies_deep_enough(world: World) -> None:
    """Its answer names no hash, and after a reorganisation the number may be that of another game."""
    falsely_accused(world)
    world.node.confirmations = 3
    referee = world.referee()
    for _ in range(4):
        referee.step()
        assert not world.said("decide about") and world.game().phase is Phase.REFEREE
    for _ in range(3):
        world.node.advance_time(12)
    world.run(referee)
    assert world.said("decide about") and world.game().outcome is Outcome.TRAINER_WON


def test_a_silent_referee_costs_an_honest_trainer_its_reward(world: World) -> None:
    trainer, liar = falsely_accused(world)
    world.pass_time(world.game().referee_deadline)
    world.run(liar, trainer, world.customer())
    assert (world.game().outcome, world.status) == (Outcome.UNDECIDED, JobStatus.REJECTED)
    # The bonds go back, the liar's too; the reward goes back to the customer, and the work was for nothing.
    assert world.gains() == {}


def test_a_lying_referee_costs_an_honest_trainer_its_bond(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, liar = falsely_accused(world)
    honest = referees.data_value
    monkeypatch.setattr(referees, "data_value", lambda *question: honest(*question) ^ 1 << 22)
    world.run(world.referee(), trainer, liar, world.customer())
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.VERDICT)
    assert world.gains()["trainer"] == -TERMS.trainer_bond
