"""Answers of the text server: as OpenAI's client reads them, each with a receipt that a repetition finds right."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from roundlog.generation.generation_receipt import logprobs_root
from tiebreak.server import completion_bodies
from tiebreak.transactions.keys import signer_of

from tests.client.server.asking import Exchange, exchange, receipt_of
from tests.client.server.conftest import MAX_WAITING, ROWS, Served
from tests.client.server.small_model import characters_of
from tests.client.troublesome_clients import connected

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo"}]


def text_of(served: Served, **fields: object) -> Exchange:
    return exchange(served.url, TEXT, {"model": served.service.model, "prompt": "once", "max_tokens": 12} | fields)


def chat_of(served: Served, **fields: object) -> Exchange:
    return exchange(served.url, CHAT, {"model": served.service.model, "messages": HELLO, "max_tokens": 12} | fields)


def test_openais_client_reads_all_of_it(served: Served) -> None:
    import openai  # some seconds

    client, name = openai.OpenAI(base_url=f"{served.url}v1", api_key="none", max_retries=0), served.service.model
    assert [one.id for one in client.models.list()] == [name] and client.models.retrieve(name).id == name
    text = client.completions.create(model=name, prompt="once", seed=1, max_tokens=9)
    assert text.usage is not None and text.usage.completion_tokens == 9 and text.usage.prompt_tokens == 4
    how: dict[str, Any] = {"model": name, "messages": HELLO, "seed": 1, "max_completion_tokens": 9}
    extra = {"top_k": 40, "repetition_penalty": 1.2}
    chat = client.chat.completions.create(**how, temperature=0.7, top_p=0.9, logprobs=True, extra_body=extra)
    assert chat.system_fingerprint == text.system_fingerprint == served.service.fingerprint
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    digest = client.chat.completions.with_raw_response.create(**how).headers["Tiebreak-Receipt"]
    assert exchange(served.url, f"/v1/receipts/{digest}").status == 200
    stream = client.chat.completions.create(
        **how, temperature=0.7, top_p=0.9, extra_body=extra, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == chat.choices[0].message.content
    assert chunks[-1].usage == chat.usage and len({chunk.id for chunk in chunks}) == 1
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="once")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("ask", [text_of, chat_of], ids=["text", "chat"])
def test_an_answer_has_a_signed_receipt_of_its_bytes(served: Served, ask: Any, stream: bool) -> None:
    asked = ask(served, stream=stream, temperature=0.8, top_k=50)
    name = (asked.events[0] if stream else asked.plain)["id"]
    receipt = receipt_of(served, asked, name)
    assert ("tiebreak-receipt" in asked.headers) is not stream
    if not stream:
        assert asked.headers["tiebreak-receipt"] == "0x" + receipt.digest.hex()
    same = exchange(served.url, f"/v1/receipts/0x{receipt.digest.hex()}")
    assert same.response == exchange(served.url, f"/v1/receipts/{name}").response
    assert receipt.signature is not None
    assert signer_of(receipt.signed_text(), receipt.signature) == receipt.signer == bytes.fromhex(served.signer[2:])


def test_streams_and_whole_answers_say_the_characters_of_their_tokens(served: Served) -> None:
    """The model's bytes are random: most characters are cut, and some are never finished."""
    held_back = 0
    for seed in range(2):
        whole, stream = (text_of(served, seed=seed, max_tokens=60, stream=one) for one in (False, True))
        receipt = receipt_of(served, whole, whole.plain["id"])
        text = whole.plain["choices"][0]["text"]
        assert text == characters_of(list(receipt.tokens))
        parts = [event["choices"][0]["text"] for event in stream.events]
        assert "".join(parts) == text and all(part for part in parts[:-1])
        held_back += len(receipt.tokens) - len(parts)
    assert held_back > 5


def test_log_probabilities_are_those_of_the_receipt(served: Served) -> None:
    text, chat = text_of(served, logprobs=0), chat_of(served, logprobs=True, top_logprobs=0)
    found = text.plain["choices"][0]["logprobs"]
    assert logprobs_root(found["token_logprobs"]) == receipt_of(served, text, text.plain["id"]).logprobs_root
    content = chat.plain["choices"][0]["logprobs"]["content"]
    receipt = receipt_of(served, chat, chat.plain["id"])
    assert logprobs_root([one["logprob"] for one in content]) == receipt.logprobs_root
    assert len(content) == len(receipt.tokens)
    stream = chat_of(served, logprobs=True, stream=True, seed=receipt.seed)
    told = [event["choices"][0]["logprobs"] for event in stream.events]
    assert [one for part in told if part is not None for one in part["content"]] == content


def test_a_text_that_changes_at_its_end_ends_with_an_error(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing(completion_bodies.TextDecoder):
        @property
        def whole(self) -> str:
            return "another one"

    answers = len(list((served.folder / "answers").iterdir()))
    monkeypatch.setattr(completion_bodies, "TextDecoder", Changing)
    parts = text_of(served, stream=True, seed=2).response.split(b"\n\n")
    assert b"changes what was sent" in parts[-2] and parts[-1] == b"" and b"[DONE]" not in parts[-2]
    assert len(list((served.folder / "answers").iterdir())) == answers
    monkeypatch.undo()
    assert text_of(served, stream=True).events


def begun(served: Served, tokens: int) -> socket.socket:
    """A client that has read the beginning of a stream."""
    client = connected(served.url)
    fields = {"model": served.service.model, "prompt": "x", "max_tokens": tokens, "stream": True, "logprobs": 0}
    body = json.dumps(fields).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    assert client.recv(1000).startswith(b"HTTP/1.1 200")
    return client


def settle(served: Served) -> None:
    """Waits until nobody is answered."""
    ends = time.monotonic() + 60
    while served.service._answering or served.service._free._value < ROWS:
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_more_than_may_wait_are_told_to_come_back(served: Served) -> None:
    clients = [begun(served, 80) for _ in range(ROWS + MAX_WAITING)]
    try:
        refused = text_of(served)
        assert refused.status == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.plain["error"]["code"] == "overloaded"
        assert exchange(served.url, "/v1/models").status == 200
    finally:
        for one in clients:
            one.close()
    settle(served)
    assert text_of(served).status == 200
