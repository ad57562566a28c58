"""A signer in place of a keystore on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.transactions.keys import devnet_account

from tests.client.cli.cli_world import Chain, Run, refused


def test_a_contract_is_deployed_with_a_signers_account(run: Run) -> None:
    """Anvil signs, and is the chain, too."""
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    owner = devnet_account(4).address
    with start_devnet(kind="anvil") as devnet:
        env = {"TIEBREAK_CHAIN": devnet.url, "TIEBREAK_SIGNER": devnet.url}
        refused(run("deploy", env=env), "accounts: name one with --signer-account")
        done = run("deploy", "--signer-account", owner, "--json", env=env)
        assert done.exit_code == 0, done.output
        contract = json.loads(done.stdout)["contract"]
        env |= {"TIEBREAK_SIGNER_ACCOUNT": owner, "TIEBREAK_CONTRACT": contract}
        refused(run("withdraw", env=env), "owes nothing", owner)


def test_what_cannot_be_meant_is_refused(run: Run, chain: Chain, tmp_path: Path) -> None:
    env = {"TIEBREAK_CHAIN": chain.url, "TIEBREAK_CONTRACT": chain.game.address}
    both = ("--signer", "http://127.0.0.1:1", "--keystore", tmp_path / "key.json")
    refused(run("withdraw", *both, env=env), "are two keys: name one of them", code=2)
    refused(run("withdraw", "--signer-account", devnet_account(1).address, env=env), "add --signer", code=2)
    refused(run("withdraw", "--signer", "http://127.0.0.1:1", "--signer-account", "0x12", env=env), "is not an address")
    away = run("withdraw", "--signer", "http://127.0.0.1:1", "--json", env=env)
    refused(away, "no signer answers", "http://127.0.0.1:1")
    assert json.loads(away.stderr)["error"]["code"] == "signer"
