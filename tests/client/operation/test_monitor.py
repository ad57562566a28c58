"""Alarms: each cause calls once, whatever swings, and says when it is over; their delivery; and the metrics."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from tiebreak.http_server import LocalServer
from tiebreak.operation import monitor as module
from tiebreak.operation.metrics import Metrics, endpoint
from tiebreak.operation.monitor import (
    STUCK_SECONDS,
    Alarms,
    Alert,
    Cause,
    GameState,
    Messenger,
    RoleMonitor,
    Situation,
    check_target,
    due_of,
)
from tiebreak.rpc.chain_errors import ChainUnavailable

from tests.client.http_stand_in import Request, serving

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


# The delivery of alerts.


ALERT = {"cause": "funds-low", "text": "too little"}


class Hook:
    """Answers of a webhook, given in advance; the last one stays. `got`: what it was sent."""

    def __init__(self, *answers: int) -> None:
        self.got: list[dict[str, object]] = []
        self._answers = list(answers)

    def __call__(self, request: Request) -> None:
        assert (request.command, request.headers["Content-Type"]) == ("POST", "application/json"), "a redirect?"
        self.got.append(json.loads(request.body))
        status = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        request.send(status, Location="/elsewhere")


@pytest.mark.parametrize(
    ("answers", "tries", "lost"), [((200,), 1, 0), ((503, 503, 204), 3, 0), ((500,), 4, 1), ((302,), 4, 1)]
)
def test_an_alert_is_tried_again_until_the_webhook_takes_it(answers: tuple[int, ...], tries: int, lost: int) -> None:
    hook = Hook(*answers)
    with serving(hook) as url:
        messenger = Messenger([url], pauses=(0.0, 0.0, 0.0))
        messenger.send(ALERT)
        messenger.close()
    assert (hook.got, messenger.lost) == ([ALERT] * tries, lost)


def test_a_webhook_that_hangs_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.5)
    file = tmp_path / "alert"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # takes connections, and never says a word
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        messenger = Messenger([hanging, f"sh -c 'cat > {file}.new && mv {file}.new {file}'"], pauses=())
        began, deadline = time.monotonic(), time.monotonic() + 10
        messenger.send(ALERT)
        assert time.monotonic() - began < 0.3
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert json.loads(file.read_text()) == ALERT
        while not messenger.lost and time.monotonic() < deadline:
            time.sleep(0.05)
        assert messenger.lost == 1
        messenger.send(ALERT)
        began = time.monotonic()
        messenger.close(patience=0.2)
        assert time.monotonic() - began < 2


def test_a_command_gets_neither_keys_nor_addresses_with_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRIVATE_KEY", "KEYSTORE_PASSWORD", "CHAIN", "SIGNER", "PIN_SERVICE", "NOT_YET_INVENTED"):
        monkeypatch.setenv(f"TIEBREAK_{name}", "https://example.org/a secret")
    monkeypatch.setenv("ROOM", "a setting")
    messenger = Messenger([f"sh -c 'env > {tmp_path}/env'"])
    messenger.send(ALERT)
    messenger.close()
    said = (tmp_path / "env").read_text()
    assert "a secret" not in said and "a setting" in said and messenger.lost == 0


@pytest.mark.parametrize("command", ["/no/such/program", "false", "sleep 60"])
def test_a_command_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.3)
    messenger = Messenger([command], pauses=())
    messenger.send(ALERT)
    messenger.close()
    assert messenger.lost == 1


def test_what_is_to_be_notified_is_read_from_one_text() -> None:
    for good in ("https://chat.example/hooks/abc", "mail -s 'a role' me@example.org"):
        assert check_target(good) == good
    for bad in ("", "  ", "ftp://example.org/x", "https:///path", "mail 'unfinished"):
        with pytest.raises(ValueError, match=r"[:] .*\.$"):
            check_target(bad)


# The endpoint on the loopback interface, and the metrics behind it.


@pytest.fixture
def served() -> Iterator[LocalServer]:
    paths = {"/health": lambda: (True, {"state": "waits"}), "/ready": lambda: (False, {"chain": "away"})}
    made = endpoint(0, Metrics(RoleMonitor("trainer")).text, paths)
    yield made
    made.stop()


def test_three_pages_are_served_to_programs_of_this_machine(served: LocalServer) -> None:
    answer = requests.get(f"{served.url}/metrics", timeout=5)
    assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "tiebreak_least_clock_ratio" in answer.text
    health, ready = (requests.get(f"{served.url}{path}", timeout=5) for path in ("/health", "/ready"))
    assert (health.status_code, health.json()) == (200, {"ok": True, "state": "waits"})
    assert (ready.status_code, ready.json()) == (503, {"ok": False, "chain": "away"})
    for path in ("/", "/metrics/x"):
        assert requests.get(f"{served.url}{path}", timeout=5).status_code == 404
    assert requests.get(f"{served.url}/metrics", headers={"Host": "evil.example"}, timeout=5).status_code == 403
    assert requests.post(f"{served.url}/metrics", data=b"x", timeout=5).status_code == 405
    port = int(served.url.rsplit(":", 1)[1])
    with pytest.raises(OSError), socket.create_connection((socket.gethostbyname(socket.gethostname()), port), 2):
        if socket.gethostbyname(socket.gethostname()).startswith("127."):
            raise OSError("this machine's name is the loopback interface: nothing to be tried")
