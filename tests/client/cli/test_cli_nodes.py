"""Several nodes on the command line, and in the environment."""

from __future__ import annotations

import json

from tiebreak.devnet.launcher import start_devnet

from tests.client.cli.cli_world import Chain, Run, refused


def test_several_nodes_are_given_by_option_or_variable(run: Run, chain: Chain) -> None:
    same = chain.url.replace("127.0.0.1", "localhost")
    contract = ("--contract", chain.game.address)
    one = run("status", "--chain", chain.url, *contract, "--json")
    assert one.exit_code == 0, one.output
    for words, env, agreement in (
        (["--chain", chain.url, "--chain", same], {}, "agree"),
        ([], {"TIEBREAK_CHAIN": f"{chain.url} {same}"}, "agree"),
        (["--chain", chain.url, "--chain", "http://127.0.0.1:1"], {}, "no usable answer from the chain at http://127"),
    ):
        several = run("status", *words, *contract, "--json", env=env)
        assert several.exit_code == 0, several.output
        shown = json.loads(several.stdout)
        assert shown.pop("nodes").startswith(agreement)
        assert shown == json.loads(one.stdout)


def test_several_nodes_that_cannot_be_meant_are_refused(run: Run, chain: Chain) -> None:
    env = {"TIEBREAK_CONTRACT": chain.game.address}
    refused(run("status", "--chain", chain.url, "--chain", chain.url, env=env), "named twice", "name each once")
    with start_devnet(kind="embedded") as other:
        said = refused(run("status", "--chain", chain.url, "--chain", other.url, env=env), other.url, "of one chain")
        assert "is a node of another chain" in said
    away = ("--chain", "http://127.0.0.1:1", "--chain", "http://127.0.0.1:2")
    refused(run("status", *away, env=env), "none of the nodes http://127.0.0.1:1 and http://127.0.0.1:2 answers")
