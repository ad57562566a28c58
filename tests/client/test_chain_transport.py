"""Servers that speak no JSON-RPC, never end, break off, or are not there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tiebreak.rpc import transport as transport_module
from tiebreak.rpc.chain_errors import ChainUnavailable, InvalidAnswer, RpcRefused
from tiebreak.rpc.node import connect
from tiebreak.rpc.transport import HttpTransport


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler, Any], None]) -> Iterator[str]:
    """The URL of a server that gives these answers to what is posted, as JSON if it is any."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with suppress(OSError):
                answer(self, json.loads(asked) if asked.startswith(b"{") else None)

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.mark.slow_cases("<html>", "body7")
@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"\xff\xfe", b"null", b"[]", b"7", b"{}", b"[" * 100_000, b'{"jsonrpc": "2.0", "id": 1}',
        b'{"jsonrpc": "2.0", "id": 99, "result": "0x1"}', b'{"jsonrpc": "1.0", "id": 1, "result": "0x1"}',
        b'{"jsonrpc": "2.0", "id": null, "result": "0x1"}', b'{"id": 1, "result": "0x1"}',
    ],
)  # fmt: skip
def test_an_answer_that_is_not_json_rpc_is_one_clear_error(body: bytes) -> None:
    with server(lambda handler, _: send(handler, body)) as url:
        with pytest.raises(InvalidAnswer, match=r"127\.0\.0\.1"):
            HttpTransport(url).request("eth_chainId", [])
        with pytest.raises(ChainUnavailable, match="not an Ethereum node"):
            connect(url)


@pytest.mark.parametrize(
    "error",
    [7, "text", [], {"code": "x"}, {"message": 7}, {"code": 3, "message": "m", "data": 7}, {"data": {"data": "0x1"}}],
)
def test_an_error_of_any_shape_is_a_refusal(error: object) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
    with server(lambda handler, _: send(handler, body)) as url, pytest.raises(RpcRefused):
        HttpTransport(url).request("eth_call", [])


def test_a_refusal_cannot_rewrite_the_terminal() -> None:
    message = "\x1b[2J\x1b]0;owned\x07\n" + "x" * 10_000
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": message}}).encode()
    with server(lambda handler, _: send(handler, body)) as url, pytest.raises(RpcRefused) as caught:
        HttpTransport(url).request("eth_call", [])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "MAX_ANSWER", 1 << 20)
    sent = 0

    def endless(handler: BaseHTTPRequestHandler, _: object) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.end_headers()
        try:
            while sent < 1 << 30:
                handler.wfile.write(b" " * (1 << 16))
                sent += 1 << 16
        except OSError:
            pass

    with server(endless) as url, pytest.raises(InvalidAnswer, match="more than"):
        HttpTransport(url).request("eth_chainId", [])
    assert sent < 1 << 26


def test_a_busy_node_is_asked_again_and_a_redirect_is_not_followed() -> None:
    asked = 0

    def busy(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            send(handler, b"slow down", 429)
        elif asked == 2:
            send(handler, b"bad gateway", 502)
        else:
            send(handler, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "0x7"}).encode())

    with server(busy) as url:
        assert HttpTransport(url).request("eth_chainId", []) == "0x7"
        assert asked == 3
        with server(lambda handler, _: send(handler, b"", 307, Location=url)) as detour, pytest.raises(InvalidAnswer):
            HttpTransport(detour).request("eth_chainId", [])
    assert asked == 3


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    """Half an answer looks like nonsense, but says nothing against the node."""
    calls = []

    def break_off_once(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        calls.append(request["method"])
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "0x" + "ab" * 5000}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2] if len(calls) == 1 else body)
        handler.close_connection = True

    with server(break_off_once) as url:
        assert HttpTransport(url).request("eth_getCode", []) == "0x" + "ab" * 5000
        assert len(calls) == 2
        calls.clear()
        with pytest.raises(ChainUnavailable, match="the connection broke off"):
            HttpTransport(url, attempts=1).request("eth_getCode", [])


def test_nobody_there_is_one_clear_error_that_keeps_secrets() -> None:
    with pytest.raises(ChainUnavailable, match="start the node") as caught:
        HttpTransport("http://user:password@127.0.0.1:1/v3/api-key", attempts=2).request("eth_chainId", [])
    assert not any(secret in str(caught.value) for secret in ("password", "api-key", "user"))


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "localhost:8545", "http://", "http://x:y", "http://x:99999", "http://[x", "file:///etc"]
)
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ChainUnavailable, match="http"):
        connect(url)
