"""Nodes behind HTTP and IPC that speak no JSON-RPC, drip, never end, break off, or are not there."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.launcher import find_anvil
from tiebreak.http_client import ask, session
from tiebreak.operation import monitor as messenger
from tiebreak.rpc.chain_errors import ChainUnavailable, InvalidAnswer, RpcRefused, Stopped
from tiebreak.rpc.node import ChainNode, connect, transport_to
from tiebreak.rpc.transport import HttpTransport
from tiebreak.store.dagpb import RAW, Cid
from tiebreak.store.gateway import GatewayStore
from tiebreak.store.kubo import KuboStore
from tiebreak.store.store_errors import StoreError, StoreUnavailable
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.http_stand_in import Request, serving


def error_body(error: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff\xfe", b"[]", b"{}", b"[" * 100_000, b'{"jsonrpc": "2.0", "id": 1}',
        b'{"jsonrpc": "2.0", "id": 99, "result": "0x1"}', b'{"id": 1, "result": "0x1"}',
    ],
)  # fmt: skip
def test_an_answer_that_is_not_json_rpc_is_one_clear_error(body: bytes) -> None:
    with serving(lambda request: request.send(200, body)) as url, pytest.raises(InvalidAnswer, match=r"127\.0\.0\.1"):
        HttpTransport(url, attempts=2).request("eth_chainId", [])


@pytest.mark.parametrize("error", [7, [], {"code": "x"}, {"code": 3, "message": 7, "data": 7}, {"data": {"data": "0"}}])
def test_an_error_of_any_shape_is_a_refusal(error: object) -> None:
    with serving(lambda request: request.send(200, error_body(error))) as url:
        with pytest.raises(RpcRefused):
            HttpTransport(url).request("eth_call", [])
        with pytest.raises(ChainUnavailable, match="not an Ethereum"):
            connect(url)


def test_a_refusal_cannot_rewrite_the_terminal() -> None:
    body = error_body({"code": 1, "message": "\x1b[2J\x1b]0;owned\x07\n" + "x" * 10_000})
    with serving(lambda request: request.send(200, body)) as url, pytest.raises(RpcRefused) as caught:
        HttpTransport(url).request("eth_call", [])
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_a_busy_node_is_asked_again() -> None:
    asked: list[bytes] = []

    def busy(request: Request) -> None:
        asked.append(request.body)
        if len(asked) < 3:
            return request.send(429 if len(asked) == 1 else 502, b"not now")
        return request.send(200, result(request, "0x7"))

    with serving(busy) as url:
        assert HttpTransport(url).request("eth_chainId", []) == "0x7"
    assert len(asked) == 3


def result(request: Request, value: str) -> bytes:
    """The answer to a request."""
    return json.dumps({"jsonrpc": "2.0", "id": json.loads(request.body)["id"], "result": value}).encode()


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    """Regression: half an answer was taken for nonsense where a proxy had set a length that fits."""
    asked: list[bytes] = []

    def break_off_twice(request: Request) -> None:
        asked.append(request.body)
        body = result(request, "0x" + "ab" * 5000)
        half = body[: len(body) // 2]
        request.send_response(200)
        request.send_header("Content-Length", str(len(half if len(asked) == 2 else body)))
        request.end_headers()
        request.wfile.write(half if len(asked) < 3 else body)
        request.close_connection = True

    with serving(break_off_twice) as url:
        assert HttpTransport(url).request("eth_getCode", []) == "0x" + "ab" * 5000
        assert len(asked) == 3
        asked.clear()
        with pytest.raises(ChainUnavailable, match="the connection broke off"):
            HttpTransport(url, attempts=1).request("eth_getCode", [])


def drip(request: Request) -> None:
    """A byte every tenth of a second."""
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    for _ in range(100):
        request.wfile.write(b" ")
        time.sleep(0.1)


@pytest.mark.parametrize("busy", [False, True], ids=["in a request", "between two"])
def test_a_request_ends_at_once_when_the_process_is_stopped(busy: bool) -> None:
    stop = threading.Event()
    with serving((lambda request: request.send(503)) if busy else drip) as url:
        threading.Timer(0.3, stop.set).start()
        started = time.monotonic()
        with pytest.raises(Stopped, match="run the same command again to carry on"):
            HttpTransport(url, timeout=30, deadline=100, attempts=50, stop=stop).request("eth_chainId", [])
        assert time.monotonic() - started < 0.8


def test_nobody_there_is_one_clear_error_that_keeps_secrets() -> None:
    with pytest.raises(ChainUnavailable, match="start the node") as caught:
        HttpTransport("http://user:password@127.0.0.1:1/v3/api-key", attempts=2).request("eth_chainId", [])
    assert not any(secret in str(caught.value) for secret in ("password", "api-key", "user"))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        *((url, "http") for url in ("", "ftp://x", "ws://x", "localhost:8545", "http://", "http://x:y", "http://[x")),
        ("none.ipc", r"none\.ipc .*FileNotFoundError"),
        ("/tmp", "no usable answer from the chain at /tmp"),
    ],
)
def test_an_address_that_is_none_or_where_nobody_is_is_refused(address: str, why: str) -> None:
    with pytest.raises(ChainUnavailable, match=why):
        connect(address)


def test_a_node_behind_a_socket_is_the_same_or_is_given_up_in_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.ipc"))
        silent.listen()
        stop = threading.Event()
        node = ChainNode(transport_to(str(tmp_path / "silent.ipc"), stop, timeout=0.5))
        with pytest.raises(ChainUnavailable, match=r"silent\.ipc to eth_chainId \(more than 0.5 seconds\)"):
            node.chain_id  # noqa: B018
        stop.set()
        with pytest.raises(Stopped):
            node.head()
    if (anvil := find_anvil()) is None:
        pytest.skip("anvil is not installed: run npm ci")
    place = tmp_path / "a.ipc"
    process = subprocess.Popen(
        [str(anvil), "--port", "0", "--ipc", str(place)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        node = connect(str(place))
        game = VerificationGame.deploy(Sender(node, devnet_account(9)))
        assert game.job_count() == 0
        assert len(node.code(game.address)) > 10_000
        with pytest.raises(RpcRefused):
            node.send_raw(b"nonsense")
    finally:
        process.kill()
        process.wait()


# The HTTP client of nodes, stores and webhooks.


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
    "Kubo's pins": lambda url: KuboStore(url, timeout=0.02, attempts=1).pin(X),
    "a node": lambda url: HttpTransport(url, timeout=0.2, attempts=1).request("eth_chainId", []),
    "a webhook": lambda url: messenger.deliver(url, {"text": "x"}, threading.Event()),
}


def requests_under_way() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "request"}


@pytest.mark.parametrize(
    ("reader", "drip"), [*(("a node", drip) for drip in DRIPS), *((one, "many headers") for one in READERS)]
)
def test_a_server_that_drips_keeps_no_thread(reader: str, drip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each attempt left a thread with its socket behind for as long as the server sent."""
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


@pytest.mark.parametrize("reader", READERS)
def test_no_redirect_is_followed_and_nothing_is_unpacked(reader: str) -> None:
    """A redirect would carry tokens away, and lead to the rooms behind a router."""
    failures, seen = (StoreError, ChainUnavailable, InvalidAnswer, messenger.DeliveryFailed), list[Request]()
    with serving(lambda request: (seen.append(request), request.send(200, b"{}"))[1]) as elsewhere:
        for status in (302, 307):
            with serving(lambda request, s=status: request.send(s, Location=elsewhere)) as url, pytest.raises(failures):
                READERS[reader](url)
    assert seen == []
    bomb = gzip.compress(bytes(20 << 20), 9)
    if reader != "a webhook":  # whose answer is not read
        packed = serving(lambda request: request.send(200, bomb, Content_Encoding="gzip"))
        with packed as url, pytest.raises(failures):
            READERS[reader](url)


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


@pytest.mark.parametrize(("most", "body"), [(0, b""), (2, b"12"), (5, b"12345"), (9, b"12345")])
def test_only_so_much_of_an_answer_is_read(most: int, body: bytes) -> None:
    def answer(request: Request) -> None:
        request.connection.sendall(b"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\nContent-Length: 5\r\n\r\n12345")

    with serving(answer) as url, session() as connections:
        found = ask(connections, "POST", url, data=b"{}", seconds=5.0, most=most)
    assert (found.status, found.body) == (429, body)
    assert found.retry_after == 7.0
