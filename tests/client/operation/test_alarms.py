"""Alarms: each cause calls once, whatever swings, and says when it is over."""

from __future__ import annotations

from dataclasses import replace

from tiebreak.operation.monitor import STUCK_SECONDS, Alarms, Alert, Cause, GameState, RoleMonitor, Situation, due_of
from tiebreak.rpc.chain_errors import ChainUnavailable

QUIET = Situation(
    at=1000.0,
    looked_at=1000.0,
    state="waits",
    chain_error="",
    balance=10**18,
    needed=10**17,
    store_error="",
    disk_free=100 << 30,
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


def said(alerts: list[Alert]) -> list[tuple[Cause, bool | None]]:
    return [(alert.cause, alert.holds) for alert in alerts]


def test_nothing_is_said_where_all_is_well_or_not_known() -> None:
    time = Time()
    assert time.pass_by(QUIET, 600) == time.pass_by(Situation(at=0.0, looked_at=0.0), 600) == []
    assert not time.alarms.active


def test_funds_that_swing_around_their_limit_call_once() -> None:
    time = Time()

    def having(balance: int) -> Situation:
        return replace(QUIET, balance=balance, needed=100)

    assert time.pass_by(having(124), 5) == []
    assert said(time.pass_by(having(99))) == [(Cause.FUNDS_LOW, True)]
    for _ in range(50):
        assert time.pass_by(having(124)) == time.pass_by(having(99)) == []
    assert time.pass_by(replace(QUIET, balance=None), 5) == [], "not known is no end"
    assert time.alarms.active == {Cause.FUNDS_LOW: 1}
    assert said(time.pass_by(having(125))) == [(Cause.FUNDS_LOW, False)]
    assert said(time.pass_by(having(99))) == [(Cause.FUNDS_LOW, True)]


def test_half_a_clock_calls_once_a_game_and_ends_with_it() -> None:
    time = Time()
    other = replace(GAME, game=8)
    assert time.pass_by(replace(QUIET, games=(replace(GAME, left=500), other)), 5) == []
    (alert,) = time.pass_by(replace(QUIET, games=(replace(GAME, left=499), other)), 60)
    assert (alert.cause, alert.job, alert.game) == (Cause.CLOCK_HALF_GONE, 3, 7) and "8m 19s of 16m 40s" in alert.text
    later = time.pass_by(replace(QUIET, games=(replace(GAME, left=9), replace(other, left=499))), 60)
    assert [(alert.cause, alert.game) for alert in later] == [(Cause.CLOCK_HALF_GONE, 8)]
    assert {(alert.game, alert.holds) for alert in time.pass_by(QUIET)} == {(7, False), (8, False)}
    assert time.pass_by(QUIET, 60) == []


def test_a_role_that_cannot_begin_because_of_its_disk_counts_as_stuck() -> None:
    seconds = [0.0]
    monitor = RoleMonitor("auditor", clock=lambda: seconds[0])
    for seconds[0] in (100.0, STUCK_SECONDS + 1):
        monitor.unreachable(PermissionError("role"))
    assert not monitor.health()[0]
    monitor.unreachable(ChainUnavailable("no answer."))
    assert monitor.health()[0]


def due(left: int, at: int = 5000) -> Situation:
    return replace(QUIET, state="opens its audit", due=(at, left))


def test_half_of_a_window_to_open_in_calls_once_and_ends_with_what_was_due() -> None:
    time = Time()
    assert time.pass_by(due(1000), 3) == time.pass_by(due(500), 3) == []
    (alert,) = time.pass_by(due(499), 3)
    assert (alert.cause, alert.job, alert.game) == (Cause.DEADLINE_NEAR, None, None)
    assert "8m 19s of 16m 40s" in alert.text and "opens its audit" in alert.text
    assert time.pass_by(due(0), 3) == []
    assert said(time.pass_by(QUIET, 3)) == [(Cause.DEADLINE_NEAR, False)]


def test_windows_of_jobs_that_take_turns_are_measured_apart() -> None:
    time = Time()
    assert time.pass_by(due(1000, at=5000)) == time.pass_by(due(100, at=4500)) == []
    assert time.pass_by(due(600, at=5000)) == []
    assert said(time.pass_by(due(499, at=5000))) == [(Cause.DEADLINE_NEAR, True)]
    assert said(time.pass_by(due(900, at=6000))) == [(Cause.DEADLINE_NEAR, False)]


def test_the_deadline_of_a_game_is_left_to_the_alarm_of_its_clock() -> None:
    assert due_of(5000, (GAME,), 4000) is None
    assert due_of(5000, (replace(GAME, left=0),), 6000) is None
    assert due_of(5000, (replace(GAME, left=900),), 4000) == (5000, 1000)
    assert due_of(5000, (), 6000) == (5000, 0)
    assert due_of(None, (), 4000) is None
