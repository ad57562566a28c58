"""Nodes that answer wrongly, late or with events that are not there: none is believed, no payment ends by what it makes
up, and it takes neither time nor memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiebreak.contract import game
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.roles import transaction_queue
from tiebreak.roles.transaction_queue import TransactionQueue
from tiebreak.rpc.chain_errors import InvalidAnswer, RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.canned_node import ADDRESS, HASH, Canned, block, log, receipt
from tests.client.disputes import Cast
from tests.client.hostile_node import HostileNode


def test_another_block_than_the_wanted_one_is_refused() -> None:
    node = ChainNode(Canned(eth_getBlockByNumber=block("0x6")))
    with pytest.raises(InvalidAnswer, match="block 6"):
        node.block(5)
    assert ChainNode(Canned(eth_getBlockByNumber=None)).block(5) is None
    with pytest.raises(InvalidAnswer, match="newest"):
        ChainNode(Canned(eth_getBlockByNumber=None)).head()


@pytest.mark.parametrize(
    "changes",
    [
        {"transactionHash": "0x" + "22" * 32},
        {"status": "0x2"},
        {"gasUsed": "0x" + "f" * 20},
        {"logs": [7]},
        {"logs": [log(1, topics=["0x11"])]},
        {"logs": [log(1, topics=[HASH] * 5)]},
        {"blockNumber": None},
    ],
)
def test_a_receipt_that_does_not_hold_together_is_refused(changes: dict[str, object]) -> None:
    node = ChainNode(Canned(eth_getTransactionReceipt=receipt(**changes)))
    with pytest.raises(InvalidAnswer):
        node.receipt(bytes.fromhex(HASH[2:]))


def logs_node(answer: Any, head: int = 9, confirmations: int = 0) -> ChainNode:
    return ChainNode(Canned(eth_getLogs=answer, eth_getBlockByNumber=chain(head)), confirmations=confirmations)


def chain(head: int, says: int | None = None, hash_of: Callable[[int], str] = lambda number: HASH) -> Any:
    """Blocks up to `head`; `says`: what is given as the newest one."""

    def answer(tag: str, full: bool) -> object:
        number = (head if says is None else says) if tag == "latest" else int(tag, 16)
        return block(hex(number), hash=hash_of(number)) if tag == "latest" or number <= head else None

    return answer


@pytest.mark.parametrize(
    "items",
    [
        [log(1, address="0x" + "22" * 20)],
        [log(10)],
        [log(3), log(2)],
        [log(2, 1), log(2, 1)],
        [log(2, topics=["0x" + "22" * 32])],
        [log(2, topics=[])],
        [log(2, data="0x0")],
        [None],
    ],
)
def test_events_that_were_not_asked_for_or_are_out_of_order_are_refused(items: object) -> None:
    with pytest.raises(InvalidAnswer):
        logs_node(items).logs(ADDRESS, from_block=0, topics=[bytes.fromhex(HASH[2:])])


def test_events_of_a_dropped_block_are_not_shown() -> None:
    found = logs_node([log(1), log(2, removed=True), log(3)]).logs(ADDRESS, from_block=0)
    assert [item.block for item in found] == [1, 3]


def every_block(query: dict[str, str]) -> list[dict[str, object]]:
    """An event of every block up to number 9."""
    first, until = int(query["fromBlock"], 16), int(query["toBlock"], 16)
    return [log(i) for i in range(first, min(until, 9) + 1)]


def test_events_are_shown_once_confirmed_or_up_to_a_wanted_block() -> None:
    assert len(logs_node(every_block).logs(ADDRESS, from_block=0)) == 10
    assert [item.block for item in logs_node(every_block, confirmations=4).logs(ADDRESS, from_block=3)] == [3, 4, 5]
    assert logs_node(every_block, confirmations=40).logs(ADDRESS, from_block=0) == []
    found = logs_node(every_block, confirmations=4).logs(ADDRESS, from_block=3, to_block=8)
    assert [item.block for item in found] == [3, 4, 5, 6, 7, 8]
    assert [item.block for item in logs_node(every_block).logs(ADDRESS, from_block=8, to_block=50)] == [8, 9]


@pytest.mark.parametrize("says", [10, 10**12, 2**64 - 1])
def test_a_newest_block_that_the_node_does_not_have_is_no_end_to_search_to(says: int) -> None:
    for confirmations in (0, 1):
        liar = Canned(eth_getLogs=every_block, eth_getBlockByNumber=chain(9 - confirmations, says))
        client = ChainNode(liar, confirmations=confirmations)
        wanted = f"newest block is {says}, but does not have block {says - confirmations}"
        with pytest.raises(InvalidAnswer, match=wanted):
            client.logs(ADDRESS, from_block=0)
        assert "eth_getLogs" not in [method for method, _ in liar.asked]
        liar.answers["eth_getBlockByNumber"] = chain(9)
        assert [item.block for item in client.logs(ADDRESS, from_block=0)] == list(range(10 - confirmations))


def test_a_node_that_is_behind_the_first_block_asked_for_has_not_shown_that_there_is_nothing() -> None:
    with pytest.raises(InvalidAnswer, match="newest block is 9, after it had block 19: wait until it has caught up"):
        logs_node([]).logs(ADDRESS, from_block=20)
    assert logs_node([]).logs(ADDRESS, from_block=10) == []


def test_a_node_that_goes_far_back_is_not_believed_until_it_has_caught_up() -> None:
    node = Canned(eth_getLogs=[], eth_getBlockByNumber=chain(500))
    client = ChainNode(node)
    client.logs(ADDRESS, from_block=0)
    node.answers["eth_getBlockByNumber"] = chain(435)
    with pytest.raises(InvalidAnswer, match="newest block is 435, after it had block 500"):
        client.logs(ADDRESS, from_block=0)
    node.answers["eth_getBlockByNumber"] = chain(436)  # as far as a chain is reorganised
    assert client.logs(ADDRESS, from_block=0) == []
    node.answers["eth_getBlockByNumber"] = chain(501)
    assert client.logs(ADDRESS, from_block=0) == []


def test_events_are_asked_for_again_where_the_chain_was_reorganised_meanwhile() -> None:
    hashes = iter(["11", "22", *["33"] * 10])  # the last block's, before and after the events, again and again
    times = []

    def answer(tag: str, full: bool) -> object:
        return block("0x9", hash=HASH if tag == "latest" else "0x" + next(hashes) * 32)

    def events(query: dict[str, str]) -> list[dict[str, object]]:
        times.append(query)
        return [log(3)] if len(times) == 1 else [log(3), log(4)]

    node = ChainNode(Canned(eth_getLogs=events, eth_getBlockByNumber=answer))
    assert [item.block for item in node.logs(ADDRESS, from_block=0)] == [3, 4]
    assert len(times) == 2


def test_a_node_that_takes_its_last_block_back_every_time_is_one_error() -> None:
    asked = []

    def answer(tag: str, full: bool) -> object:
        asked.append(tag)
        return None if asked.count(tag) % 2 == 0 and tag != "latest" else block("0x9")

    with pytest.raises(InvalidAnswer, match="takes blocks back"):
        ChainNode(Canned(eth_getLogs=[], eth_getBlockByNumber=answer)).logs(ADDRESS, from_block=0)


# Ranges of events that a provider limits, in whatever words.


def limited(head: int, most: int, *, events: list[int] | None = None, results: int = 10**9) -> Any:
    """A node that answers for at most so many blocks, or results, at a time; and the ranges that it was asked for."""
    asked: list[tuple[int, int]] = []

    def logs(wanted: dict[str, str]) -> list[object]:
        first, last = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
        asked.append((first, last))
        found = [log(number) for number in events or [] if first <= number <= last]
        if last - first + 1 > most or len(found) > results:
            raise RpcRefused("eth_getLogs", -32005, "any words")
        return list(found)

    def blocks(tag: str, full: bool) -> object:
        number = head if tag == "latest" else int(tag, 16)
        return block(hex(number), timestamp=hex(12 * number))

    return ChainNode(Canned(eth_getLogs=logs, eth_getBlockByNumber=blocks)), asked


@pytest.mark.parametrize("most", [1, 7, 999])
def test_every_event_is_found_once_within_any_limit(most: int) -> None:
    events = [0, 3, 500, 501, 777, 1999]
    node, asked = limited(2000, most, events=events)
    assert [found.block for found in node.logs(ADDRESS, from_block=0)] == events
    accepted = [pair for pair in asked if pair[1] - pair[0] < most]
    assert sum(last - first + 1 for first, last in accepted) == 2001


def test_the_limit_is_learned_and_not_met_again_and_again() -> None:
    """100,000 blocks where a provider allows 100: 6,308 requests before the limit was remembered."""
    node, asked = limited(100_000, 100)
    node.logs(ADDRESS, from_block=0)
    assert len(asked) <= 1800


def test_a_limit_of_results_holds_only_where_the_results_are() -> None:
    events = list(range(5000, 5400))
    node, asked = limited(100_000, 10**9, events=events, results=50)
    assert [found.block for found in node.logs(ADDRESS, from_block=0)] == events
    assert len(asked) <= 400


# Receipts, numbers and pages that a single node makes up.


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
