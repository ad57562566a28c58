"""The server: the loopback interface only, bounded streams, and a room without keys."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
import tiebreak.dashboard
from tiebreak import http_server
from tiebreak.cli.app import app
from tiebreak.dashboard.site import Site
from typer.testing import CliRunner

from tests.client.disputes import Cast
from tests.client.troublesome_clients import seconds_until_cut_off, status
from tests.dashboard.conftest import serving_site

ROOM = Path(tiebreak.dashboard.__file__).parent
KEYS = ("tiebreak.transactions", "tiebreak.devnet", "tiebreak.roles.transaction_queue")
"""Rooms and a module that sign, send, or know keys."""


def test_the_room_imports_nothing_that_signs() -> None:
    found = set()
    for file in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
            elif isinstance(node, ast.Import):
                found |= {one.name for one in node.names}
            elif isinstance(node, ast.Attribute):
                assert node.attr not in ("send", "send_raw", "by", "deploy", "advance_time"), file.name
    assert "tiebreak.contract.game" in found, "the test looks where the room is"
    assert not {name for name in found if name.startswith(KEYS)}
    assert not {name for name in found if name.split(".")[0] in ("eth_account", "eth_keys")}


def test_nothing_of_the_page_is_elsewhere() -> None:
    for file in [*ROOM.glob("templates/*"), *ROOM.glob("static/*")]:
        content = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]|@import|url\(|<style|style=|\son[a-z]+=", content), file.name
        assert not re.search(r"<script(?! src=\"/static/)", content), file.name
        assert "|safe" not in content and "Markup" not in content, file.name


def test_a_page_asks_whether_there_is_something_new(cast: Cast, served: str) -> None:
    before = requests.get(f"{served}changes", timeout=20).json()
    cast.post()
    ends = time.monotonic() + 20
    while requests.get(f"{served}changes", timeout=20).json()["changes"] == before["changes"]:
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_host_that_is_not_this_machine_and_a_request_of_any_size_are_refused(served: str) -> None:
    """All kinds of hosts, and clients that are silent: tests/client/test_http_server.py."""
    more = "X: " + "x" * 200_000
    assert [status(f"{served}jobs", *hosts) for hosts in (["localhost"], ["evil.com"], [])] == [200, 400, 400]
    assert status(f"{served}jobs", "localhost", more=more) == 400


@pytest.mark.slow_but("a byte at a time")
@pytest.mark.parametrize(
    ("begin", "drop"),
    [
        (b"", b""),
        (b"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"x"),
        (b"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n", b"x"),
        (b"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET"),
        (b"GET /static/style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 5000, b"x"),
    ],
    ids=["silent", "a byte at a time", "a body at a time", "after an answer", "reading nothing"],
)
def test_a_client_that_keeps_the_page_waiting_is_cut_off(
    shown: Site, begin: bytes, drop: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SECONDS_PER_REQUEST", 1.0)
    with serving_site(shown) as url:
        assert 0.9 < seconds_until_cut_off(url, begin, drop) < 5


# The command.


def refused(*words: str, code: int = 1) -> str:
    done = CliRunner().invoke(app, ["dashboard", *words], env={"TIEBREAK_CONTRACT": "", "TIEBREAK_CHAIN": ""})
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output and done.stdout == ""
    return " ".join(done.stderr.split())


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    assert "there is no directory" in refused("--files", str(tmp_path / "absent"))
    assert "is not the address of a block explorer" in refused("--explorer", "javascript:alert(1)", code=2)
    assert "is not the address of a block explorer" in refused("--explorer", 'https://x"onclick="', code=2)
    assert "not an address" in refused("--contract", "0x12")


@pytest.mark.slow
def test_the_command_serves_a_page_and_ends_at_a_signal(tmp_path: Path) -> None:
    from tiebreak.contract.game import VerificationGame
    from tiebreak.devnet.launcher import start_devnet
    from tiebreak.rpc.node import connect
    from tiebreak.transactions.keys import devnet_account
    from tiebreak.transactions.sender import Sender

    with start_devnet(kind="embedded") as devnet:
        contract = VerificationGame.deploy(Sender(connect(devnet.url), devnet_account(0)))
        where = ["--chain", devnet.url, "--contract", contract.address]
        process = subprocess.Popen(
            [sys.executable, "-m", "tiebreak.cli.app", "dashboard", "--port", "0", *where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().split()[4]
        shown = requests.get(url, timeout=20)
        assert shown.status_code == 200 and contract.address in shown.text
        process.send_signal(signal.SIGINT)
        out, complaints = process.communicate(timeout=30)
        assert (process.returncode, out, complaints) == (0, "", "")
