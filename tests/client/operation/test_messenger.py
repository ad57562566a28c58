"""The delivery of alerts: to webhooks and commands that answer, fail or hang; the role never waits."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiebreak.operation import messenger as module
from tiebreak.operation.messenger import Command, Messenger, Webhook, target

ALERT = {"cause": "funds-low", "text": "too little"}


class Server:
    """A webhook whose answers are given in advance; the last one stays."""

    def __init__(self, *answers: int) -> None:
        self.got: list[dict[str, object]] = []
        self.answers = list(answers)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.headers["Content-Type"] == "application/json"
                server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                raise AssertionError("a redirect was followed")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/secret-path"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(*request.param)
    yield made
    made.close()


@pytest.mark.parametrize("server", [(200,), (503, 503, 204)], indirect=True)
def test_an_alert_arrives_once_even_if_the_webhook_fails_at_first(server: Server) -> None:
    tries = len(server.answers)
    messenger = Messenger([Webhook(server.url)], pauses=(0.0, 0.0, 0.0))
    messenger.send(ALERT)
    messenger.close()
    assert server.got == [ALERT] * tries and messenger.failed == 0


@pytest.mark.parametrize("server", [(500,), (302,)], indirect=True)
def test_a_webhook_that_never_takes_it_is_counted_without_its_secret(server: Server) -> None:
    messenger = Messenger([Webhook(server.url)], pauses=(0.0, 0.0))
    messenger.send(ALERT)
    messenger.close()
    assert len(server.got) == 3 and messenger.failed == 1
    assert "127.0.0.1" in messenger.last_failure and "secret" not in messenger.last_failure


def test_a_webhook_that_is_away_is_named_without_its_secret() -> None:
    messenger = Messenger([Webhook("http://127.0.0.1:1/secret")], pauses=())
    messenger.send(ALERT)
    messenger.close()
    assert messenger.failed == 1 and "secret" not in messenger.last_failure


def test_a_webhook_that_hangs_keeps_neither_the_role_nor_other_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.5)
    file = tmp_path / "alert"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # takes connections, and never says a word
        hanging = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        messenger = Messenger(
            [hanging, Command(["/bin/sh", "-c", f"cat > {file}.$$ && mv {file}.$$ {file}"])], pauses=()
        )
        began = time.monotonic()
        for _ in range(300):  # more than may wait
            messenger.send(ALERT)
        assert time.monotonic() - began < 0.3
        deadline = time.monotonic() + 10
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert json.loads(file.read_text()) == ALERT
        deadline = time.monotonic() + 10
        while "no answer within" not in messenger.last_failure and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "no answer within 0.5 seconds" in messenger.last_failure
        began = time.monotonic()
        messenger.close(patience=0.2)
        assert time.monotonic() - began < 2


def test_a_command_gets_neither_keys_nor_addresses_with_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRIVATE_KEY", "KEYSTORE_PASSWORD", "PIN_TOKEN", "CHAIN", "SIGNER", "PIN_SERVICE", "NOT_YET_INVENTED"):
        monkeypatch.setenv(f"TIEBREAK_{name}", "https://example.org/a secret")
    monkeypatch.setenv("ROOM", "a setting")
    messenger = Messenger([Command(["/bin/sh", "-c", f"env > {tmp_path}/env"])])
    messenger.send(ALERT)
    messenger.close()
    said = (tmp_path / "env").read_text()
    assert "a secret" not in said and "a setting" in said and messenger.failed == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [(["/no/such/program"], "No such file"), (["false"], "exit code 1"), (["sleep", "60"], "did not end within")],
)
def test_a_command_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch, words: list[str], why: str) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.3)
    messenger = Messenger([Command(words)], pauses=())
    messenger.send(ALERT)
    messenger.close()
    assert messenger.failed == 1 and why in messenger.last_failure


def test_what_is_to_be_notified_is_read_from_one_text() -> None:
    assert isinstance(target("https://chat.example/hooks/abc"), Webhook)
    assert target("https://chat.example/hooks/abc").name == "the webhook at chat.example"
    command = target("mail -s 'a role' me@example.org")
    assert isinstance(command, Command) and command.name == "the command mail"
    for bad in ("", "  ", "ftp://example.org/x", "https:///path", "mail 'unfinished"):
        with pytest.raises(ValueError, match=r"[:] .*\.$"):
            target(bad)
    assert os.environ  # shlex reads no shell: nothing of a text is ever expanded
    assert isinstance(target("echo $HOME; rm -rf x"), Command)
