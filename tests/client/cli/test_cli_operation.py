"""A role as an operator runs it: metrics, health and alerts, from the options of the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from eth_account import Account
from tiebreak.transactions.keys import devnet_account

from tests.client.cli.cli_world import Chain, Run, refused

REFEREE = devnet_account(3).address


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_role_serves_metrics_and_calls_a_person(chain: Chain, tmp_path: Path) -> None:
    """Its account is empty, which is the first thing that a person has to know."""
    alert = tmp_path / "alert"
    command = [sys.executable, "-m", "tiebreak.cli.app", "auditor", "run", "--trust-referee", REFEREE, "--json"]
    command += ["--metrics", "0", "--notify", f"sh -c 'cat >> {alert}'", "--poll", "100ms"]
    command += ["--dir", str(tmp_path / "role"), "--store", str(tmp_path / "store")]
    poor = Account.from_key(b"\x07" * 32)
    env = dict(os.environ) | chain.environment() | {"TIEBREAK_PRIVATE_KEY": "07" * 32}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        assert said["what"] == "computed" and "serves its metrics at http://127.0.0.1:" in said["text"]
        url = said["text"].rsplit(" ", 1)[1]
        eventually(lambda: "tiebreak_balance_ether 0.0" in requests.get(url, timeout=5).text)
        eventually(lambda: alert.exists() and alert.read_text().endswith("}"))
        found = json.loads(alert.read_text())
        assert (found["cause"], found["resolved"], found["account"]) == ("funds-low", False, poor.address)
        text = requests.get(url, timeout=5).text
        assert 'tiebreak_alerts_active{cause="funds-low"} 1.0' in text
        assert f'account="{poor.address}",role="auditor"' in text and "tiebreak_looks_total" in text
        base = url.removesuffix("/metrics")
        assert requests.get(f"{base}/health", timeout=5).json()["ok"] is True
        eventually(lambda: requests.get(f"{base}/ready", timeout=5).status_code == 200)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
        assert process.returncode == 130 and "Traceback" not in errors
        assert json.loads(errors)["error"]["code"] == "interrupted"
    finally:
        process.kill()
    told = [json.loads(line) for line in output.splitlines()]
    assert [one["text"].split(":")[0] for one in told if one["what"] == "alert"] == ["funds-low"]
    assert "07" * 32 not in output + alert.read_text()


def test_what_cannot_be_used_is_refused_before_the_role_begins(run: Run, chain: Chain, tmp_path: Path) -> None:
    words = ("referee", "run", "--dir", tmp_path / "role", "--store", tmp_path / "store")
    env = chain.environment(1)
    refused(run(*words, "--notify", "mail 'x", env=env), "check its quotes", code=2)
    refused(run(*words, "--notify", "gopher://x", env=env), "only http and https", code=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(run(*words, "--metrics", port, env=env), f"port {port} cannot be used", "choose another")
    assert run(*words, "--metrics", 70000, env=env).exit_code == 2
