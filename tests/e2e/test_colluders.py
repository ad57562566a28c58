"""A trainer and its puppets that never end each other's games, and an honest challenger queued behind them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Reason, Side
from tiebreak.devnet.embedded import embedded_node
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.player import HEAD_START
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import Order
from tiebreak_demo.adversary.dishonest_queues import SilentQueue
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer, tampering_trainer
from tiebreak_demo.adversary.tampering import Lie

from tests.e2e.world import World, function_of, with_terms

pytestmark = pytest.mark.slow

ONE_AT_A_TIME = with_terms(concurrent_games=1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(embedded_node(), tmp_path)


class ColludingQueue(SilentQueue):
    """Sends some moves, and never ends a game."""

    def put(self, order: Order) -> bool:
        return order.call.function != "claimTimeout" and super().put(order)


def colluding(context: RoleContext, *, moves: int = 0) -> RoleContext:
    return replace(context, make_queue=lambda contract, sender: ColludingQueue(contract, sender, moves=moves))


def head_start(auditor: AuditorRole) -> int:
    return int(HEAD_START * auditor.context.queue.block_seconds()) + 1


def test_a_queued_challenger_ends_the_game_before_its_own_and_wins(world: World) -> None:
    world.post(terms=ONE_AT_A_TIME)
    # The first move is the puppet's, so a trainer that never moves loses nothing by it.
    trainer = poisoning_trainer(colluding(world.context("trainer")), world.job, poisoned_step=7)
    world.run(trainer)
    puppet = lying_auditor(colluding(world.context("second")), world.job, first_wrong_step=4)
    world.run(puppet)
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(trainer, puppet, auditor)
    assert world.game(1).deadlines[Side.CHALLENGER] and world.game(2).phase is Phase.QUEUED

    world.pass_time(world.game(1).deadlines[Side.CHALLENGER])
    world.run(trainer, puppet)
    assert world.game(1).phase is not Phase.OVER
    world.pass_time(world.game(1).deadlines[Side.CHALLENGER] + head_start(auditor))
    world.run(trainer, puppet, auditor)
    assert (world.game(1).outcome, world.game(1).reason) == (Outcome.TRAINER_WON, Reason.TIMEOUT)
    assert len(world.said("end a game of others whose clock ran out")) == 1

    assert world.game(2).deadlines[Side.TRAINER]
    world.pass_time(world.game(2).deadlines[Side.TRAINER])
    world.run(trainer, puppet, auditor, world.customer())
    assert (world.game(2).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.REJECTED)
    gains = world.gains()
    assert gains["auditor"] == world.shares(2).winner > 0 and gains["customer"] > 0
    assert gains["trainer"] + gains["second"] < 0


def test_a_queued_challenger_ends_the_wait_for_a_silent_referee(doubtful: None, world: World) -> None:
    """The end of that wait rejects the claim, so that the queued game is void: its bond returns."""
    world.post(terms=ONE_AT_A_TIME)
    lies = [Lie(step=2, operator=function_of(world.root / "files"), element=5, bit=22)]
    trainer = tampering_trainer(colluding(world.context("trainer"), moves=1000), world.job, lies=lies)
    accomplice = AuditorRole(colluding(world.context("second"), moves=1000), world.job)
    world.run(trainer, accomplice)
    assert world.game(1).phase is Phase.REFEREE
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(auditor)
    assert world.game(2).phase is Phase.QUEUED
    world.pass_time(world.game(1).referee_deadline + head_start(auditor))
    world.run(trainer, accomplice, auditor)
    assert (world.game(1).outcome, world.status) == (Outcome.UNDECIDED, JobStatus.REJECTED)
    assert world.game(2).outcome is Outcome.VOID and not world.game(2).bond_held
    assert "auditor" not in world.gains()


def test_a_late_auditor_frees_the_way_for_a_queued_game_that_is_right(world: World) -> None:
    world.post(terms=ONE_AT_A_TIME)
    trainer = poisoning_trainer(colluding(world.context("trainer")), world.job, poisoned_step=7)
    world.run(trainer)
    puppet = lying_auditor(colluding(world.context("deployer")), world.job, first_wrong_step=4)
    world.run(puppet)
    absent = AuditorRole(world.context("second"), world.job)
    world.run(trainer, absent)
    late = AuditorRole(world.context("auditor"), world.job)
    world.pass_challenge_window()
    world.run(late)
    assert world.game(1).reason is Reason.TIMEOUT and world.game(2).phase is not Phase.QUEUED


def test_a_trainer_ends_silent_games_before_its_run_is_at_hand(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.post(terms=ONE_AT_A_TIME)
    first = TrainerRole(world.context("trainer"), world.job)
    world.run(first)
    silent = lying_auditor(colluding(world.context("auditor")), world.job, first_wrong_step=4)
    world.run(silent, first)
    fresh = TrainerRole(world.context("trainer"), world.job)
    monkeypatch.setattr(fresh._run, "trees", lambda *arguments: None)
    world.pass_time(world.game(1).deadlines[Side.CHALLENGER])
    for _ in range(3):
        fresh.step()
    assert world.game(1).outcome is Outcome.TRAINER_WON
