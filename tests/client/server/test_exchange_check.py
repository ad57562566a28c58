"""Bodies of requests and responses against their receipt: the server's own are right, and each change is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from roundlog.generation import Choice, GenerationReceipt, check_text
from tiebreak.cli.app import app
from tiebreak.server.exchange_check import wrong_request, wrong_response
from typer.testing import CliRunner

from tests.client.server.asking import Exchange, exchange, receipt_of
from tests.client.server.conftest import Served

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo"}]
KINDS = ["text", "chat", "text stream", "chat stream"]


EXCHANGES: dict[str, tuple[Exchange, GenerationReceipt]] = {}
"""By their kinds and fields."""


def asked(served: Served, kind: str, **fields: object) -> tuple[Exchange, GenerationReceipt]:
    """An exchange of a kind, and its receipt."""
    if (key := json.dumps([kind, fields])) not in EXCHANGES:
        is_chat, stream = kind.startswith("chat"), kind.endswith("stream")
        body: dict[str, object] = {"model": served.service.model, "max_tokens": 12, "stream": stream}
        body |= {"messages": HELLO} if is_chat else {"prompt": "once"}
        found = exchange(served.url, CHAT if is_chat else TEXT, body | fields)
        EXCHANGES[key] = found, receipt_of(served, found, (found.events[0] if stream else found.plain)["id"])
    return EXCHANGES[key]


CHOICES: dict[bytes, list[Choice]] = {}
"""By the digest of the receipt that they were found for."""


def choices_of(served: Served, receipt: GenerationReceipt) -> list[Choice]:
    if receipt.digest not in CHOICES:
        found = CHOICES[receipt.digest] = []
        assert check_text(receipt, served.checker, stop=receipt.stop, tell=found.append).is_right
    return CHOICES[receipt.digest]


def compared(served: Served, receipt: GenerationReceipt, request: bytes, response: bytes) -> list[str]:
    choices = choices_of(served, receipt)
    found = wrong_request(receipt, served.loaded, request)
    return found + wrong_response(receipt, served.loaded, response, request=request, told=((), choices))


@pytest.mark.slow_but("text stream")
@pytest.mark.parametrize("kind", KINDS)
def test_the_servers_own_bodies_are_right(served: Served, kind: str) -> None:
    stream = kind.endswith("stream")
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    for seed, more in enumerate(
        [
            {},
            {"temperature": 0},
            {"logprobs": True if kind.startswith("chat") else 0, "max_tokens": 24},
            {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 5} | usage,
        ]
    ):
        found, receipt = asked(served, kind, **({"seed": seed} if seed % 2 else {}) | more)
        assert compared(served, receipt, found.request, found.response) == []


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "prompt": ({"messages": [{"role": "user", "content": "hullo"}]}, "the request's prompt has"),
    "temperature": ({"temperature": 0.5}, "asks for temperature 0.5, and the receipt has 1.0"),
    "seed": ({"seed": 8}, "asks for seed 8, and the receipt has 7"),
    "model": ({"model": "another"}, 'the server takes no such request (The model "another" is not served here'),
    "field": ({"stop": "x"}, "asks for stop_texts ('x',), and the receipt has ()"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_another_request_is_told(served: Served, name: str) -> None:
    found, receipt = asked(served, "chat", seed=7)
    change, said = REQUESTS[name]
    other = json.dumps(json.loads(found.request) | change).encode()
    clauses = wrong_request(receipt, served.loaded, other)
    assert clauses[0] == "the request's bytes have another SHA-256 than request_sha256"
    assert len(clauses) == 2 and said in clauses[1], clauses
    lied = replace(receipt, request_sha256=sha256(other).digest())
    assert wrong_request(lied, served.loaded, other) == clauses[1:]


def test_bytes_that_are_no_request_or_response_are_told(served: Served) -> None:
    found, receipt = asked(served, "text")
    told = (), choices_of(served, receipt)
    for data in (b"", b"\xff", b"[]", b'{"a":' * 5000):
        lied = replace(receipt, request_sha256=sha256(data).digest(), response_sha256=sha256(data).digest())
        assert len(wrong_request(lied, served.loaded, data)) == 1
        assert wrong_response(lied, served.loaded, data, request=found.request, told=told) == [NO_ANSWER]


def in_whole(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        plain = json.loads(data)
        change(plain)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()

    return changed


NO_ANSWER = "the response is no answer of the server's to such a request"
BODIES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "text": (
        "chat",
        in_whole(lambda one: one["choices"][0]["message"].update(content="The lie that was sent")),
        "The lie that was sent",
    ),
    "id": ("text", in_whole(lambda one: one.update(id="x\x1b[2J")), NO_ANSWER),
    "two": ("text", in_whole(lambda one: one["choices"].append(one["choices"][0])), '},{"index":0'),
    "logprob": (
        "chat",
        in_whole(lambda one: one["choices"][0]["logprobs"]["content"][3].update(logprob=-1.5)),
        '"logprob":-1.5',
    ),
    "event": ("chat stream", lambda data: data.replace(b'{"content":"', b'{"content":"lie', 1), '"content":"lie'),
    "stream cut": ("text stream", lambda data: data.removesuffix(b"data: [DONE]\n\n"), "data: [DONE]"),
    "event dropped": ("text stream", lambda data: b"\n\n".join(data.split(b"\n\n")[2:]), '"text"'),
    "event doubled": ("text stream", lambda data: data.split(b"\n\n")[0] + b"\n\n" + data, '"text"'),
    "event of another": ("text stream", lambda data: data.replace(b'"id":"cmpl-', b'"id":"cmpl_', 1), NO_ANSWER),
}


@pytest.mark.slow_but("text", "two", "logprob", "event*")
@pytest.mark.parametrize("name", BODIES)
def test_another_response_is_told(served: Served, name: str) -> None:
    kind, change, said = BODIES[name]
    found, receipt = asked(served, kind, seed=1, logprobs=True if kind.startswith("chat") else None)
    other = change(found.response)
    assert other != found.response
    clauses = compared(served, receipt, found.request, other)
    assert clauses[0] == "the response's bytes have another SHA-256 than response_sha256"
    assert len(clauses) == 2 and said in clauses[1] and clauses[1].isprintable(), clauses
    lied = replace(receipt, response_sha256=sha256(other).digest())
    choices = choices_of(served, receipt)
    assert wrong_response(lied, served.loaded, other, request=found.request, told=((), choices)) == clauses[1:]


@pytest.mark.slow
def test_verify_compares_bodies_that_are_given_and_says_which_are_not(served: Served, tmp_path: Path) -> None:
    found, receipt = asked(served, "chat", seed=3)
    request, response = tmp_path / "request", tmp_path / "response"
    request.write_bytes(found.request), response.write_bytes(found.response)
    (tmp_path / "receipt.json").write_text(receipt.to_json())
    model = served.folder.parent / "small"

    def verify(file: Path, *more: object) -> tuple[int, list[str]]:
        words = ["verify", file, "--model", model, *more]
        done = CliRunner().invoke(app, [str(word) for word in words])
        said = (done.stdout + done.stderr).splitlines()
        return done.exit_code, [line for line in said if not line.startswith(("Verifying takes", "captures", "tries"))]

    code, lines = verify(tmp_path / "receipt.json", "--request", request, "--response", response)
    assert code == 0 and lines[-1].startswith("Right: request and response have the bytes"), lines
    code, lines = verify(tmp_path / "receipt.json")
    assert code == 0 and lines[-1].endswith("not compared, and may say something else: give --request and --response.")
    lie = found.response.replace(b'"content":"', b'"content":"lie ')
    response.write_bytes(lie)
    both = ("--request", request, "--response", response)
    lied = replace(receipt, response_sha256=sha256(lie).digest(), signer=None, signature=None)
    (tmp_path / "lied.json").write_text(lied.to_json())
    code, lines = verify(tmp_path / "lied.json", *both)
    assert code == 3 and lines[0].startswith("Right: the model chooses"), lines
    assert lines[3].startswith("WRONG: the response says ") and '"content":"lie ' in lines[3]
    code, lines = verify(tmp_path / "lied.json", *both, "--json")
    plain = json.loads("\n".join(lines))
    assert code == 3 and not plain["right"] and len(plain["compared"]) == 2 and len(plain["wrong_bodies"]) == 1
    code, lines = verify(tmp_path / "lied.json", "--response", response)
    assert code == 2 and "give --request, too" in " ".join(lines)
    unnamed = replace(receipt, request_sha256=None, signer=None, signature=None)
    (tmp_path / "unnamed.json").write_text(unnamed.to_json())
    code, lines = verify(tmp_path / "unnamed.json", "--request", request)
    assert code == 1 and "has no request_sha256" in lines[-1]
