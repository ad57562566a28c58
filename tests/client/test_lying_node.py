"""Receipts, numbers and pages that a single node makes up: no payment ends by them, and they take neither time nor
memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiebreak.contract import game
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.roles import transaction_queue
from tiebreak.roles.transaction_queue import TransactionQueue
from tiebreak.rpc.chain_errors import InvalidAnswer
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.disputes import Cast
from tests.client.hostile_node import HostileNode

PARTY, STRANGER = devnet_account(2), devnet_account(3)


@pytest.fixture(scope="module")
def cast() -> Cast:
    cast = Cast.on(ChainNode(EmbeddedChain()))
    for _ in range(3):
        cast.post()
    return cast


def _with(**changes: object) -> Callable[[list[Any], Any], Any]:
    return lambda params, true: true and true | changes


FORGED = {
    "more gas than it may use": (_with(gasUsed=hex(10**9)), "with 1000000000 gas of [0-9]{5}: use another node"),
    "a price above the offered one": (_with(effectiveGasPrice=hex(2**100)), "with a fee above the one that was offe"),
    "a contract that it cannot create": (_with(contractAddress=STRANGER.address), "with another new contract than its"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_receipt_that_the_transaction_cannot_have_is_not_believed(cast: Cast, forged: str) -> None:
    """Regression: a made-up fee filled the record of what may be spent in a day or in a job."""
    liar = HostileNode(cast.customer.node._transport)
    liar.lies["eth_getTransactionReceipt"], said = FORGED[forged]
    sender = Sender(ChainNode(liar), PARTY, patience=0.3)
    with pytest.raises(InvalidAnswer, match=said):
        sender.send(STRANGER.address, b"", value=1)
    (sent,) = sender.pending
    assert sent.receipt is None
    liar.lies.clear()
    sender.poll()
    assert sent.receipt is not None and sent.receipt.fee <= 21_000 * 10**12


def test_a_new_contract_lies_where_its_maker_and_nonce_say(cast: Cast) -> None:
    """The address of a deployed contract is what others are told to pay into."""
    liar = HostileNode(cast.customer.node._transport)
    sender = Sender(ChainNode(liar), STRANGER, patience=0.3)
    code = bytes.fromhex("600160005360016000f3")
    for _ in range(3):
        created = sender.send(None, code).contract
        assert created is not None and cast.customer.node.code(created) == b"\x01"
    liar.lies["eth_getTransactionReceipt"] = _with(contractAddress=cast.customer.address)
    with pytest.raises(InvalidAnswer, match="another new contract than its own"):
        sender.send(None, code)


def queue_of(cast: Cast) -> TransactionQueue:
    node = cast.customer.node
    return TransactionQueue(VerificationGame(node, cast.customer.address), Sender(node, devnet_account(2)))


def test_of_a_made_up_number_of_jobs_real_ones_are_taken_in(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_queue, "MOST_NEW_JOBS", 50)
    seen = queue_of(cast)
    monkeypatch.setattr(seen.contract, "job_count", lambda: 2**63)
    for _ in range(3):
        seen.look()
        assert [number for number, _ in seen.jobs_after(0)] == [1, 2, 3]
        assert [number for number, _ in seen.jobs_after(3)] == []


def test_many_jobs_are_taken_in_by_and_by(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_queue, "MOST_NEW_JOBS", 2)
    seen = queue_of(cast)
    seen.look()
    assert [number for number, _ in seen.jobs_after(0)] == [1, 2]
    assert [number for number, _ in seen.jobs_after(2)] == [3]


def test_pages_without_end_are_refused(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game, "_MOST_ENTRIES", 600)
    contract = VerificationGame(cast.customer.node, cast.customer.address)
    assert contract.games_of(1) == [] and contract.audits_of(1) == []
    monkeypatch.setattr(contract, "_view", lambda *arguments, **options: [7] * 256)
    for ask in (contract.games_of, contract.audits_of):
        with pytest.raises(InvalidAnswer, match=r"endless .* of job 1: use another node"):
            ask(1)
