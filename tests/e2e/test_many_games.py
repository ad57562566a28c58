"""Many games at once: what was executed again is shared, and moves go out together."""

from __future__ import annotations

from collections import Counter

import pytest
from roundlog.execution import StepExecutor
from tiebreak.contract.enums import Outcome
from tiebreak.roles.engine import LruCache
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.engines import execution_of, lying, prescribed_executor
from tiebreak_demo.adversary.parties import lying_auditor

from tests.e2e.world import World, with_terms

LIARS = {"auditor": 8, "second": 7, "deployer": 4}


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


class CountingExecutor:
    """Counts executions of steps, observed or not, by step."""

    def __init__(self, honest: StepExecutor, executed: Counter[tuple[int, bool]]) -> None:
        self.program, self.f32_format = honest.program, honest.f32_format
        self._honest, self._executed = honest, executed

    def run(self, inputs, rounding, observe=None):  # type: ignore[no-untyped-def]
        self._executed[inputs.step, observe is not None] += 1
        return self._honest.run(inputs, rounding, observe)


@pytest.mark.slow
def test_games_in_turn_execute_nothing_twice_and_their_moves_go_out_together(world: World) -> None:
    world.post(terms=with_terms(concurrent_games=2))
    executed: Counter[tuple[int, bool]] = Counter()
    execution = execution_of(lambda job: CountingExecutor(prescribed_executor(job), executed))
    trainer = TrainerRole(lying(world.context("trainer"), execution), world.job)
    world.run(trainer)
    liars = [lying_auditor(world.context(name), world.job, first_wrong_step=step) for name, step in LIARS.items()]
    for liar in liars:
        liar.step()
    assert world.contract.job(world.job).live_games == 2 and world.contract.job(world.job).queued_games == 1
    world.run(trainer, *liars, world.referee())
    assert [world.game(game).outcome for game in (1, 2, 3)] == [Outcome.TRAINER_WON] * 3
    # Each disputed step is executed once for its trace, whatever is opened of it; the roots of the two disputed
    # intervals, with what comes before a disputed step in its interval, a second time after the training.
    assert {step for step, observed in executed if observed} == set(LIARS.values())
    assert all(times == 1 for (_, observed), times in executed.items() if observed)
    moves = [notice for notice in world.notices if notice.role == "trainer" and notice.game and notice.receipt]
    transactions = Counter(notice.receipt.transaction for notice in moves if notice.receipt)
    assert max(transactions.values()) == 2


def test_what_was_used_last_is_kept_and_never_more_than_allowed() -> None:
    kept: LruCache[int, str] = LruCache(100)
    for key in range(5):
        kept.put(key, str(key), 30)
        kept.get(0)
    assert list(kept) == [3, 4, 0] and kept.get(1) is None
    kept.put(9, "large", 1000)
    assert list(kept) == [9]
