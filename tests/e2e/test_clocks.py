"""Time on a quiet chain, where no block comes unless somebody sends something."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from tiebreak.contract.enums import JobStatus, Outcome, Reason, Side
from tiebreak.roles.policy import Policy
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.parties import lying_auditor

from tests.e2e.world import World, small_job, with_terms

pytestmark = pytest.mark.slow


def test_a_trainer_left_alone_claims_the_timeout_and_its_reward_by_itself(world: World) -> None:
    world.post(small_job(2, 1), with_terms(clock_allowance=3_598, challenge_window=3_600))
    hasty = Policy(least_clock=1)
    trainer = TrainerRole(replace(world.context("trainer"), policy=hasty), world.job)
    auditor = silenced(replace(world.context("auditor"), policy=hasty))
    world.run(trainer, lying_auditor(auditor, world.job, first_wrong_step=0))
    # Seconds before the clock is out, and the window closed.
    world.pass_time(
        min(world.game().deadlines[Side.CHALLENGER], world.contract.job(world.job).claim.challenge_deadline) - 3
    )
    end = threading.Timer(60, trainer.stop.set)
    end.start()
    progress = trainer.run(poll=0.2)
    end.cancel()
    assert progress.finished
    assert world.status is JobStatus.FINAL
    assert (world.game().outcome, world.game().reason) == (Outcome.TRAINER_WON, Reason.TIMEOUT)
    # A call that is due with the next block, and refused in the newest one, is no failure.
    assert not world.said("TooEarly")
