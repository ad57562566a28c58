"""How a JSON-RPC request reaches a node: over HTTP, or by a call into the chain inside this process."""

from __future__ import annotations

import itertools
import json
import urllib.parse
from typing import Protocol

import requests
import tenacity
import urllib3

from tiebreak.chain.answers import data as read_data
from tiebreak.chain.errors import ChainError, ChainUnavailable, InvalidAnswer, RpcRefused, printable

MAX_ANSWER = 32 * 1024 * 1024
"""Largest answer that is read, in bytes."""


class Transport(Protocol):
    """One request, one answer. Methods may be called from several threads."""

    @property
    def name(self) -> str:
        """What to call the node in messages; holds no secrets."""

    def request(self, method: str, params: list[object]) -> object:
        """Returns the JSON value `result`. Raises RpcRefused, ChainUnavailable, InvalidAnswer."""


class HttpTransport:
    """JSON-RPC over HTTP(S).

    `timeout`: seconds for connecting and between received bytes. `attempts`: how often a request is tried when the
    network, or a busy node (status 429 and 5xx), fails. Every request may be repeated: reading is harmless, and
    a signed transaction counts once however often it is sent. Raises ChainUnavailable if `url` is none.
    """

    def __init__(self, url: str, *, timeout: float = 30.0, attempts: int = 5) -> None:
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ChainUnavailable("the chain's address is not an http(s) URL: use the form http://127.0.0.1:8545.")
        # Hosted nodes have their API key in the path or in the user part, so messages show neither.
        self._name = f"{parts.scheme}://{parts.hostname}" + (f":{port}" if port else "")
        self._url = url
        self._timeout = timeout
        self._session = requests.Session()
        self._ids = itertools.count(1)
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Transient),
            stop=tenacity.stop_after_attempt(attempts),
            wait=tenacity.wait_exponential_jitter(multiplier=0.1, max=5.0, jitter=0.1),
            reraise=True,
        )

    @property
    def name(self) -> str:
        return self._name

    def request(self, method: str, params: list[object]) -> object:
        request_id = next(self._ids)
        body = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()
        try:
            raw = self._retrying(self._post, body)
        except _Transient as error:
            raise ChainUnavailable(
                f"no usable answer from the chain at {self._name} to {method} ({error}): start the node, or check the "
                "address."
            ) from error
        return self._result(method, request_id, raw)

    def _post(self, body: bytes) -> bytes:
        try:
            with self._session.post(
                self._url,
                data=body,
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
                timeout=self._timeout,
                stream=True,
                allow_redirects=False,
            ) as answer:
                raw: bytes = answer.raw.read(MAX_ANSWER + 1, decode_content=False)
                status = answer.status_code
                # A read with a limit ends quietly where the connection does.
                missing = answer.raw.length_remaining if len(raw) <= MAX_ANSWER else None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _Transient(type(error).__name__) from error
        if missing:
            raise _Transient("the connection broke off")
        if status == 429 or (status >= 500 and b'"jsonrpc"' not in raw):
            raise _Transient(f"status {status}")
        return raw

    def _result(self, method: str, request_id: int, raw: bytes) -> object:
        if len(raw) > MAX_ANSWER:
            raise InvalidAnswer(f"{self._name} answered {method} with more than {MAX_ANSWER} bytes: use another node.")
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise InvalidAnswer(f"{self._name} did not answer {method} with JSON: check that it is a node.") from error
        if not isinstance(answer, dict) or answer.get("jsonrpc") != "2.0" or answer.get("id") not in (request_id, None):
            raise InvalidAnswer(f"{self._name} did not answer {method} with JSON-RPC: check that it is a node.")
        if answer.get("error") is not None:
            raise refusal(method, answer["error"])
        if "result" not in answer or answer.get("id") is None:
            raise InvalidAnswer(f"{self._name} answered {method} without a result: use another node.")
        return answer["result"]


class _Transient(ChainError):
    """Worth another try."""


def refusal(method: str, error: object) -> RpcRefused:
    """Reads the `error` member of a JSON-RPC answer, whatever it holds."""
    if not isinstance(error, dict):
        return RpcRefused(method, 0, "no reason given")
    code, message, payload = error.get("code"), error.get("message"), error.get("data")
    if isinstance(payload, dict):  # some nodes wrap the data of a revert once more
        payload = payload.get("data")
    try:
        revert = read_data(payload, "a revert")
    except InvalidAnswer:
        revert = None
    reason = printable(message)[:300] if isinstance(message, str) else "no reason given"
    return RpcRefused(method, code if isinstance(code, int) else 0, reason, revert)
