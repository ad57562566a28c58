"""Nodes that hang, fail, lag or lie: a page says so in a sentence, shows what it had, and keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient
from tiebreak.contract.game import VerificationGame
from tiebreak.dashboard import chain_reader
from tiebreak.dashboard.chain_reader import HeadMonitor, Readings
from tiebreak.dashboard.site import Site
from tiebreak.dashboard.web import make_app
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.rpc.chain_errors import ChainUnavailable
from tiebreak.rpc.node import ChainNode

from tests.client.canned_node import HASH, Canned, block
from tests.client.disputes import Cast
from tests.client.hostile_node import HostileNode


class Line(HostileNode):
    """A line to a chain that can be cut, or hang until it is let go."""

    def __init__(self) -> None:
        super().__init__(EmbeddedChain(), "the troubled node")
        self.free = threading.Event()
        self.free.set()

    def request(self, method: str, params: list[object]) -> object:
        if not self.free.wait(30):
            raise ChainUnavailable("the test is over.")
        return super().request(method, params)


@pytest.fixture
def line() -> Iterator[Line]:
    found = Line()
    yield found
    found.free.set()


@pytest.fixture
def site(line: Line) -> Iterator[Site]:
    cast = Cast.on(ChainNode(line))
    cast.post()
    found = Site(cast.customer, every=0.02, patience=0.2)
    found.start()
    yield found
    line.free.set()
    found.close()


@pytest.fixture
def client(site: Site) -> TestClient:
    return TestClient(make_app(site), base_url="http://127.0.0.1")


def test_a_node_that_hangs_makes_a_banner_and_the_page_stays(
    line: Line, site: Site, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_reader, "SILENCE", 0.3)
    # A busy machine may take longer for the first reading than a page waits.
    assert any("Job 1" in client.get("/jobs").text for _ in range(100))
    line.free.clear()
    site.readings._cache = type(site.readings._cache)(
        (key, ((0, b""), value[1])) for key, value in site.readings._cache.items()
    )
    time.sleep(0.5)
    started = time.monotonic()
    shown = client.get("/jobs")
    assert time.monotonic() - started < 2
    assert shown.status_code == 200 and "Job 1" in shown.text
    assert 'role="alert"' in shown.text and "has not answered" in shown.text
    unread = client.get("/jobs/1")
    assert unread.status_code == 503 and "has not answered in time" in unread.text
    line.free.set()
    for _ in range(200):
        if client.get("/jobs/1").status_code == 200 and 'role="alert"' not in client.get("/jobs").text:
            return
        time.sleep(0.05)
    raise AssertionError("the page does not recover")


@pytest.mark.slow
def test_a_node_that_hangs_is_not_asked_more_and_more(line: Line, site: Site, client: TestClient) -> None:
    client.get("/jobs")
    line.free.clear()
    asked = len(line.asked)
    for number in range(1, 40):
        assert client.get(f"/jobs/{number}").status_code in (200, 503)
    assert len(line.asked) - asked <= 12, "eight readings and the head monitor"
    assert len(site.readings._running) <= 8, "nor is what nobody waits for any more put into a line"


def test_a_node_that_is_gone_is_told_by_its_own_sentence(line: Line, site: Site, client: TestClient) -> None:
    line.away = True
    site.head_monitor.look()
    shown = client.get("/jobs/1")
    assert "start the node" in shown.text and "Traceback" not in shown.text
    never = Site(VerificationGame(ChainNode(line), "0x" + "11" * 20))  # type: ignore[arg-type]
    never.head_monitor.look()
    answer = TestClient(make_app(never), base_url="http://127.0.0.1").get("/jobs")
    assert answer.status_code == 503 and "start the node" in answer.text, "it has never answered"
    line.away = False
    site.head_monitor.look()
    assert 'role="alert"' not in client.get("/jobs/1").text


def test_a_node_that_shows_another_spec_than_its_hash_is_called_a_liar(site: Site, client: TestClient) -> None:
    true = site.contract.job(1)
    lie = replace(true, spec=replace(true.spec, training=replace(true.spec.training, steps=61)))
    views = site.contract.views

    def lying(calls: Any, **options: Any) -> Any:
        return [
            lie if call.function == "getJob" else found
            for call, found in zip(calls, views(calls, **options), strict=True)
        ]

    site.readings.patience = 30.0  # a busy machine is slow
    site.contract.views = lying  # type: ignore[method-assign]
    for path in ("/jobs", "/jobs/1"):
        answer = client.get(path)
        assert answer.status_code == 502 and "it lies or is damaged" in answer.text


# The head monitor.


def heads(**changes: Any) -> tuple[Canned, HeadMonitor]:
    node = Canned(eth_chainId="0x1", eth_getBlockByNumber=lambda *_: block(**changes))
    return node, HeadMonitor(ChainNode(node), wall=lambda: 1_000)


def test_a_node_lags_whose_newest_block_is_old_but_a_development_chain_may_be_quiet() -> None:
    for timestamp, chain, trouble in ((700, 1, ""), (699, 1, "been the same for 5m 1s"), (16, 31337, "")):
        node, head_monitor = heads(timestamp=hex(timestamp))
        node.answers["eth_chainId"] = hex(chain)
        head_monitor.look()
        shown = head_monitor.snapshot().trouble
        assert trouble in shown and bool(trouble) == bool(shown)


def test_a_node_that_goes_back_is_noticed_until_it_has_caught_up() -> None:
    node, head_monitor = heads(number="0x9", timestamp="0x3e8")
    head_monitor.look()
    node.answers["eth_getBlockByNumber"] = lambda *_: block("0x7", timestamp="0x3e8", hash="0x" + "22" * 32)
    head_monitor.look()
    seen = head_monitor.snapshot()
    assert "shows block 7 as its newest, after it had shown 9" in seen.trouble
    head_monitor.look()
    assert head_monitor.snapshot().changes == seen.changes, "only what is new is a change"
    node.answers["eth_getBlockByNumber"] = lambda *_: block("0x9", timestamp="0x3e8", hash=HASH)
    head_monitor.look()
    assert head_monitor.snapshot().trouble == "" and head_monitor.snapshot().changes > seen.changes


# Readings.


def test_many_who_ask_at_once_cost_one_reading() -> None:
    readings, count, gate = Readings(patience=5), 0, threading.Event()

    def read() -> int:
        nonlocal count
        count += 1
        gate.wait(5)
        return count

    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(readings.get("page", (1, b"a"), read)[0])) for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    gate.set()
    for thread in threads:
        thread.join()
    assert found == [1] * 30
    assert readings.get("page", (1, b"a"), read)[0] == 1, "the same block"
    assert readings.get("page", (1, b"b"), read)[0] == 2, "another block at the same height"
    readings.close()
