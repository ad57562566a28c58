"""`trainer run` and `auditor run`: what they put a bond on, and what they say before."""

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
from typing import Any

import pytest
import requests
from eth_account import Account
from tiebreak.roles import auditor_role
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.notices import Progress
from tiebreak.roles.shared_audits import Workers
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.cli.cli_world import Chain, Run, Trained, refused

QUICK = ("--poll", "50ms")
CUSTOMER, TRAINER, REFEREE = (devnet_account(number).address for number in (0, 1, 3))


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, ...]:
    return ("--store", str(tmp_path / "store"), "--dir", str(tmp_path / "role"), "--json")


def post(run: Run, chain: Chain, trained: Trained, places: tuple[str, ...], referee: str) -> int:
    words = ("job", "create", trained.job, "--reward", "0.5ether", "--clock", "6h", "--referee", referee)
    result = run(*words, *places, env=chain.environment(0))
    assert result.exit_code == 0, result.stderr
    return int(json.loads(result.stdout)["job"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("caution", "objection"),
    [
        (("--trust-referee", CUSTOMER, "--trust-referee", TRAINER), "is not among the trusted ones"),
        (("--least-reward", "0.6ether"), "less than the 0.6 ether asked"),
    ],
    ids=["referee", "reward"],
)
def test_a_trainer_leaves_a_job_alone_that_it_was_not_told_to_accept(
    run: Run, chain: Chain, trained: Trained, places: tuple[str, ...], caution: tuple[str, ...], objection: str
) -> None:
    job = post(run, chain, trained, places, REFEREE)
    result = run("trainer", "run", "--job", job, *caution, *places, *QUICK, env=chain.environment(1))
    assert result.exit_code == 0, result.stderr
    assert f"job {job} is left alone" in result.stdout and objection in result.stdout
    assert chain.game.job(job).status.name == "OPEN"


def test_a_second_process_in_a_directory_is_refused(
    run: Run, chain: Chain, places: tuple[str, ...], tmp_path: Path
) -> None:
    """It would train in the same directory, and write over what the first one has on record: its runs, what it has
    spent and what it has published."""
    role = tmp_path / "role"
    first = Sender(chain.game.node, devnet_account(2), directory=role)
    first.open()
    own = sorted(path.name for path in role.iterdir())
    words = ("trainer", "run", "--trust-referee", REFEREE, *places, *QUICK)
    result = run(*words, env=chain.environment(1))
    assert refused(result) and f"another process works in {role}" in result.stderr
    assert sorted(path.name for path in role.iterdir()) == own == ["journal", "reserve"]
    first.close()


@pytest.mark.slow
def test_an_auditor_is_given_its_workers(
    run: Run, chain: Chain, trained: Trained, places: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Workers | None] = []

    class Watched(AuditorRole):
        def __init__(self, *arguments: Any, workers: Workers | None = None, **options: Any) -> None:
            found.append(workers)
            super().__init__(*arguments, workers=workers, **options)

        def step(self) -> Progress:
            return Progress(finished=True)

    monkeypatch.setattr(auditor_role, "AuditorRole", Watched)
    job = post(run, chain, trained, places, REFEREE)
    for words in ((), ("--workers", 3, "--share", 0.5, "--repeat-share", "all")):
        result = run("auditor", "run", "--job", job, *words, *places, env=chain.environment(1))
        assert result.exit_code == 0, result.stderr
    alone, shared = found
    assert alone is None and shared is not None
    sharing = shared.sharing
    assert (sharing.workers, sharing.share, sharing.repeat_share, sharing.common_disk) == (3, 0.5, 1.0, True)
    assert shared.stores == (places[places.index("--store") + 1],)
    refused(run("auditor", "run", "--job", job, "--share", 0.5, *places, env=chain.environment(1)), "--workers", code=2)


# A role as an operator runs it.


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


@pytest.mark.slow
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
