"""The development chain as a process: what it prints, its funds, its clock and its state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from eth_utils import to_checksum_address
from tiebreak.cli.devnet import FUNDING
from tiebreak.rpc.node import connect
from tiebreak.transactions.keys import devnet_account

from tests.client.cli.cli_world import Chain, Run, refused

STRANGERS = ("0x" + "11" * 20, "0x" + "22" * 20)


class Process:
    """`tiebreak devnet` until `end`. `said`: the JSON that it prints once it can be used."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "tiebreak.cli.app", "devnet", "--port", "0", "--json", *map(str, words)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
            start_new_session=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.said: dict[str, Any] = json.loads(line)
        self.environment = {"TIEBREAK_CHAIN": self.said["chain"], "TIEBREAK_CONTRACT": self.said["contract"]}

    def end(self, *, by_ctrl_c: bool = False) -> None:
        """Ends it as a supervisor would, or as a terminal does, which tells anvil as well; it has to end well and to
        print nothing more."""
        if by_ctrl_c:
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGTERM)
        output, errors = self.process.communicate(timeout=20)
        assert not errors, errors
        assert (self.process.returncode, output) == (0, "")


def test_it_runs_until_it_is_told_to_end(run: Run) -> None:
    devnet = Process("--kind", "embedded", "--fund", STRANGERS[0])
    key = devnet.said["accounts"][0]["private_key"]
    node = connect(devnet.said["chain"])
    assert node.balance(devnet.said["accounts"][0]["address"]) == 10_000 * 10**18
    assert node.balance(devnet_account(0).address) == 10_000 * 10**18
    assert json.loads(run("status", "--account", STRANGERS[0], "--json", env=devnet.environment).stdout)[
        "balance_wei"
    ] == str(FUNDING)
    refused(run("withdraw", env=devnet.environment | {"TIEBREAK_PRIVATE_KEY": key}), "owes nothing")
    devnet.end()
    refused(run("status", env=devnet.environment), "start the node")


@pytest.mark.slow
def test_terminals_that_fund_at_the_same_moment_do_not_take_it_from_each_other(chain: Chain) -> None:
    strangers = [f"0x{index:040x}" for index in range(0xF00D00, 0xF00D04)]
    port = chain.url.rsplit(":", 1)[1]
    words = [sys.executable, "-m", "tiebreak.cli.app", "devnet", "--port", port, "--json", "--fund"]
    processes = [subprocess.Popen([*words, one], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for one in strangers]
    for process, one in zip(processes, strangers, strict=True):
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        (balance,) = json.loads(output)["balances_wei"].values()
        assert balance == str(FUNDING) == str(chain.game.node.balance(to_checksum_address(one)))


@pytest.fixture
def foreign() -> Iterator[str]:
    """A node of Ethereum itself, at a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert request["method"] == "eth_chainId", "nothing else may be asked of a stranger's chain"
            body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "0x1"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield str(server.server_address[1])
    server.shutdown()
    server.server_close()


def test_only_a_development_chain_is_changed(run: Run, foreign: str) -> None:
    for words in (("--advance", "8d"), ("--fund", STRANGERS[0])):
        refused(run("devnet", "--port", foreign, *words), f"port {foreign} is no development chain", "--port")
    refused(run("devnet", "--port", "1", "--advance", "8d"), "no development chain runs at port 1", "tiebreak devnet")
    refused(run("devnet", "--fund", "0x12"), "0x12 is not an address")
    assert run("devnet", "--port", "1", "--advance", "8").exit_code == 2
