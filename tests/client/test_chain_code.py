"""Code at an address: the game over its libraries, the adjudicator over its functions, nothing else."""

from __future__ import annotations

import pytest
from eth_typing import ChecksumAddress
from eth_utils.address import to_canonical_address
from tiebreak.contract.code import (
    ADJUDICATORS_PARTS,
    LIBRARIES,
    ContractCode,
    deploy_adjudicator,
    is_adjudicator,
    is_game,
)
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import embedded_node
from tiebreak.rpc.chain_errors import DeploymentError, NoCode
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender


@pytest.fixture(scope="module")
def sender() -> Sender:
    return Sender(embedded_node(), devnet_account(0))


def word(address: ChecksumAddress) -> bytes:
    return bytes(12) + to_canonical_address(address)


def deploy_raw(sender: Sender, code: bytes) -> ChecksumAddress:
    """A contract with exactly this code."""
    # PUSH2 length, DUP1, PUSH1 11, PUSH0, CODECOPY, PUSH0, RETURN
    start = b"\x61" + len(code).to_bytes(2, "big") + bytes.fromhex("80600a5f395ff3")
    assert len(start) == 10
    address = sender.send(None, start + code).contract
    assert address is not None and sender.node.code(address) == code
    return address


def test_the_game_is_known_by_its_code_and_by_that_of_its_libraries(sender: Sender) -> None:
    game = VerificationGame.deploy(sender)
    node = sender.node
    assert is_game(node, game.address) and is_adjudicator(node, game.adjudicator())
    assert not is_game(node, game.adjudicator()) and not is_adjudicator(node, game.address)
    with pytest.raises(NoCode, match="caught up"):
        is_game(node, sender.address)
    found = ContractCode.load("VerificationGame").at(node, game.address)
    assert found is not None and list(found.immutables) == [word(game.adjudicator())]
    assert set(found.libraries) == set(LIBRARIES)
    code = node.code(game.address)
    for position in (0, 100, len(code) - 1):
        changed = bytearray(code)
        changed[position] ^= 1
        other = deploy_raw(sender, bytes(changed))
        assert not is_game(node, other)
        with pytest.raises(DeploymentError, match=other):
            VerificationGame.at(node, other)
    assert is_game(node, deploy_raw(sender, code))
    assert not is_game(node, deploy_raw(sender, code[:-1]))


def test_a_game_over_another_library_is_another_game(sender: Sender) -> None:
    game = VerificationGame.deploy(sender)
    deployed = ContractCode.load("VerificationGame").at(sender.node, game.address)
    assert deployed is not None
    code = sender.node.code(game.address)
    stranger = deploy_raw(sender, b"\x00")
    for name, places in ContractCode.load("VerificationGame").deployed_links.items():
        changed, once = code, code
        for number, (start, length) in enumerate(places):
            changed = changed[:start] + to_canonical_address(stranger) + changed[start + length :]
            if number == 0:
                once = changed
        assert not is_game(sender.node, deploy_raw(sender, changed)), name
        assert not is_game(sender.node, deploy_raw(sender, once)), name
    # Another library's code under a library's name, and a library that believes to stand elsewhere.
    for other in ("LevelOpenings", "a copy"):
        ours = deployed.libraries
        another = deploy_raw(sender, sender.node.code(ours["Proofs"])) if other == "a copy" else ours[other]
        made = ContractCode.load("VerificationGame").deploy(
            sender, links={**ours, "Proofs": another}, argument=word(game.adjudicator())
        )
        assert made.contract is not None and not is_game(sender.node, made.contract), other


def test_an_adjudicator_over_other_contracts_is_another_one(sender: Sender) -> None:
    node = sender.node
    adjudicator = deploy_adjudicator(sender)
    assert is_adjudicator(node, adjudicator)
    stranger = deploy_raw(sender, node.code(adjudicator)[:50])
    found = ContractCode.load("Adjudicator").at(node, adjudicator)
    assert found is not None and len(found.immutables) == len(ADJUDICATORS_PARTS)
    functions, reducer = found.immutables
    for parts in ((word(stranger), reducer), (functions, word(stranger)), (reducer, functions)):
        other = ContractCode.load("Adjudicator").deploy(sender, argument=b"".join(parts)).contract
        assert other is not None and not is_adjudicator(node, other)
    # One place shows the contract that everybody knows, the other calls a different one.
    code = node.code(adjudicator)
    for places in ContractCode.load("Adjudicator").immutables:
        assert len(places) > 1
        for start, length in places:
            assert not is_adjudicator(node, deploy_raw(sender, code[:start] + word(stranger) + code[start + length :]))
        dirty = code
        for start, length in places:
            dirty = dirty[:start] + b"\x01" + dirty[start + 1 : start + length] + dirty[start + length :]
        assert not is_adjudicator(node, deploy_raw(sender, dirty))
    assert is_adjudicator(node, deploy_raw(sender, code))
