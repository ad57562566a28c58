"""Ranks that live, and do not come: who tells of them, when, and in which words."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from roundlog.execution.ranks import Ranks, RanksExecutor, dismiss, membership, serve
from roundlog.execution.ranks.membership import LATE, Membership
from roundlog.operators import StepInputs
from roundlog.rounding import Recorder

from tests.engine.ranks import on_ranks
from tests.engine.ranks.rank_processes import call


def others(rank: int, **come: int) -> Membership:
    """The membership of a rank that has come to no collective; the others have come to so many."""
    made = Membership.__new__(Membership)
    made.rank, made.size, made._collectives, made._since, made._is_patient = rank, 1 + len(come), 0, None, False
    made._next = LATE
    made._others = {
        int(name[1:]): membership._Other(name.replace("r", "rank "), 0.0, collectives=count)
        for name, count in come.items()
    }
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=1000.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(membership, "time", made)
    return made


def waits(one: Membership, clock: SimpleNamespace, seconds: float) -> list[float]:
    """Seconds of one wait after which something is told."""
    told: list[float] = []
    with one.collective():
        since = clock.now
        one.on_late = lambda sentence: told.append(clock.now - since)
        while clock.now < since + seconds:
            clock.now += 1
            one.tell_late()
    return told


def test_a_wait_is_told_rarely_and_not_again_unless_it_is_twice_as_long(clock: SimpleNamespace) -> None:
    one = others(0, r1=0)
    assert waits(one, clock, LATE - 1) == []
    assert waits(one, clock, 5 * LATE) == [LATE, 2 * LATE, 4 * LATE]
    assert waits(one, clock, 5 * LATE) == []
    assert waits(one, clock, 9 * LATE) == [8 * LATE]
    # Rank 0 may have other work between two steps.
    with one.patience():
        assert waits(one, clock, 99 * LATE) == []


def test_the_lowest_rank_that_is_not_late_tells_who_is_furthest_behind(clock: SimpleNamespace) -> None:
    assert waits(others(1, r0=1, r2=0), clock, LATE) == []
    for one, named in ((others(0, r1=0, r2=0), "rank 1 and rank 2"), (others(1, r0=0, r2=1), "rank 0")):
        told: list[str] = []
        with one.collective():
            one.on_late = told.append
            clock.now += 600
            one.tell_late()
            assert told == [one.problem] and told[0] == (
                f"{named} kept rank {one.rank} waiting for 10 minutes: look there; once what hangs is ended, the run "
                "can carry on, with any number of ranks"
            )
        assert one.problem is None
    # All have come: nobody's own work holds them up.
    one = others(0, r1=1)
    with one.collective():
        clock.now += 600
        assert one.problem == "all ranks have come, and rank 0 has waited 10 minutes: look at the network between them"


PATIENCE, STUCK = 2.0, 6.5
"""Seconds after which a rank tells, and for which one is stuck."""


def run_with_a_stuck_rank(ranks: Ranks, stuck: int, where: str) -> list[Any]:
    """[sentences told, problems seen] where one rank is stuck before it reads its inputs, or in a step."""
    on_ranks.run_swaps(ranks)  # the first steps take longer
    ranks.numbers(0)
    told: list[str] = []
    ranks.membership.on_late, ranks.membership._next, membership.LATE = told.append, PATIENCE, PATIENCE
    problems, ended = set(), threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            problems.add(ranks.membership.problem)

    threading.Thread(target=look, daemon=True).start()
    program, states = on_ranks.swapping()
    data, schedule = [torch.arange(6.0).view(3, 2)], torch.zeros(0)
    gather, left = Ranks.gather_all, [3]

    def inputs_of(step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        if where == "inputs" and step == 2 and ranks.rank == stuck:
            time.sleep(STUCK)
        return StepInputs(states=states, data=data, schedule=schedule, seed=1, step=step, device=torch.device("cpu"))

    def gather_late(self: Ranks, mine: torch.Tensor, sizes: Any) -> list[torch.Tensor]:
        left[0] -= 1
        if not left[0]:
            time.sleep(STUCK)
        return gather(self, mine, sizes)

    if where == "step" and ranks.rank == stuck:
        Ranks.gather_all = gather_late  # type: ignore[method-assign]
    if ranks.rank:
        serve(program, ranks, inputs_of)
    else:
        executor = RanksExecutor(program, ranks)
        for step in range(4):
            states = executor.run(inputs_of(step, states), Recorder(4)).states
        dismiss(ranks)
    ended.set()
    return [told, sorted(problems - {None})]


SENTENCE = r"rank {late} \(process \d+ on [^ ]+\) kept rank {waiting} waiting for \d s: look there; once .*"


@pytest.mark.slow
@pytest.mark.parametrize(("stuck", "where", "teller"), [(2, "inputs", 0), (0, "step", 1)])
def test_a_rank_that_is_stuck_while_its_heart_beats_is_told_by_one_rank(
    stuck: int, where: str, teller: int | None
) -> None:
    """Once it goes on, all go on."""
    said = call("test_stragglers:run_with_a_stuck_rank", 3, stuck, where)
    for rank, (told, _) in enumerate(said):
        assert bool(told) is (rank == teller), said
        # After 2 s, and after 4.
        assert len(told) <= 2
        assert all(re.fullmatch(SENTENCE.format(late=stuck, waiting=teller), sentence) for sentence in told)
    # Rank 0, which calls a person, sees it as well, but where it is itself the one.
    problems = said[0][1]
    assert bool(problems) is (where == "inputs")
    assert all(f"rank {stuck} (process " in one for one in problems)
