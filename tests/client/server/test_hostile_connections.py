"""Connections that hold what others need: bodies that never come, too many at once, clients that go away."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
from roundlog.generation import prompt_tokens
from tiebreak.http_server import BackgroundServer, bounded_server, listen_at, url_of
from tiebreak.server import text_service

from tests.client.server.asking import exchange
from tests.client.server.conftest import ROWS, Served
from tests.client.server.test_answers import TEXT, settle, text_of
from tests.client.troublesome_clients import connected

HEAD = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "


def request_of(served: Served, **fields: object) -> bytes:
    body = json.dumps({"model": served.service.model, "prompt": "x", "max_tokens": 4} | fields).encode()
    return f"{HEAD}{len(body)}\r\n\r\n".encode() + body


def test_bodies_that_never_come_keep_nobody_from_an_answer(served: Served) -> None:
    with ExitStack() as stack:
        for number in range(160):
            client = stack.enter_context(connected(served.url))
            client.sendall(f"{HEAD}10\r\n\r\n".encode() + b"{" * (number % 3))
            if number >= 70 and number % 30 == 0:
                assert text_of(served).status == 200, number
        assert text_of(served).status == 200
    settle(served)


def test_more_connections_than_there_may_be_are_told_to_come_back() -> None:
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(60)

    listening = listen_at("127.0.0.1", 0)
    beside = BackgroundServer(bounded_server(endless, 3), listening, "endless")
    assert beside.start()
    try:
        with ExitStack() as stack:
            for _ in range(2):
                client = stack.enter_context(connected(url_of(listening)))
                client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            assert exchange(url_of(listening), "/").status == 503
    finally:
        beside.stop()


def test_a_client_that_goes_away_frees_its_row(served: Served) -> None:
    answers = len(list((served.folder / "answers").iterdir()))
    clients = [connected(served.url) for _ in range(2 * ROWS)]
    for client in clients:
        client.sendall(request_of(served, max_tokens=90))
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

    monkeypatch.setattr(text_service, "tokens_of_prompt", slow)
    clients = [connected(served.url) for _ in range(8)]
    for client in clients:
        client.sendall(request_of(served))
    ends = time.monotonic() + 30
    while served.service._answering < len(clients) or not encoded:
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
