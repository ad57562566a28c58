"""Alarms: each cause calls once, whatever swings, and says when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiebreak.operation.alarms import (
    LEAST_DISK,
    OUTAGE_SECONDS,
    STUCK_SECONDS,
    Alarms,
    Alert,
    Cause,
    Due,
    GameState,
    Probe,
    Situation,
    due_of,
)
from tiebreak.roles.notices import Look, Progress
from tiebreak.rpc.transport import NodeAgreement

QUIET = Situation(
    at=1000.0,
    started_at=0.0,
    looked_at=1000.0,
    chain_error="",
    look=Look(progress=Progress(state="waits")),
    probe=Probe(balance=10**18, needed=10**17, store_error="", disk_free=100 << 30),
)
GAME = GameState(job=3, game=7, left=1000, allowance=1000, called=False)


class Time:
    """A watch that judges situations one second after another."""

    def __init__(self) -> None:
        self.alarms = Alarms()
        self.at = QUIET.at

    def pass_by(self, situation: Situation, seconds: float = 1.0) -> list[Alert]:
        """The alerts of so many seconds in which the situation stays; the role looks in each."""
        alerts = []
        for _ in range(round(seconds)):
            self.at += 1
            alerts += self.alarms.judge(replace(situation, at=self.at, looked_at=self.at))
        return alerts


def said(alerts: list[Alert]) -> list[tuple[Cause, bool]]:
    return [(alert.cause, alert.resolved) for alert in alerts]


def test_all_is_quiet_where_all_is_well() -> None:
    time = Time()
    assert time.pass_by(QUIET, 600) == []
    assert time.alarms.active == dict.fromkeys(Cause, 0)


def test_nothing_is_said_of_what_is_not_known() -> None:
    time = Time()
    unknown = replace(QUIET, probe=Probe(), chain_error=None, look=None)
    assert time.pass_by(unknown, 600) == []


def funds(balance: int) -> Situation:
    return replace(QUIET, probe=replace(QUIET.probe, balance=balance, needed=100))


def disk(free: int) -> Situation:
    return replace(QUIET, probe=replace(QUIET.probe, disk_free=free))


@pytest.mark.parametrize(
    ("cause", "well", "low", "near"),
    [
        (Cause.FUNDS_LOW, funds(125), funds(99), funds(124)),
        (Cause.DISK_NEARLY_FULL, disk(3 * LEAST_DISK // 2), disk(LEAST_DISK - 1), disk(3 * LEAST_DISK // 2 - 1)),
    ],
)
def test_a_value_that_swings_around_its_limit_calls_once(
    cause: Cause, well: Situation, low: Situation, near: Situation
) -> None:
    time = Time()
    assert time.pass_by(near, 5) == []
    assert said(time.pass_by(low)) == [(cause, False)]
    for _ in range(50):
        assert time.pass_by(near) == time.pass_by(low) == []
    assert time.alarms.active[cause] == 1
    assert said(time.pass_by(well)) == [(cause, True)]
    assert time.alarms.active[cause] == 0
    assert said(time.pass_by(low)) == [(cause, False)]


@pytest.mark.parametrize("cause", [Cause.CHAIN_UNREACHABLE, Cause.STORE_UNREACHABLE])
def test_an_outage_is_told_after_a_while_and_once(cause: Cause) -> None:
    away = (
        replace(QUIET, chain_error="no answer")
        if cause is Cause.CHAIN_UNREACHABLE
        else replace(QUIET, probe=replace(QUIET.probe, store_error="no answer"))
    )
    time = Time()
    for _ in range(20):  # a node that fails every now and then
        assert time.pass_by(away, OUTAGE_SECONDS - 1) == time.pass_by(QUIET) == []
    (alert,) = time.pass_by(away, OUTAGE_SECONDS + 1)
    assert (alert.cause, alert.resolved, alert.text) == (cause, False, "no answer")
    for _ in range(20):
        assert time.pass_by(QUIET, OUTAGE_SECONDS - 1) == time.pass_by(away) == []
    assert said(time.pass_by(QUIET, OUTAGE_SECONDS + 1)) == [(cause, True)]


def test_nodes_that_disagree_are_told_of_once_at_the_beginning_and_at_the_end() -> None:
    time = Time()
    apart = replace(QUIET, agreement=NodeAgreement(nodes=2, contradiction="a and b differ", undecided=True))
    (alert,) = time.pass_by(apart, 100)
    assert (alert.cause, alert.text) == (
        Cause.NODES_DISAGREE,
        "a and b differ: no new bond is paid until they agree",
    )
    assert time.pass_by(replace(apart, agreement=replace(apart.agreement, undecided=False)), 100) == []
    assert said(time.pass_by(QUIET, 100)) == [(Cause.NODES_DISAGREE, True)]


def test_a_node_that_is_missing_is_told_of_after_a_while() -> None:
    time = Time()
    missing = replace(QUIET, agreement=NodeAgreement(nodes=3, missing=("c is 40 blocks behind",)))
    assert time.pass_by(missing, OUTAGE_SECONDS - 1) == []
    (alert,) = time.pass_by(missing, 10)
    assert (alert.cause, alert.text) == (Cause.NODE_MISSING, "c is 40 blocks behind")
    assert said(time.pass_by(QUIET, OUTAGE_SECONDS + 1)) == [(Cause.NODE_MISSING, True)]


def test_ranks_that_keep_the_others_waiting_call_once() -> None:
    time, late = Time(), replace(QUIET, late_ranks="rank 1 has not come")
    assert time.pass_by(late, OUTAGE_SECONDS - 1) == []
    (alert,) = time.pass_by(late, 600)
    assert (alert.cause, alert.text) == (Cause.RANK_LATE, "rank 1 has not come")
    assert said(time.pass_by(QUIET, OUTAGE_SECONDS + 1)) == [(Cause.RANK_LATE, True)]


def test_half_a_clock_calls_once_a_game_and_ends_with_it() -> None:
    time = Time()
    both = replace(QUIET, games=(GAME, replace(GAME, game=8)))
    assert time.pass_by(both) == []
    half = replace(both, games=(replace(GAME, left=500), replace(GAME, game=8)))
    assert time.pass_by(half, 5) == []
    late = replace(both, games=(replace(GAME, left=499), replace(GAME, game=8)))
    (alert,) = time.pass_by(late, 60)
    assert (alert.cause, alert.job, alert.game) == (Cause.CLOCK_HALF_GONE, 3, 7) and "8m 19s of 16m 40s" in alert.text
    later = replace(both, games=(replace(GAME, left=9), replace(GAME, game=8, left=499)))
    assert [(alert.cause, alert.game) for alert in time.pass_by(later, 60)] == [(Cause.CLOCK_HALF_GONE, 8)]
    # A look that fails shows no games; that is no reason to say that they are over.
    assert time.pass_by(replace(QUIET, chain_error="away", games=()), 30) == []
    over = time.pass_by(QUIET)
    assert {(alert.game, alert.resolved) for alert in over} == {(7, True), (8, True)}
    assert time.pass_by(QUIET, 60) == []


def test_a_referee_that_is_called_is_told_until_it_has_answered() -> None:
    time = Time()
    called = replace(QUIET, games=(replace(GAME, left=None, called=True),))
    assert said(time.pass_by(called, 60)) == [(Cause.REFEREE_CALLED, False)]
    assert said(time.pass_by(replace(QUIET, games=(GAME,)), 60)) == [(Cause.REFEREE_CALLED, True)]


def test_a_role_that_does_not_look_any_more_is_stuck() -> None:
    alarms = Alarms()
    stuck = replace(QUIET, at=QUIET.at + STUCK_SECONDS + 1)
    assert said(alarms.judge(stuck)) == [(Cause.ROLE_STUCK, False)]
    assert alarms.judge(replace(stuck, at=stuck.at + 100)) == []
    assert said(alarms.judge(replace(stuck, looked_at=stuck.at))) == [(Cause.ROLE_STUCK, True)]
    # One that never began is as well.
    alarms = Alarms()
    begun = replace(QUIET, looked_at=None, started_at=0.0)
    assert alarms.judge(replace(begun, at=STUCK_SECONDS)) == []
    assert said(alarms.judge(replace(begun, at=STUCK_SECONDS + 1))) == [(Cause.ROLE_STUCK, False)]


def due(left: int, at: int = 5000) -> Situation:
    look = Look(progress=Progress(state="opens its audit", deadline=at))
    return replace(QUIET, look=look, due=Due(at=at, left=left))


def test_half_of_a_window_to_open_in_calls_once_and_ends_with_what_was_due() -> None:
    time = Time()
    assert time.pass_by(due(1000), 3) == time.pass_by(due(500), 3) == []
    (alert,) = time.pass_by(due(499), 3)
    assert (alert.cause, alert.job, alert.game) == (Cause.CLOCK_HALF_GONE, None, None)
    assert "8m 19s of 16m 40s" in alert.text and "opens its audit" in alert.text
    assert time.pass_by(due(0), 3) == []
    assert said(time.pass_by(QUIET, 3)) == [(Cause.CLOCK_HALF_GONE, True)]


def test_windows_of_jobs_that_take_turns_are_measured_apart() -> None:
    time = Time()
    assert time.pass_by(due(1000, at=5000)) == time.pass_by(due(100, at=4500)) == []
    assert time.pass_by(due(600, at=5000)) == []
    assert said(time.pass_by(due(499, at=5000))) == [(Cause.CLOCK_HALF_GONE, False)]
    assert said(time.pass_by(due(900, at=6000))) == [(Cause.CLOCK_HALF_GONE, True)]


def test_the_deadline_of_a_game_is_left_to_the_alarm_of_its_clock() -> None:
    look = Look(progress=Progress(state="plays", deadline=5000))
    assert due_of(look, (replace(GAME, left=1000),), 4000) is None
    assert due_of(look, (replace(GAME, left=0),), 6000) is None
    assert due_of(look, (replace(GAME, left=900),), 4000) == Due(at=5000, left=1000)
    assert due_of(look, (), 6000) == Due(at=5000, left=0)
    assert due_of(Look(progress=Progress(state="waits")), (), 4000) is None
