"""The delivery of alerts: to webhooks and commands that answer, fail or hang; the role never waits."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from tiebreak.operation import messenger as module
from tiebreak.operation.messenger import Messenger, check_target

from tests.client.http_stand_in import Request, serving

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


def test_a_webhook_that_hangs_keeps_neither_the_role_nor_other_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    for name in ("PRIVATE_KEY", "KEYSTORE_PASSWORD", "PIN_TOKEN", "CHAIN", "SIGNER", "PIN_SERVICE", "NOT_YET_INVENTED"):
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
