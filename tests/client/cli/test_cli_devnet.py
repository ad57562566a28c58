"""The development chain as a process: what it prints, its funds, its clock and its state."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from eth_utils import to_checksum_address
from tiebreak.cli.devnet import FUNDING
from tiebreak.rpc.node import connect
from tiebreak.transactions.keys import devnet_account

from tests.client.cli.cli_world import Chain, Run, refused
from tests.client.http_stand_in import Request, serving

STRANGERS = ("0x" + "11" * 20, "0x" + "22" * 20)


class Process:
    """`tiebreak devnet` until `end`. `said`: the JSON that it prints once it can be used."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "tiebreak.cli.app", "devnet", "--port", "0", "--json", *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, **pipes, text=True, start_new_session=True)
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.said: dict[str, Any] = json.loads(line)
        self.environment = {"TIEBREAK_CHAIN": self.said["chain"], "TIEBREAK_CONTRACT": self.said["contract"]}

    def end(self) -> None:
        """Ends it as a supervisor would; it has to end well and to print nothing more."""
        self.process.send_signal(signal.SIGTERM)
        output, errors = self.process.communicate(timeout=20)
        assert (self.process.returncode, output, errors) == (0, "", "")


@pytest.mark.slow
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


def of_ethereum(request: Request) -> None:
    """The answers of a node of Ethereum itself."""
    asked = json.loads(request.body)
    assert asked["method"] == "eth_chainId", "nothing else may be asked of a stranger's chain"
    request.send(200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": "0x1"}).encode())


def test_only_a_development_chain_is_changed(run: Run) -> None:
    with serving(of_ethereum) as url:
        foreign = url.rpartition(":")[2]
        for words in (("--advance", "8d"), ("--fund", STRANGERS[0])):
            refused(run("devnet", "--port", foreign, *words), f"port {foreign} is no development chain", "--port")
    refused(run("devnet", "--port", "1", "--advance", "8d"), "no development chain runs at port 1", "tiebreak devnet")
    refused(run("devnet", "--fund", "0x12"), "0x12 is not an address")
    assert run("devnet", "--port", "1", "--advance", "8").exit_code == 2
