"""Receipts of the same requests are the same, to the byte, whoever asks at the same time, and whatever the server runs
on: all but the hash of the response, which names the hour, and what is signed of it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machines.profiles import MACHINES
from roundlog.generation import parse_generation_receipt

from tests.client.server.asking import API_KEY, Exchange, exchange
from tests.client.server.conftest import Served
from tests.client.server.serving_process import serving
from tests.client.server.small_model import save_small_model

CLIENTS = 8


def asked(number: int) -> dict[str, object]:
    """The request of a client: prompts of several lengths, a chat among them, and one text that is not drawn."""
    fields: dict[str, object] = {"model": "small", "max_tokens": 6 + number, "seed": number, "logprobs": 0}
    if number == 5:
        messages = [{"role": "user", "content": "héllo"}]
        return {**fields, "messages": messages, "logprobs": True, "top_logprobs": 0}
    how = {"temperature": 0} if number == 3 else {"temperature": 0.9, "top_k": 40, "repetition_penalty": 1.1}
    return {**fields, "prompt": "abc"[: 1 + number % 3] * (1 + 2 * number), **how}


def ask(url: str, number: int) -> Exchange:
    path = "/v1/chat/completions" if number == 5 else "/v1/completions"
    found = exchange(url, path, asked(number))
    assert found.status == 200, found.response
    return found


def lasting(url: str, found: Exchange) -> tuple[bytes, Any]:
    """The receipt of an answer, as a file has it, and the answer itself, without what names the hour."""
    receipt = parse_generation_receipt(exchange(url, f"/v1/receipts/{found.plain['id']}").response)
    kept = replace(receipt, response_sha256=None, signer=None, signature=None).to_json().encode()
    return kept, {name: value for name, value in found.plain.items() if name not in ("id", "created")}


def test_clients_at_once_get_the_receipts_that_each_gets_alone(served: Served) -> None:
    alone = [lasting(served.url, ask(served.url, number)) for number in range(CLIENTS)]
    assert len({receipt for receipt, _ in alone}) == CLIENTS
    with ThreadPoolExecutor(CLIENTS) as clients:
        together = list(clients.map(lambda number: ask(served.url, number), range(CLIENTS)))
    assert [lasting(served.url, found) for found in together] == alone


@pytest.mark.slow
def test_a_server_gives_the_same_receipts_after_a_restart_as_another_machine(tmp_path: Path) -> None:
    """With other instructions of the processor, threads, rows and positions; what it gave before, it still has."""
    pytest.importorskip("transformers")
    model, receipts = save_small_model(tmp_path / "small"), tmp_path / "receipts"
    given: list[list[tuple[bytes, Any]]] = []
    names: list[str] = []

    def one_by_one(task: Callable[[int], Exchange]) -> list[Exchange]:
        return [task(number) for number in range(CLIENTS)]

    def at_once(task: Callable[[int], Exchange]) -> list[Exchange]:
        with ThreadPoolExecutor(CLIENTS) as clients:
            return list(clients.map(task, range(CLIENTS)))

    for machine, positions, rows, clients in (
        ("native, one thread", 64, 1, one_by_one),
        ("AVX2", 80, CLIENTS, at_once),
        ("compatible", 64, 3, at_once),
    ):
        environment = MACHINES[machine].environment()
        with serving(model, receipts, positions=positions, rows=rows, environment=environment) as (process, url):
            answers = clients(lambda number, url=url: ask(url, number))  # type: ignore[misc]
            given.append([lasting(url, found) for found in answers])
            names += [found.plain["id"] for found in answers]
            assert all(exchange(url, f"/v1/receipts/{name}").status == 200 for name in names)
            assert exchange(url, f"/v1/receipts/{names[0]}", headers={}).status == 401
            assert exchange(url, "/health", headers={}).status == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
    assert given[1] == given[0] and given[2] == given[0]
    assert len(set(names)) == 3 * CLIENTS
    assert not any(API_KEY in file.read_text() for file in receipts.rglob("*.json"))
