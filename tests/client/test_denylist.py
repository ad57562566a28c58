"""Contracts that a release lists as broken are refused, whatever their code says."""

from __future__ import annotations

import json

import pytest
from tiebreak.contract import code
from tiebreak.contract.code import ADJUDICATORS_PARTS, LIBRARIES, Broken, fingerprint, is_game, parse, why_broken
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import embedded_node
from tiebreak.rpc.chain_errors import DeploymentError

from tests.client.disputes import Cast


def test_the_list_of_this_release_can_be_read_and_names_contracts_that_there_are() -> None:
    for entry in code.shipped():
        assert entry.reason and entry.contract in ("VerificationGame", "Adjudicator", *ADJUDICATORS_PARTS, *LIBRARIES)


@pytest.mark.parametrize("contract", ["VerificationGame", "Verdicts", "Adjudicator", "Functions", "Reducer"])
def test_a_code_that_is_listed_is_refused_wherever_it_stands(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cast = Cast.on(embedded_node())
    node, address, adjudicator = cast.customer.node, cast.customer.address, cast.customer.adjudicator()
    assert VerificationGame.at(node, address).job_count() == 0
    listed = parse(
        json.dumps([{"contract": contract, "fingerprint": "0x" + fingerprint(contract).hex(), "reason": "rounds up"}])
    )
    monkeypatch.setattr(code, "shipped", lambda: listed)
    games = contract in ("VerificationGame", "Verdicts")
    assert why_broken("VerificationGame", node.chain_id, address) == ("rounds up" if games else None)
    assert why_broken("Adjudicator", node.chain_id, adjudicator) == (None if games else "rounds up")
    if games:
        assert is_game(node, address)  # the code is still what it was
        with pytest.raises(DeploymentError, match="known to be broken"):
            VerificationGame.at(node, address)


def test_one_deployment_can_be_listed_alone() -> None:
    node = embedded_node()
    game = Cast.on(node).customer.address
    other = Cast.on(node).customer.address
    listed = [Broken(contract="VerificationGame", reason="old", chain_id=node.chain_id, address=game)]
    assert why_broken("VerificationGame", node.chain_id, game, listed) == "old"
    assert why_broken("VerificationGame", node.chain_id, other, listed) is None
    assert why_broken("VerificationGame", node.chain_id + 1, game, listed) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}x",
        "[1]",
        '[{"contract": "VerificationGame"}]',
        '[{"contract": "VerificationGame", "reason": "x"}]',
        '[{"contract": "VerificationGame", "reason": "x", "fingerprint": "0x12"}]',
        '[{"contract": "VerificationGame", "reason": "x", "address": "0x00000000000000000000000000000000000000aa"}]',
        '[{"contract": "VerificationGame", "reason": "x", "chain_id": 1, "address": "nobody"}]',
        '[{"contract": "VerificationGame", "reason": "x", "fingerprint": "zz"}]',
    ],
)
def test_a_list_that_is_malformed_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(DeploymentError, match="malformed"):
        parse(text)
