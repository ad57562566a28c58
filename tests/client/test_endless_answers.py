"""Nodes that make up numbers and pages without end take neither a role's time nor its memory."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def cast() -> Cast:
    cast = Cast.on(ChainNode(EmbeddedChain()))
    for _ in range(3):
        cast.post()
    return cast


def queue_of(cast: Cast) -> TransactionQueue:
    node = cast.customer.node
    return TransactionQueue(VerificationGame(node, cast.customer.address), Sender(node, devnet_account(2)))


def test_of_a_made_up_number_of_jobs_those_that_are_there_are_taken_in(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
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
