"""The development chains: in this process, behind HTTP for many, and anvil."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from tiebreak.devnet.launcher import ANVIL_VARIABLE, DevnetState, find_anvil, start_devnet
from tiebreak.devnet.rpc_server import MAX_REQUEST
from tiebreak.rpc.chain_errors import ChainUnavailable, DevnetError, RpcRefused
from tiebreak.rpc.node import ChainNode, connect
from tiebreak.rpc.transport import HttpTransport
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.canned_node import Canned, block


def test_time_travel_on_any_other_chain_is_refused() -> None:
    def refuse(*_: object) -> None:
        raise RpcRefused("evm_setNextBlockTimestamp", -32601, "method not found")

    with pytest.raises(DevnetError, match="development chain"):
        ChainNode(Canned(evm_setNextBlockTimestamp=refuse, eth_getBlockByNumber=block())).advance_time(1)


@pytest.mark.parametrize("kind", ["embedded", "anvil"])
def test_a_port_that_is_taken_is_one_clear_error(kind: str) -> None:
    if kind == "anvil" and find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DevnetError, match=r"port \d+ (is taken|cannot be used)"):
            start_devnet(taken.getsockname()[1], kind=kind)


def test_anvil_where_there_is_none_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANVIL_VARIABLE, "")
    with pytest.raises(DevnetError, match="npm"):
        start_devnet(kind="anvil")
    with start_devnet() as devnet:
        assert devnet.kind == "embedded"
    monkeypatch.setenv(ANVIL_VARIABLE, "/bin/false")
    with pytest.raises(DevnetError, match="did not start"):
        start_devnet(kind="anvil")


def test_a_served_chain_is_shared_by_processes_and_is_gone_when_it_is_closed() -> None:
    script = "import sys; from tiebreak.rpc.node import connect; node = connect(sys.argv[1]); node.advance_time(500)"
    with start_devnet(kind="embedded") as devnet:
        node = connect(devnet.url)
        before = node.head()
        subprocess.run([sys.executable, "-c", script, devnet.url], check=True, timeout=60)
        assert node.head().timestamp == before.timestamp + 500
    with pytest.raises(ChainUnavailable):
        HttpTransport(devnet.url, attempts=1).request("eth_chainId", [])


def test_the_server_refuses_what_a_web_page_could_send_and_what_is_too_large() -> None:
    good = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []})
    json_type = {"Content-Type": "application/json"}
    with start_devnet(kind="embedded") as devnet:

        def post(body: str | bytes, **headers: str) -> requests.Response:
            return requests.post(devnet.url, data=body, headers=headers, timeout=10)

        assert post(good, **json_type).json()["result"].startswith("0x")
        assert post(good, **{"Content-Type": "text/plain"}).status_code == 403
        assert post(good, **json_type, Origin="http://evil.example").status_code == 403
        assert post(good, **json_type, Host="evil.example").status_code == 403
        assert post(b" " * (MAX_REQUEST + 1), **json_type).status_code == 413
        assert requests.get(devnet.url, timeout=10).status_code == 405
        for bad in ("", "{", "[]", "7", "[" * 100_000, '{"id": [], "method": "x"}', '{"id": 1, "method": 7}'):
            assert "error" in post(bad, **json_type).json()
        for method in ("eth_accounts", "eth_sendTransaction", "admin_peers", "evm_revert", "__init__", "", "x" * 1000):
            answer = post(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": []}), **json_type).json()
            assert "error" in answer
        for method in ("eth_getBalance", "eth_call", "eth_getLogs", "eth_sendRawTransaction", "evm_increaseTime"):
            for params in ([], [None], [{}], ["0x"], [7, 7, 7, 7], [[]], ["zz", "latest"]):
                body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
                answer = post(body, **json_type).json()
                assert ("error" in answer) != ("result" in answer)
        assert post(good, **json_type).json()["result"].startswith("0x")


@pytest.mark.slow
def test_anvil_ends_with_the_process_that_started_it_however_that_ends() -> None:
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    script = (
        "import time; from tiebreak.devnet.launcher import start_devnet\n"
        "print(start_devnet(kind='anvil').url, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert HttpTransport(url).request("eth_chainId", [])
        parent.kill()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            HttpTransport(url, attempts=1).request("eth_chainId", [])
        except ChainUnavailable:
            return
        time.sleep(0.05)
    raise AssertionError("anvil has outlived its parent")


def test_anvil_gets_none_of_our_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "anvil"
    binary.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\nexit 1\n")
    binary.chmod(0o755)
    monkeypatch.setenv("TIEBREAK_CHAIN", "https://example.org/a secret")
    monkeypatch.setenv(ANVIL_VARIABLE, str(binary))
    with pytest.raises(DevnetError, match="anvil did not start"):
        start_devnet(kind="anvil")
    said = (tmp_path / "env").read_text()
    assert "PATH=" in said and "a secret" not in said


# Chains that are kept over restarts.


PAYEE = devnet_account(1).address
WEEK = 7 * 86400


def pay(node: ChainNode, wei: int) -> None:
    Sender(node, devnet_account(0)).send(PAYEE, b"", value=wei)


def test_anvils_chain_goes_on_where_it_ended_and_its_clock_does_not_run_back(tmp_path: Path) -> None:
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with DevnetState(tmp_path) as state, start_devnet(kind="anvil", state=state) as devnet:
        node = connect(devnet.url)
        before = node.balance(PAYEE)
        pay(node, 7)
        node.advance_time(WEEK)
        pay(node, 8)
        head = node.head()
        assert head.timestamp >= time.time() + WEEK - 60
    with DevnetState(tmp_path) as state, start_devnet(kind="auto", state=state) as devnet:
        node = connect(devnet.url)
        assert node.head() == head
        assert node.balance(PAYEE) == before + 15
        pay(node, 9)
        assert node.head().number == head.number + 1
        # Anvil makes several blocks in one second.
        assert 0 <= node.head().timestamp - head.timestamp < 60
        assert node.balance(PAYEE) == before + 24


def test_one_process_has_a_state(tmp_path: Path) -> None:
    with DevnetState(tmp_path / "state") as state:
        with pytest.raises(DevnetError, match="another development chain runs on"):
            DevnetState(tmp_path / "state")
        with start_devnet(kind="embedded", state=state) as devnet:
            state.announce(devnet.url, PAYEE)
            said = (tmp_path / "state" / "environment").read_text()
            assert said == f"export TIEBREAK_CHAIN={devnet.url} TIEBREAK_CONTRACT={PAYEE}\n"
    assert not (tmp_path / "state" / "environment").exists()
    with DevnetState(tmp_path / "state") as state:
        assert state.contract == PAYEE
        (tmp_path / "state" / "contract").write_text("rm -rf")
        assert state.contract is None
