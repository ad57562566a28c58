"""Transports of JSON-RPC requests: what all of them do, HTTP, and `NodeAgreement` among the nodes behind one.

web3's HTTPProvider reads answers of any length, and limits each read but no request; its import doubles the time in
which a command that reads the contract starts. `web3_providers` gives a transport to any `Web3`, and the reverse.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

from tiebreak.http_client import Halted, NoResponse, TooLate, ask, repeated, session, shown_url
from tiebreak.rpc.answers import data as read_data
from tiebreak.rpc.answers import to_json
from tiebreak.rpc.chain_errors import (
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

    `name`: the node's in messages, which holds no secrets. `view`: a generation counter. Another value means
    that answers come from another node, and that what was read of the chain has to be read again."""

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

    def _unavailable(self, method: str, why: str) -> ChainUnavailable:
        return ChainUnavailable(
            f"no usable answer from the chain at {self.name} to {method} ({why}): start the node, or check the address."
        )

    @contextmanager
    def _explained(self, method: str, seconds: float) -> Iterator[None]:
        """Raise a chain's errors for those of a request by HTTP or in a thread. seconds: those of an attempt."""
        try:
            yield
        except _Broken as error:
            raise InvalidAnswer(str(error)) from error
        except (NoResponse, TooLate) as error:
            why = f"more than {seconds:g} seconds" if isinstance(error, TooLate) else str(error)
            raise self._unavailable(method, why) from error
        except Halted as error:
            raise Stopped(
                f"stopped while {self.name} was asked for {method}: run the same command again to carry on."
            ) from error


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
        self._session.headers["Content-Type"] = "application/json"
        self._timeout, self._deadline, self._attempts, self._stop = timeout, deadline, attempts, stop

    def request(self, method: str, params: list[Any]) -> object:
        request_id = next(self._ids)
        asked = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        body = json.dumps(asked, default=to_json).encode()

        def attempt(seconds: float) -> object:
            answer = ask(self._session, "POST", self._url, data=body, seconds=seconds, most=MAX_ANSWER + 1)
            if answer.status == 429 or (answer.status >= 500 and b'"jsonrpc"' not in answer.body):
                raise NoResponse(f"status {answer.status}", answer.retry_after)
            return self._result(method, request_id, answer.body)

        timeout, attempts = self._timeout, self._attempts
        with self._explained(method, timeout):
            return repeated(attempt, timeout=timeout, attempts=attempts, seconds=self._deadline, stop=self._stop)

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


class _Broken(NoResponse):
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
