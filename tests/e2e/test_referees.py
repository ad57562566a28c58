"""Referees, and what their silence and their lies cost: asked where the contract decides no rounding of a function."""

from __future__ import annotations

import pytest
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Reason
from tiebreak.roles import referee_role as referees
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.parties import tampering_auditor
from tiebreak_demo.adversary.tampering import Lie

from tests.e2e.world import TERMS, World, function_of


@pytest.fixture
def world(doubtful: None, quick_world: World) -> World:
    return quick_world


def falsely_accused(world: World) -> tuple[TrainerRole, tampering_auditor]:
    """An honest trainer whose challenger lies about a function's value; up to the referee's turn."""
    world.post()
    lies = [Lie(step=2, operator=function_of(world.root / "files"), element=5, bit=12)]
    trainer = TrainerRole(world.context("trainer"), world.job)
    liar = tampering_auditor(world.context("auditor"), world.job, lies=lies)
    world.run(trainer, liar)
    assert world.game().phase is Phase.REFEREE and world.game().disputed.element == 5
    return trainer, liar


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_lying_referee_costs_an_honest_trainer_its_bond(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, liar = falsely_accused(world)
    honest = referees.function_value
    monkeypatch.setattr(referees, "function_value", lambda *question: honest(*question) ^ 1 << 12)
    world.run(world.referee(), trainer, liar, world.customer())
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.VERDICT)
    assert world.gains()["trainer"] == -TERMS.trainer_bond
