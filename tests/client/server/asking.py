"""Clients of the text server by plain HTTP, who keep the bytes of both sides; and the check of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from roundlog.generation import GenerationReceipt, check_text, other_model, parse_generation_receipt

from tests.client.server.conftest import Served

API_KEY = "sk-0123456789abcdef!#$%&~"
JSON = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response, to the byte."""

    request: bytes
    status: int
    headers: dict[str, str]
    response: bytes

    @property
    def plain(self) -> Any:
        return json.loads(self.response)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, without its last one."""
        parts = self.response.decode().split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""] and all(part.startswith("data: ") for part in parts[:-1])
        return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def exchange(
    url: str, path: str, body: object = None, *, method: str | None = None, headers: Mapping[str, str] = JSON
) -> Exchange:
    """A request, and what came back. body: JSON, or the bytes themselves."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=120)
    try:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, data, dict(headers))
        answer = connection.getresponse()
        given = {name.lower(): value for name, value in answer.getheaders()}
        return Exchange(data, answer.status, given, answer.read())
    finally:
        connection.close()


def receipt_of(served: Served, asked: Exchange, name: str) -> GenerationReceipt:
    """The receipt of an answer by its name, checked: by its bytes, its model and a repetition in one pass."""
    found = exchange(served.url, f"/v1/receipts/{name}")
    assert found.status == 200, found.response
    receipt = parse_generation_receipt(found.response)
    assert receipt.to_json().encode() == found.response
    assert receipt.request_sha256 == sha256(asked.request).digest()
    assert receipt.response_sha256 == sha256(asked.response).digest()
    assert other_model(receipt.model, served.loaded) is None
    assert check_text(receipt, served.checker, stop=receipt.stop).is_right
    return receipt
