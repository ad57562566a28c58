"""Nodes behind HTTP and IPC that speak no JSON-RPC, drip, never end, break off, or are not there."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.launcher import find_anvil
from tiebreak.rpc.chain_errors import ChainUnavailable, InvalidAnswer, RpcRefused, Stopped
from tiebreak.rpc.node import ChainNode, connect, transport_to
from tiebreak.rpc.transport import HttpTransport
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


def test_a_busy_node_is_asked_again_and_a_redirect_is_not_followed() -> None:
    asked: list[bytes] = []

    def busy(request: Request) -> None:
        asked.append(request.body)
        if len(asked) < 3:
            return request.send(429 if len(asked) == 1 else 502, b"not now")
        return request.send(200, result(request, "0x7"))

    with serving(busy) as url:
        assert HttpTransport(url).request("eth_chainId", []) == "0x7"
        with serving(lambda request: request.send(307, Location=url)) as detour, pytest.raises(InvalidAnswer):
            HttpTransport(detour, attempts=1).request("eth_chainId", [])
    assert len(asked) == 3


def result(request: Request, value: str) -> bytes:
    """The answer to a request."""
    return json.dumps({"jsonrpc": "2.0", "id": json.loads(request.body)["id"], "result": value}).encode()


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    """Half an answer looks like nonsense, but says nothing against the node: that of a proxy has a length that fits."""
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
