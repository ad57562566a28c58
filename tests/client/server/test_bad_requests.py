"""Requests that are refused: each with one sentence in an error object as OpenAI's, and nothing is left of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tiebreak.server import text_service
from tiebreak.server.completion_requests import MAX_REQUEST_BYTES, RequestError, parse_request

from tests.client.server.asking import JSON, exchange
from tests.client.server.conftest import Served
from tests.client.server.small_model import POSITIONS
from tests.client.troublesome_clients import HOSTILE_HOSTS, LOCAL_HOSTS, connected

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"

ANYWHERE: list[tuple[str, Any]] = [
    *[("n", 0), ("stop", [""]), ("logit_bias", {"5": 101}), ("presence_penalty", 2.5), ("store", True), ("user", 5)],
    *[("temperature", 2.5), ("temperature", "1"), ("temperature", 1e-40), ("temperature", 10**400), ("top_p", 1.1)],
    *[("top_k", -1), ("top_k", 1 << 40), ("repetition_penalty", 0), ("seed", 1 << 64), ("max_tokens", 0)],
    *[("max_tokens", 97), ("stream", 1), ("stream_options", {"include_usage": True}), ("parallel_tool_calls", 1)],
    ("prediction", {"type": "content", "content": "x"}),
    ("unheard_of", {"a": ["\x1b[2J\x7f\u2028"] * 9}),
    *[("\ud800", 1), ("model", "another")],
]
TEXTS: list[tuple[str, Any]] = [
    *[("prompt", prompt) for prompt in ("", 5, [], [[]], ["a", ""], [1, "a"], [262], [True], "\udc00", "x" * 96)],
    *[("echo", 1), ("logprobs", 21), ("best_of", 0), ("messages", [])],
]
CHATS: list[tuple[str, Any]] = [
    *[("messages", messages) for messages in ([], [5], [{"role": "tool", "content": "x"}], [{"role": "user"}])],
    ("messages", [{"role": "user", "content": "\ud800"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages", [{"role": "user", "content": "x", "name": 5}]),
    ("messages", [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]),
    ("messages", [{"role": "user", "content": "x"}] * 1001),
    ("tools", [{"type": "function", "function": {"name": "x"}}]),
    ("response_format", {"type": "json_object"}),
    *[("logprobs", 1), ("top_logprobs", 3), ("reasoning_effort", "low"), ("echo", True), ("temperature", 2.5)],
]
CASES = [*((TEXT, *case) for case in [*ANYWHERE, *TEXTS]), *((CHAT, *case) for case in CHATS)]


def good(served: Served, path: str) -> dict[str, Any]:
    asked = {"prompt": "x"} if path == TEXT else {"messages": [{"role": "user", "content": "x"}]}
    return {"model": served.service.model, "max_tokens": 1, **asked}


def check_error(found: Any, status: int | None = None) -> dict[str, Any]:
    assert 400 <= found.status < 500 and status in (None, found.status), found
    error: dict[str, Any] = found.plain["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    message = error["message"]
    assert message.endswith(".") and "\n" not in message and 10 < len(message) < 500, message
    return error


@pytest.mark.parametrize(("path", "name", "value"), CASES, ids=[f"{case[1]}-{n}" for n, case in enumerate(CASES)])
def test_a_field_that_is_not_supported_is_refused(served: Served, path: str, name: str, value: Any) -> None:
    """The sentence has the value, and a way out."""
    error = check_error(exchange(served.url, path, good(served, path) | {name: value}))
    message, beginning = error["message"], json.dumps(value)[:12]
    assert error["param"] is not None or name in ("temperature", "top_p", "repetition_penalty")
    assert name in ("messages", "prompt") or beginning in message or str(float(value))[:5] in message, message
    assert any(way_out in message for way_out in ("leave it out", ": give ", ": send ", ": ask ", ": take ")), message
    assert message.isprintable()


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_more_tokens_than_there_is_room_for_are_refused_with_the_room(served: Served, path: str) -> None:
    for wanted in (97, 1 << 60):
        error = check_error(exchange(served.url, path, good(served, path) | {"max_tokens": wanted}))
        room = POSITIONS - (1 if path == TEXT else 4)
        assert f"--positions {POSITIONS}: ask for at most {room} new ones" in error["message"]
        assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_text_without_room_is_refused_before_it_is_encoded(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_service, "tokens_of_prompt", None)
    long = "é" * 30_000
    content = {"prompt": long} if path == TEXT else {"messages": [{"role": "user", "content": long[:10_000]}] * 3}
    error = check_error(exchange(served.url, path, good(served, path) | content), 400)
    assert error["code"] == "context_length_exceeded" and "60000 bytes" in error["message"]


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_what_clients_send_without_wanting_anything_is_taken(served: Served, path: str) -> None:
    nothing = {"n": 1, "stop": None, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "me", "logit_bias": {}}
    nothing |= {"metadata": {"a": "b"}, "parallel_tool_calls": True, "store": False, "verbosity": "medium"}
    chat = {"tools": [], "response_format": {"type": "text"}, "tool_choice": None, "logprobs": False}
    asked = good(served, path) | {"seed": 1}
    found = exchange(served.url, path, asked | nothing | (chat if path == CHAT else {}))
    assert found.status == 200, found.response
    assert found.plain["choices"] == exchange(served.url, path, asked).plain["choices"]


def test_an_answer_goes_back_as_a_message(served: Served) -> None:
    asked = good(served, CHAT)
    said = exchange(served.url, CHAT, asked).plain["choices"][0]["message"]
    developer = {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert exchange(served.url, CHAT, asked | {"messages": [developer, *asked["messages"], said]}).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b'{"model":"small","prompt":"x","prompt":"y"}',
        b'{"model":"small","prompt":"x","temperature":NaN}',
        b'{"model":"small","prompt":"x","seed":' + b"9" * 5000 + b"}",
        b'{"model":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(6),
)
def test_bytes_that_are_no_request_are_refused(served: Served, body: bytes) -> None:
    check_error(exchange(served.url, TEXT, body, method="POST"), 400)


def test_a_body_is_bounded_whether_its_length_is_told_or_not(served: Served) -> None:
    fits = json.dumps(good(served, TEXT)).encode().ljust(MAX_REQUEST_BYTES)
    assert exchange(served.url, TEXT, fits).status == 200
    check_error(exchange(served.url, TEXT, fits + b" "), 413)
    with connected(served.url) as client:
        head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(17):
            client.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_other_types_hosts_methods_and_addresses_are_refused(served: Served) -> None:
    """A page of another site can send text, or a name of its own that points here, without asking."""
    body = good(served, TEXT)
    check_error(exchange(served.url, TEXT, body, headers={"Content-Type": "text/plain"}), 415)
    for host in HOSTILE_HOSTS:
        assert exchange(served.url, "/v1/models", headers={"Host": host}).status in (400, 403), host
    for host in LOCAL_HOSTS:
        assert exchange(served.url, "/v1/models", headers={"Host": host}).status == 200, host
    check_error(exchange(served.url, TEXT), 405)
    check_error(exchange(served.url, "/v1/models", b"{}", headers=JSON), 405)
    for path in ("/", "/v1/embeddings", "/v1/models/another", "/v1/receipts/"):
        check_error(exchange(served.url, path), 404)


@pytest.mark.parametrize(
    "name", ["0x" + 64 * "0", 64 * "F", "cmpl-" + 31 * "0", "..%2Fkey", "%00", "x" * 5000, "%0a" + 64 * "0"]
)
def test_names_of_no_receipt_are_not_found(served: Served, name: str) -> None:
    check_error(exchange(served.url, f"/v1/receipts/{name}"), 404)


def mutated(draw: random.Random, text: bytes) -> bytes:
    """A request in which a value is exchanged for another one, or bytes are changed, dropped or doubled."""
    pieces = [b"null", b"-1", b"1e400", b"{}", b"[[]]", b'"\\ud800"', b"true", b'"', b",", b"}", b"\x00", b"9" * 30]
    if draw.random() < 0.5:
        fields = json.loads(text)
        fields[draw.choice([*fields, "n", "stop"])] = draw.choice([None, 0, 1, 0.5, -1, [], {}, "", "1", True, [[1]]])
        return json.dumps(fields).encode()
    found = bytearray(text)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(found) + 1)
        size = draw.choice([0, 0, 1, 1, 2, 8])
        found[place : place + size] = draw.choice([*pieces, b"", text[place : place + 12]])
    return bytes(found)


TEMPLATES = [
    {"model": "small", "prompt": [1, 2], "max_tokens": 1, "seed": 3, "temperature": 0.5, "top_p": 0.9, "stream": False},
    {"model": "small", "messages": [{"role": "user", "content": "hé"}], "max_tokens": 1, "logprobs": True, "top_k": 3},
]


def test_a_mutated_request_is_a_request_or_is_refused() -> None:
    draw, taken = random.Random(1), 0
    for number in range(3000):
        is_chat = bool(number % 2)
        body = mutated(draw, json.dumps(TEMPLATES[is_chat]).encode())
        try:
            parse_request(body, "small", is_chat=is_chat)
            taken += 1
        except RequestError as error:
            assert 400 <= error.status < 500 and str(error).endswith(".")
            json.dumps(error.body()).encode()
    assert 100 < taken < 2000
