"""Nothing takes longer than it may, however an answer comes, and everything ends when the process is told to stop."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler

import pytest
from tiebreak.deadlines import Halted, Pauses, TooLate, pause, within
from tiebreak.rpc.chain_errors import ChainUnavailable, Stopped
from tiebreak.rpc.transport import HttpTransport
from tiebreak.store.dag_builder import build_file
from tiebreak.store.kubo import KuboStore
from tiebreak.store.store_errors import FetchTooSlow, StoreUnavailable

from tests.client.test_chain_transport import server as answering


def server(answer: Callable[[BaseHTTPRequestHandler], None]) -> AbstractContextManager[str]:
    return answering(lambda handler, _: answer(handler))


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte every tenth of a second: never silent, never done."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        time.sleep(0.1)


def drip_headers(handler: BaseHTTPRequestHandler) -> None:
    for _ in range(100):
        handler.wfile.write(b"x")
        time.sleep(0.1)


@pytest.mark.parametrize("slow", [drip, drip_headers])
def test_a_dripping_node_has_one_deadline_for_everything(slow: Callable[[BaseHTTPRequestHandler], None]) -> None:
    with server(slow) as url:
        started = time.monotonic()
        with pytest.raises(ChainUnavailable, match="no usable answer"):
            HttpTransport(url, timeout=0.5, deadline=1.2, attempts=50).request("eth_chainId", [])
        assert time.monotonic() - started < 2.0


@pytest.mark.parametrize("slow", [drip, drip_headers])
def test_a_request_ends_at_once_when_the_process_is_stopped(slow: Callable[[BaseHTTPRequestHandler], None]) -> None:
    stop = threading.Event()
    with server(slow) as url:
        threading.Timer(0.3, stop.set).start()
        started = time.monotonic()
        with pytest.raises(Stopped, match="run the same command again to carry on"):
            HttpTransport(url, timeout=30, stop=stop).request("eth_chainId", [])
        assert time.monotonic() - started < 0.8


def test_a_back_off_ends_at_once_when_the_process_is_stopped() -> None:
    stop = threading.Event()
    with server(lambda handler: handler.send_error(503)) as url:
        threading.Timer(0.3, stop.set).start()
        started = time.monotonic()
        with pytest.raises(Stopped, match="run the same command again to carry on"):
            HttpTransport(url, deadline=100, attempts=50, stop=stop).request("eth_chainId", [])
        assert time.monotonic() - started < 0.8


def test_json_that_was_cut_off_is_asked_for_again() -> None:
    calls = []

    def cut_once(handler: BaseHTTPRequestHandler) -> None:
        calls.append(1)
        body = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'
        body = body[:20] if len(calls) == 1 else body
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with server(cut_once) as url:
        assert HttpTransport(url).request("eth_chainId", []) == "0x1"
    assert len(calls) == 2


ABSENT = str(build_file(io.BytesIO(b"absent"), lambda _cid, _block: None).cid)


@pytest.mark.parametrize("slow", [drip, drip_headers])
def test_a_dripping_store_has_one_deadline_for_everything(slow: Callable[[BaseHTTPRequestHandler], None]) -> None:
    with server(slow) as url:
        started = time.monotonic()
        with pytest.raises(FetchTooSlow, match="did not come within"):
            KuboStore(url).read(ABSENT, max_bytes=10, within=0.5)
        assert time.monotonic() - started < 1.0
        with pytest.raises(StoreUnavailable):
            KuboStore(url, timeout=0.3, attempts=2).read(ABSENT, max_bytes=10)
        assert time.monotonic() - started < 3.0


def test_a_fetch_ends_at_once_when_the_process_is_stopped() -> None:
    stop = threading.Event()
    with server(drip) as url:
        threading.Timer(0.3, stop.set).start()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"stopped.*run the same command again to carry on"):
            KuboStore(url, stop=stop).read(ABSENT, max_bytes=10)
        assert time.monotonic() - started < 0.8


def test_calls_and_pauses_end_in_time() -> None:
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
