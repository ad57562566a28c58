"""Searching for events where a provider limits what it answers, in whatever words."""

from __future__ import annotations

from typing import Any

import pytest
from tiebreak.contract.contract_watch import last_block_before
from tiebreak.rpc.chain_errors import RpcRefused
from tiebreak.rpc.node import ChainNode

from tests.client.canned_node import ADDRESS, HASH, Canned, block, log

TEXTS = ["query exceeds max block range", "Log response size exceeded", "limit", "", "too many results", "-32005"]


def limited(head: int, most: int, *, text: str = "limit", events: list[int] | None = None, results: int = 10**9) -> Any:
    """A node that answers for at most so many blocks, or results, at a time."""
    asked: list[tuple[int, int]] = []

    def logs(wanted: dict[str, str]) -> list[object]:
        first, last = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
        asked.append((first, last))
        found = [log(number) for number in events or [] if first <= number <= last]
        if last - first + 1 > most or len(found) > results:
            raise RpcRefused("eth_getLogs", -32005, text)
        return list(found)

    def blocks(tag: str, full: bool) -> object:
        number = head if tag == "latest" else int(tag, 16)
        return block(hex(number), timestamp=hex(12 * number))

    return ChainNode(Canned(eth_getLogs=logs, eth_getBlockByNumber=blocks)), asked


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("most", [1, 2, 7, 100, 999])
def test_every_event_is_found_within_any_limit(most: int, text: str) -> None:
    events = [0, 3, 500, 501, 777, 1999]
    node, asked = limited(2000, most, text=text, events=events)
    assert [found.block for found in node.logs(ADDRESS, from_block=0)] == events
    accepted = [pair for pair in asked if pair[1] - pair[0] < most]
    assert sum(last - first + 1 for first, last in accepted) == 2001


def test_the_limit_is_learned_and_not_met_again_and_again() -> None:
    """100,000 blocks where a provider allows 100: 6,308 requests before the limit was remembered."""
    node, asked = limited(100_000, 100)
    node.logs(ADDRESS, from_block=0)
    assert len(asked) <= 1200


def test_a_limit_of_results_holds_only_where_the_results_are() -> None:
    events = list(range(5000, 5400))
    node, asked = limited(100_000, 10**9, events=events, results=50)
    assert [found.block for found in node.logs(ADDRESS, from_block=0)] == events
    assert len(asked) <= 400


def test_a_node_that_refuses_one_block_is_not_asked_for_ever() -> None:
    node, asked = limited(5000, 0, text="no")
    with pytest.raises(RpcRefused):
        node.logs(ADDRESS, from_block=0)
    assert len(asked) < 20


def test_a_search_from_the_newest_block_stops_where_it_has_found() -> None:
    node, asked = limited(100_000, 100, events=[10, 99_500])
    first = next(node.search_back(ADDRESS, from_block=0, to_block=100_000))
    assert first.block == 99_500 and first.block_hash == bytes.fromhex(HASH[2:])
    assert len(asked) <= 25


def test_a_games_own_block_is_found_by_its_time() -> None:
    node, _ = limited(100_000, 100)
    for started in (99_990, 99_000, 50_000, 17):
        found = last_block_before(node, 12 * started, 100_000)
        assert found < started
        assert 100_000 - found <= max(64, 2 * (100_000 - started) + 2) or found == 0
