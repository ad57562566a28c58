"""Transports of JSON-RPC requests: what all of them do, HTTP, and `NodeAgreement` among the nodes behind one.

web3's HTTPProvider reads answers of any length, and limits each read but no request; its import doubles the time in
which a command that reads the contract starts. `web3_providers` gives a transport to any `Web3`, and the reverse.
"""

from __future__ import annotations

import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import requests
import urllib3

from tiebreak.http_client import Halted, Pauses, TooLate, pause, post, session, shown_url, within
from tiebreak.rpc.answers import data as read_data
from tiebreak.rpc.answers import to_json
from tiebreak.rpc.chain_errors import (
    ChainError,
    ChainUnavailable,
    InvalidAnswer,
    NodesDisagree,
    RpcRefused,
    Stopped,
    printable,
)

UNDERTAKINGS = frozenset(["postJob", "commit", "sealClaim", "challenge", "sealAudit", "attest"])
"""Calls of the contract that put new money at stake. All others go on with what was begun, or fetch money back, and are
never held back: a party that cannot move loses its bond."""

MAX_ANSWER = 32 * 1024 * 1024
"""Largest answer that is read, in bytes."""

_MOST_WAIT = 60.0
"""Longest pause in seconds that a node can ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgreement:
    """Agreement of the nodes of one chain. `contradiction`: what they contradict each other about, in one clause; empty
    if nothing. `undecided`: whether no more than half of them say the same about it. `missing`: those that do not
    answer or lag behind, a clause each. `nodes`: all of them."""

    nodes: int = 1
    contradiction: str = ""
    undecided: bool = False
    missing: tuple[str, ...] = ()

    def require(self, function: str) -> None:
        """Raise NodesDisagree if a call of that name begins something and no majority of nodes decides."""
        if self.undecided and function in UNDERTAKINGS:
            raise NodesDisagree(
                f"{self.contradiction}: no new bond is paid until they agree; find out which is wrong, and leave it "
                "away, or add a third."
            )


ALONE = NodeAgreement()
"""The agreement of a single node, which agrees with itself."""


class Transport(ABC):
    """Carries requests of JSON-RPC to one node or several. Methods may be called from several threads.

    `name`: the node's in messages, which holds no secrets. `view`: a number that changes when another node is believed:
    what was read of the chain is to be read again then."""

    name: str
    view: int = 0

    @abstractmethod
    def request(self, method: str, params: list[Any]) -> object:
        """Return the JSON value `result` of one request. Raises RpcRefused, ChainUnavailable, InvalidAnswer."""

    @property
    def agreement(self) -> NodeAgreement:
        """Agreement of the nodes behind this transport."""
        return ALONE

    def set_confirmations(self, blocks: int) -> None:  # noqa: B027  (a single node has nobody to differ from)
        """Set the number of newest blocks in which the nodes behind this transport may differ."""


class HttpTransport(Transport):
    """JSON-RPC over HTTP(S).

    `timeout`: seconds that one attempt may take in all, from the look-up of the name to the last byte. `deadline`:
    seconds for all attempts at one request together. `attempts`: how often a request is tried when the network, or a
    busy node (status 429 and 5xx, an answer that breaks off), fails. Every request may be repeated: reading is
    harmless, and a signed transaction counts once however often it is sent. `stop`: ends every request at once, with
    Stopped.

    Raises ChainUnavailable if `url` is not an http(s) URL."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 10.0,
        deadline: float = 30.0,
        attempts: int = 5,
        stop: Event | None = None,
    ) -> None:
        name = shown_url(url, ("http", "https"))
        if name is None:
            raise ChainUnavailable("the chain's address is not an http(s) URL: use the form http://127.0.0.1:8545.")
        self.name = name
        self._url, self._session, self._ids = url, session(), itertools.count(1)
        self._timeout, self._deadline, self._attempts, self._stop = timeout, deadline, attempts, stop

    def request(self, method: str, params: list[Any]) -> object:
        request_id = next(self._ids)
        asked = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        body = json.dumps(asked, default=to_json).encode()
        ends = time.monotonic() + self._deadline
        pauses = Pauses(first=0.1, most=2.5, spread=1.0)
        try:
            for attempt in itertools.count(1):
                seconds = min(self._timeout, ends - time.monotonic())
                try:
                    raw = within(seconds, self._stop, partial(self._post, body, seconds))
                    return self._result(method, request_id, raw)
                except (TooLate, _Transient) as error:
                    wait = max(getattr(error, "after", 0.0), pauses.next())
                    if attempt >= self._attempts or time.monotonic() + wait >= ends:
                        raise self._unavailable(method, error) from error
                pause(wait, self._stop)
        except Halted as error:
            raise Stopped(
                f"stopped while {self.name} was asked for {method}: run the same command again to carry on."
            ) from error
        raise AssertionError("an endless loop has ended")

    def _post(self, body: bytes, seconds: float) -> bytes:
        """Make one attempt within `seconds`. Raises _Transient."""
        try:
            answer = post(self._session, self._url, body, seconds=max(0.01, seconds), most=MAX_ANSWER + 1)
        except urllib3.exceptions.ProtocolError as error:
            raise _Transient("the connection broke off") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _Transient(type(error).__name__) from error  # its text may have the URL, and the key in it
        if answer.status == 429 or (answer.status >= 500 and b'"jsonrpc"' not in answer.body):
            raise _Transient(f"status {answer.status}", min(answer.retry_after, _MOST_WAIT))
        return answer.body

    def _unavailable(self, method: str, error: Exception) -> ChainError:
        if isinstance(error, _Broken):
            return InvalidAnswer(str(error))
        why = f"more than {self._timeout:g} seconds" if isinstance(error, TooLate) else str(error)
        return ChainUnavailable(
            f"no usable answer from the chain at {self.name} to {method} ({why}): start the node, or check the address."
        )

    def _result(self, method: str, request_id: int, raw: bytes) -> object:
        if len(raw) > MAX_ANSWER:
            raise InvalidAnswer(f"{self.name} answered {method} with more than {MAX_ANSWER} bytes: use another node.")
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise _Broken(f"{self.name} did not answer {method} with JSON: check that it is a node.") from error
        if not isinstance(answer, dict) or answer.get("jsonrpc") != "2.0" or answer.get("id") not in (request_id, None):
            raise InvalidAnswer(f"{self.name} did not answer {method} with JSON-RPC: check that it is a node.")
        if answer.get("error") is not None:
            raise refusal(method, answer["error"])
        if "result" not in answer or answer.get("id") is None:
            raise InvalidAnswer(f"{self.name} answered {method} without a result: use another node.")
        return answer["result"]


class _Transient(ChainError):
    """A failure that is worth another try, `after` so many seconds at the earliest."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        self.after = after
        super().__init__(why)


class _Broken(_Transient):
    """An answer that is no JSON, mostly because it was cut off on its way."""


def refusal(method: str, error: object) -> RpcRefused:
    """Read the `error` member of a JSON-RPC answer, whatever it holds."""
    if not isinstance(error, Mapping):
        return RpcRefused(method, 0, "no reason given")
    code, message, payload = error.get("code"), error.get("message"), error.get("data")
    if isinstance(payload, Mapping):  # some nodes wrap the data of a revert once more
        payload = payload.get("data")
    try:
        revert = read_data(to_json(payload), "a revert")
    except InvalidAnswer:
        revert = None
    reason = printable(message)[:300] if isinstance(message, str) else "no reason given"
    return RpcRefused(method, code if isinstance(code, int) else 0, reason, revert)
