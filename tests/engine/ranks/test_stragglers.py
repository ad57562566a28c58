"""Ranks whose hearts beat, and that do not come: who tells of them, when, and in which words."""

from __future__ import annotations

import re

import pytest
from roundlog.execution.ranks import membership
from roundlog.execution.ranks.membership import LATE, MOST, Lateness, RankProgress, RankWait, StragglerMonitor, lateness

from tests.engine.ranks.on_stragglers import PATIENCE
from tests.engine.ranks.rank_processes import call

BUSY, OTHERS, ORDER, RUN = RankWait.NOTHING, RankWait.OTHERS, RankWait.ORDER, RankWait.RUN


def progress(*of: tuple[int, RankWait, float]) -> dict[int, RankProgress]:
    return {rank: RankProgress(*one) for rank, one in enumerate(of)}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (progress((4, BUSY, 0), (4, BUSY, 0)), None),
        # Where rank 1 stays behind, rank 0 tells; where rank 0 does, the lowest that waits.
        (progress((5, OTHERS, 7), (4, BUSY, 0), (5, OTHERS, 9)), Lateness(0, OTHERS, 7, (1,))),
        (progress((4, BUSY, 0), (5, OTHERS, 7), (5, OTHERS, 9)), Lateness(1, OTHERS, 7, (0,))),
        (progress((4, BUSY, 0), (3, BUSY, 0), (5, OTHERS, 9)), Lateness(2, OTHERS, 9, (0, 1))),
        # Whoever has only sent does not wait for the others, and whoever has come may be the first to go on.
        (progress((9, BUSY, 0), (5, OTHERS, 7), (4, BUSY, 0)), Lateness(1, OTHERS, 7, (2,))),
        (progress((9, OTHERS, 3), (5, OTHERS, 7), (4, BUSY, 0)), Lateness(0, OTHERS, 3, (2,))),
        (progress((9, OTHERS, 3), (5, OTHERS, 7), (9, BUSY, 0)), None),
        (progress((5, BUSY, 0), (5, OTHERS, 7)), None),
        # Rank 0 has other work between two steps, and for hours none at all.
        (progress((4, BUSY, 0), (5, ORDER, 7), (5, ORDER, 9)), Lateness(1, ORDER, 7, (0,))),
        (progress((4, BUSY, 0), (5, RUN, 7), (5, RUN, 9)), None),
        (progress((5, OTHERS, 7), (5, RUN, 9), (4, BUSY, 0)), Lateness(0, OTHERS, 7, (2,))),
        # All have come: nobody's own work holds it up.
        (progress((5, OTHERS, 7), (5, OTHERS, 4), (5, ORDER, 9)), Lateness(0, OTHERS, 4, ())),
    ],
)
def test_the_lowest_rank_that_waits_tells_of_those_that_have_not_come(
    given: dict[int, RankProgress], found: Lateness | None
) -> None:
    assert lateness(given) == found
    assert {rank: RankProgress.of(str(place)) for rank, place in given.items()} == given


class Clock:
    """A clock of the tests."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(membership, "time", made)
    return made


def waits(one: StragglerMonitor, clock: Clock, seconds: float) -> list[float]:
    """Seconds of one wait after which something is told."""
    told: list[float] = []
    with one.waiting():
        since = clock.now
        one.on_late = lambda sentence: told.append(clock.now - since)
        while clock.now < since + seconds:
            clock.now += 1
            one.tell()
    return told


def test_a_wait_is_told_rarely_and_not_again_where_it_has_ended_by_itself(clock: Clock) -> None:
    one = StragglerMonitor(0, "rank {}".format)
    one.others = {1: RankProgress(0, BUSY, 0)}
    assert waits(one, clock, LATE - 1) == []
    assert waits(one, clock, 9 * LATE) == [2 * (LATE - 1), 4 * (LATE - 1), 8 * (LATE - 1)]
    # Who has worked for so long may do so again; but not for hours.
    assert waits(one, clock, 9 * LATE) == []
    assert waits(one, clock, MOST + 1) == [MOST]
    with one.expecting(ORDER):
        assert waits(one, clock, LATE) == [LATE]


def test_a_rank_that_waits_for_nobody_or_for_another_one_to_tell_says_nothing(clock: Clock) -> None:
    one = StragglerMonitor(1, "rank {}".format)
    one.others = {0: RankProgress(1, OTHERS, 1e6), 2: RankProgress(0, BUSY, 0)}
    assert waits(one, clock, 9 * LATE) == []
    assert one.problem is not None and one.problem.startswith("rank 2 has not come to what rank 0 has waited for, for ")


def test_sentences_name_who_has_not_come_and_say_what_to_do(clock: Clock) -> None:
    one = StragglerMonitor(0, "rank {}".format)
    one.others = {1: RankProgress(0, BUSY, 0), 2: RankProgress(0, BUSY, 0)}
    with one.waiting():
        clock.now += 600
        assert one.problem == (
            "rank 1 and rank 2 have not come to what rank 0 has waited for, for 10 minutes: look at them; "
            "once their processes are ended, the run can carry on, with any number of ranks"
        )
        one.others = {1: RankProgress(1, OTHERS, 599), 2: RankProgress(1, OTHERS, 610)}
        assert one.problem == (
            "all ranks have come to what they do together, and it has not ended for 10 minutes: look at the network "
            "between them"
        )
        one.others = {1: RankProgress(1, OTHERS, 599), 2: RankProgress(1, OTHERS, 2)}
        assert one.problem is None
    one.others = {1: RankProgress(2, ORDER, 1e6)}
    assert one.problem is None


SENTENCE = (
    r"rank {late} \(process \d+ on [^ ]+\) has not come to what rank {waiting} has waited for, for \d s: {honest}"
    r"look at that machine; once its process is ended, the run can carry on, with any number of ranks"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stuck", "where", "teller"),
    [(2, "inputs", 0), (0, "step", 1), (0, "between", 1), (1, "disturbed", None)],
)
def test_a_rank_that_is_stuck_while_its_heart_beats_is_told_once_and_by_one_rank(
    stuck: int, where: str, teller: int | None
) -> None:
    """Once it goes on, all go on. A step that all execute again is no such rank."""
    said = call("on_stragglers:run_with_a_stuck_rank", 3, stuck, where)
    for rank, (told, _, _) in enumerate(said):
        assert bool(told) is (rank == teller), said
    assert said[0][2] == 4, "all steps were executed"
    assert len({come for _, _, come in said[1:]}) == 1, "all ranks count alike"
    if teller is None:
        return
    honest = "rank 0 may validate, publish or write between two steps, and if not, " if where == "between" else ""
    told = said[teller][0]
    assert len(told) <= 2, "after 2 s, and after 4"
    for sentence in told:
        assert re.fullmatch(SENTENCE.format(late=stuck, waiting=teller, honest=honest), sentence)
    # Rank 0, which calls a person, sees it as well, even where it is itself the one; but not between its steps.
    problems = said[0][1]
    assert bool(problems) is (where != "between")
    assert all(f"rank {stuck} (process " in one for one in problems)


@pytest.mark.slow
def test_helpers_without_a_run_miss_nobody() -> None:
    told = call("on_stragglers:run_without_a_run", 2, 3 * PATIENCE)
    assert told == [[], []]
