"""Many games at once: what was executed again is shared, and moves go out together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from roundlog.dispute import StepTrace
from tiebreak.adversary.parties import LyingAuditor
from tiebreak.chain.records import Outcome
from tiebreak.game import Output
from tiebreak.roles.evidence import Evidence, Kept
from tiebreak.roles.trainer import TrainerRole
from world import World, with_terms

LIARS = {"auditor": 8, "second": 7, "deployer": 4}


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


class CountingEvidence(Evidence):
    """Counts what is executed again, by what it is about."""

    def __init__(self, evidence: Evidence) -> None:
        vars(self).update(vars(evidence))
        self.executed: Counter[tuple[str, int, int]] = Counter()

    def step_roots(self, interval: int) -> Sequence[bytes]:
        self.executed["roots", interval, 0] += 1
        return super().step_roots(interval)

    def trace(self, step: int, keep: Sequence[int] = ()) -> StepTrace:
        self.executed["trace", step, len(keep)] += 1
        return super().trace(step, keep)

    def output(self, step: int, q: int) -> Output:
        self.executed["output", step, q] += 1
        return super().output(step, q)


def test_games_in_turn_execute_nothing_twice_and_their_moves_go_out_together(world: World) -> None:
    world.post(terms=with_terms(concurrent_games=2))
    counting: list[CountingEvidence] = []

    class Trainer(TrainerRole):
        def alter(self, evidence: Evidence) -> Evidence:
            counting.append(CountingEvidence(evidence))
            return counting[-1]

    trainer = Trainer(world.context("trainer"), world.job)
    world.run(trainer)
    liars = [LyingAuditor(world.context(name), world.job, first_wrong_step=step) for name, step in LIARS.items()]
    for liar in liars:
        liar.step()
    assert world.contract.job(world.job).live_games == 2 and world.contract.job(world.job).queued_games == 1
    world.run(trainer, *liars, world.referee())
    assert [world.game(game).outcome for game in (1, 2, 3)] == [Outcome.TRAINER_WON] * 3
    # The run is forgotten once it is claimed, and read again for the games: what was executed counts over all of them.
    executed = sum((evidence.executed for evidence in counting), Counter[tuple[str, int, int]]())
    assert set(executed.values()) == {1}
    assert {interval for kind, interval, _ in executed if kind == "roots"} == {1, 2}
    moves = [notice for notice in world.notices if notice.role == "trainer" and notice.game and notice.receipt]
    transactions = Counter(notice.receipt.transaction for notice in moves if notice.receipt)
    assert max(transactions.values()) == 2


def test_what_was_used_last_is_kept_and_never_more_than_allowed() -> None:
    kept: Kept[int, str] = Kept(100)
    for key in range(5):
        kept.put(key, str(key), 30)
        kept.get(0)
    assert list(kept) == [3, 4, 0] and kept.get(1) is None
    kept.put(9, "large", 1000)
    assert list(kept) == [9]
