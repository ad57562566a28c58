"""Calls that end in time, and answers that come whole within their time or not at all: no thread is left to a server
that drips."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tiebreak.http_client import Halted, Pauses, TooLate, pause, post, session, within
from tiebreak.operation import messenger
from tiebreak.rpc.chain_errors import ChainUnavailable
from tiebreak.rpc.transport import HttpTransport
from tiebreak.store.dagpb import RAW, Cid
from tiebreak.store.gateway import GatewayStore
from tiebreak.store.kubo import KuboStore
from tiebreak.store.pinning import PinningService
from tiebreak.store.store_errors import StoreUnavailable

from tests.client.http_stand_in import Request, serving

X = str(Cid.of(b"x", RAW))

DRIPS = {
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
    "many headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a trailer": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"X: y\r\n"),
    "the size of a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"y"),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" "),
}

READERS: dict[str, Callable[[str], object]] = {
    "a gateway": lambda url: GatewayStore(url, timeout=0.2, attempts=1).read(X, max_bytes=10),
    "a part of a block": lambda url: GatewayStore(url, timeout=0.2, attempts=1).part(X, 0, 1, is_right=bool),
    "Kubo's blocks": lambda url: KuboStore(url, timeout=0.2, attempts=1).read(X, max_bytes=10),
    "Kubo's addresses": lambda url: KuboStore(url, timeout=0.2, attempts=1).addresses(),
    "a pinning service": lambda url: PinningService(url, "token", timeout=0.2, attempts=1).pin(X),
    "a node": lambda url: HttpTransport(url, timeout=0.2, attempts=1).request("eth_chainId", []),
    "a webhook": lambda url: messenger.deliver(url, {"text": "x"}, threading.Event()),
}


def requests_under_way() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "request"}


@pytest.mark.parametrize(
    ("reader", "drip"), [*(("a node", drip) for drip in DRIPS), *((one, "many headers") for one in READERS)]
)
def test_a_server_that_drips_keeps_no_thread(reader: str, drip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt ran in a thread that was left behind with its socket, as long as the server liked."""
    monkeypatch.setattr(messenger, "_SECONDS", 0.2)
    over = threading.Event()

    def answer(request: Request) -> None:
        begin, piece = DRIPS[drip]
        request.connection.sendall(begin)
        while not over.wait(0.02):
            request.connection.sendall(piece)

    before = requests_under_way()
    try:
        with serving(answer) as url:
            began = time.monotonic()
            with pytest.raises((StoreUnavailable, ChainUnavailable, messenger.DeliveryFailed)):
                READERS[reader](url)
            assert time.monotonic() - began < 4.0
            while requests_under_way() - before:
                assert time.monotonic() - began < 6.0, "a thread waits for the server still"
                time.sleep(0.02)
    finally:
        over.set()


def test_a_connection_is_used_again_with_the_time_of_its_next_request() -> None:
    ports = set()

    def answer(request: Request) -> None:
        ports.add(request.client_address[1])
        time.sleep(0.2)
        request.send(200, b"x")

    with serving(answer) as url:
        store = GatewayStore(url, timeout=0.5, attempts=1)
        for _ in range(4):  # 0.8 seconds in all
            assert store.read(X, max_bytes=10) == b"x"
    assert len(ports) == 1


@pytest.mark.parametrize(
    ("most", "body", "more"), [(0, b"", True), (2, b"12", True), (5, b"12345", False), (9, b"12345", False)]
)
def test_only_so_much_of_an_answer_is_read(most: int, body: bytes, more: bool) -> None:
    def answer(request: Request) -> None:
        request.connection.sendall(b"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\nContent-Length: 5\r\n\r\n12345")

    with serving(answer) as url, session() as connections:
        found = post(connections, url, b"{}", seconds=5.0, most=most)
    assert (found.status, found.body, found.more) == (429, body, more)
    assert found.retry_after == (7.0 if most else 0.0)


def test_calls_and_pauses_end_in_time_and_at_once_when_the_process_is_stopped() -> None:
    stop = threading.Event()
    assert within(1.0, stop, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(1.0, None, lambda: 1 // 0)
    with pytest.raises(TooLate):
        within(0.05, None, lambda: time.sleep(0.5))
    pause(0.01, stop)
    stop.set()
    with pytest.raises(Halted):
        pause(10, stop)
    with pytest.raises(Halted):
        within(10, stop, lambda: time.sleep(0.5))


def test_pauses_of_many_are_spread() -> None:
    many = [Pauses(first=1.0, most=4.0, spread=1.0) for _ in range(50)]
    for least in (1.0, 2.0, 4.0, 4.0):
        drawn = [pauses.next() for pauses in many]
        assert all(least <= seconds <= 2 * least for seconds in drawn) and max(drawn) - min(drawn) > least / 4
