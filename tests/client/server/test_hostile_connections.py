"""Connections that hold what others need: bodies that never come, requests behind requests, clients that go away."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import pytest
from roundlog.generation import prompt_tokens
from tiebreak.bounded_connections import BackgroundServer, bound_socket, bounded_server, refusing, url_of
from tiebreak.server import text_service
from tiebreak.server.completion_server import GuardedApplication

from tests.client.server.asking import exchange
from tests.client.server.conftest import PAGE, ROWS, Served
from tests.client.server.test_answers import TEXT, settle, text_of

HEAD = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "


def connected(url: str) -> socket.socket:
    where = urlsplit(url)
    assert where.hostname is not None and where.port is not None
    return socket.create_connection((where.hostname, where.port), timeout=60)


def request_of(served: Served, **fields: object) -> bytes:
    body = json.dumps({"model": served.service.model, "prompt": "x", "max_tokens": 4} | fields).encode()
    return f"{HEAD}{len(body)}\r\n\r\n".encode() + body


def read_all(client: socket.socket) -> bytes:
    found = b""
    while part := client.recv(1 << 16):
        found += part
    return found


def test_bodies_that_never_come_keep_nobody_from_an_answer(served: Served) -> None:
    with ExitStack() as stack:
        for number in range(160):
            client = stack.enter_context(connected(served.url))
            client.sendall(f"{HEAD}10\r\n\r\n".encode() + b"{" * (number % 3))
            if number >= 70 and number % 30 == 0:
                assert text_of(served).status == 200, number
        assert text_of(served).status == 200
    settle(served)


@contextmanager
def endless(most: int) -> Iterator[str]:
    """A server of few connections, whose answers never end."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(60)

    listening = bound_socket(ip_address("127.0.0.1"), 0)
    refused = refusing(b'{"error": {"code": "overloaded"}}', "application/json")
    overloaded = GuardedApplication(refused, loopback=True, origins=[PAGE])
    beside = BackgroundServer(bounded_server(app, most, overloaded=overloaded), listening, "endless")
    assert beside.start()
    try:
        yield url_of(listening)
    finally:
        beside.stop()


def test_a_server_without_a_place_says_when_to_come_back() -> None:
    with endless(3) as url, ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(connected(url))
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        refused = exchange(url, "/", headers={"Origin": PAGE})
        assert refused.status == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.headers["access-control-allow-origin"] == PAGE
        assert refused.plain == {"error": {"code": "overloaded"}}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_closes_its_own_direction_is_answered(served: Served, stream: bool) -> None:
    with connected(served.url) as client:
        client.sendall(request_of(served, stream=stream))
        client.shutdown(socket.SHUT_WR)
        found = read_all(client)
    head, _, body = found.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), found
    assert (b"data: [DONE]" in body) is stream and b'"finish_reason":' in body


@pytest.mark.parametrize("behind", [0, 1, 300_000], ids=["nothing", "a request", "a large request"])
def test_a_client_that_goes_away_frees_its_row_whatever_it_has_sent(served: Served, behind: int) -> None:
    answers = len(list((served.folder / "answers").iterdir()))
    more = request_of(served, prompt="x" * behind) if behind else b""
    clients = [connected(served.url) for _ in range(2 * ROWS)]
    for client in clients:
        client.sendall(request_of(served, max_tokens=90) + more)
    ends = time.monotonic() + 30
    while served.service._answering < len(clients):
        assert time.monotonic() < ends
        time.sleep(0.001)
    for client in clients:
        client.close()
    settle(served)
    given = len(list((served.folder / "answers").iterdir())) - answers
    assert given <= ROWS, "those that waited for a row have none"
    assert text_of(served).status == 200


def test_a_prompt_of_a_client_that_is_gone_is_not_encoded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, goes_on = list[object](), threading.Event()

    def slow(tokenizer: Any, prompt: Any) -> list[int]:
        encoded.append(prompt)
        goes_on.wait(60)
        return prompt_tokens(tokenizer, prompt)

    monkeypatch.setattr(text_service, "prompt_tokens", slow)
    clients = [connected(served.url) for _ in range(8)]
    for client in clients:
        client.sendall(request_of(served))
    ends = time.monotonic() + 30
    while served.service._answering < len(clients):
        assert time.monotonic() < ends
        time.sleep(0.001)
    for client in clients:
        client.close()
    while served.service._answering:
        assert time.monotonic() < ends, "whoever is gone has no place in the line"
        time.sleep(0.01)
    goes_on.set()
    assert text_of(served, prompt="afterwards").status == 200
    assert encoded == ["x", "afterwards"]
