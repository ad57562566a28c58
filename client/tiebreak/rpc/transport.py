"""Transports of JSON-RPC requests to a node: what all of them do, and HTTP; `sockets` has WebSocket and IPC. And the
search of ranges of blocks for events, within limits of a provider that nobody has told us; and `NodeAgreement`: how the
nodes of one chain stand to each other, and for how long a contradiction between them counts.

web3's own providers read answers of any length, and have a limit on each read but none on a request. These here can be
given to any `Web3` (`web3_providers.TransportProvider`). They do without web3, whose import makes a command that reads
the contract start in 2.4 times the time (`python -c 'import tiebreak.contract.game, web3'` against the first alone).

Hosted nodes limit the range of blocks, or the size of the answer, each at another place and in its own words. So every
refusal is taken for such a limit: the range is halved, down to one block, and the size that was accepted is remembered.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import requests
import urllib3

from tiebreak.deadlines import Halted, Pauses, TooLate, pause, within
from tiebreak.rpc.answers import data as read_data
from tiebreak.rpc.chain_errors import (
    ChainError,
    ChainUnavailable,
    InvalidAnswer,
    NodesDisagree,
    RpcRefused,
    Stopped,
    printable,
)
from tiebreak.timed_http import post, session, shown_url

CALM_SECONDS = 60.0
"""Seconds without a contradiction after which the last one is over."""

FORK_SECONDS = 60.0
"""Seconds for which different answers about blocks that are not confirmed may be a fork of the chain, as there are some
every day. After that they are a contradiction."""

_SAME_DOUBT = 30.0
"""Seconds between two doubts that count as one."""

UNDERTAKINGS = frozenset(["postJob", "commit", "sealClaim", "challenge", "sealAudit", "attest"])
"""Calls of the contract that begin something: they put new money at stake. All others go on with what was begun, or
fetch money back, and are held back by nothing: a party that cannot move loses its bond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgreement:
    """The nodes' agreement now. `contradiction`: what they contradict each other about, in one clause; empty if
    nothing. `undecided`: whether no more than half of them say the same about it. `missing`: those that do not answer
    or lag behind, a clause each. `nodes`: all of them."""

    nodes: int = 1
    contradiction: str = ""
    undecided: bool = False
    missing: tuple[str, ...] = ()

    def require(self, function: str) -> None:
        """Raises NodesDisagree if a call of that name is new and the nodes contradict each other without a majority."""
        if self.undecided and function in UNDERTAKINGS:
            raise NodesDisagree(
                f"{self.contradiction}: no new bond is paid until they agree; find out which is wrong, and leave it "
                "away, or add a third."
            )


ALONE = NodeAgreement()
"""The agreement of a single node, which agrees with itself."""


class Contradictions:
    """The contradiction that counts now. `clock`: seconds, as `time.monotonic`. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._about = ""
        self._seen = 0.0
        self._undecided: float | None = None
        """Instant at which the last one without a majority was seen."""
        self._doubted: tuple[float, float] | None = None
        """Instants of the first and of the last of the doubts that go on."""

    def doubt(self, about: str, *, decided: bool) -> None:
        """Takes in different answers about blocks that are not confirmed: a contradiction once they last."""
        with self._lock:
            now = self._clock()
            if self._doubted is None or now - self._doubted[1] > _SAME_DOUBT:
                self._doubted = now, now
            self._doubted = self._doubted[0], now
            lasts = now - self._doubted[0] >= FORK_SECONDS
        if lasts:
            self.note(about, decided=decided)

    def note(self, about: str, *, decided: bool) -> None:
        """Takes in a contradiction. about: a clause; the first one is shown until all is calm, so that it is told
        once. decided: whether more than half say the same."""
        with self._lock:
            now = self._clock()
            was = self._state(now)
            if not was[0] or (not decided and not was[1]):
                self._about = about
            self._seen = now
            if not decided:
                self._undecided = now

    def now(self) -> tuple[str, bool]:
        """The contradiction, empty if there is none, and whether it is undecided."""
        with self._lock:
            return self._state(self._clock())

    def _state(self, now: float) -> tuple[str, bool]:
        if not self._about or now - self._seen >= CALM_SECONDS:
            self._about, self._undecided = "", None
            return "", False
        return self._about, self._undecided is not None and now - self._undecided < CALM_SECONDS


T = TypeVar("T")

LOG_RANGE = 2_000
"""Blocks asked for at once, at first and at most."""

_BOLD_AFTER = 32
"""Accepted ranges in a row before a larger one is tried again: a limit of results may hold for a few blocks only."""


class RangeLimit:
    """Largest range of blocks that a provider accepts, as far as it is known. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begins anew: the limit was that of a node that is not asked any more."""
        with self._lock:
            self._accepted = 0
            self._refused = LOG_RANGE + 1
            self._in_a_row = 0

    def next_size(self) -> int:
        """Blocks to ask for: halfway between what was accepted and what was refused."""
        with self._lock:
            if self._refused > LOG_RANGE:
                return LOG_RANGE
            # Within a tenth the limit is known well enough: every further refusal would cost a request.
            if self._refused - self._accepted <= max(1, self._accepted // 10):
                return max(1, self._accepted)
            return max(1, (self._accepted + self._refused) // 2)

    def was_accepted(self, size: int) -> None:
        with self._lock:
            self._accepted = max(self._accepted, size)
            self._refused = max(self._refused, self._accepted + 1)
            self._in_a_row += 1
            if self._in_a_row >= _BOLD_AFTER:
                self._in_a_row = 0
                self._refused = min(2 * self._refused, LOG_RANGE + 1)

    def was_refused(self, size: int) -> None:
        with self._lock:
            self._refused = min(self._refused, size)
            if size <= self._accepted:
                self._accepted = 0  # it was accepted elsewhere: what counts here is the number of events
            self._in_a_row = 0


def forwards(limit: RangeLimit, first: int, last: int, ask: Callable[[int, int], list[T]]) -> Iterator[list[T]]:
    """Yields what `ask(start, until)` finds in the blocks from `first` to `last`, in order. Raises RpcRefused where not
    even one block is answered."""
    while first <= last:
        until = min(first + limit.next_size() - 1, last)
        found = _asked(limit, first, until, ask)
        if found is not None:
            yield found
            first = until + 1


def backwards(limit: RangeLimit, first: int, last: int, ask: Callable[[int, int], list[T]]) -> Iterator[list[T]]:
    """Yields as `forwards`, but from the newest blocks to the oldest; each list is in order by itself."""
    while first <= last:
        start = max(last - limit.next_size() + 1, first)
        found = _asked(limit, start, last, ask)
        if found is not None:
            yield found
            last = start - 1


def _asked(limit: RangeLimit, start: int, until: int, ask: Callable[[int, int], list[T]]) -> list[T] | None:
    """The entries of a range of blocks; None if the range is refused."""
    size = until - start + 1
    try:
        found = ask(start, until)
    except RpcRefused:
        if size == 1:
            raise
        limit.was_refused(size)
        return None
    limit.was_accepted(size)
    return found


MAX_ANSWER = 32 * 1024 * 1024
"""Largest answer that is read, in bytes."""

_MOST_WAIT = 60.0
"""Longest pause in seconds that a node can ask for."""


class Transport(ABC):
    """Carries requests of JSON-RPC to one node or several. Methods may be called from several threads.

    `name`: the node's in messages, which holds no secrets."""

    name: str

    def __init__(self) -> None:
        self.range_limit = RangeLimit()
        """Its limit on events, as far as it is known."""

    @abstractmethod
    def request(self, method: str, params: list[Any]) -> object:
        """Returns the JSON value `result` of one request. Raises RpcRefused, ChainUnavailable, InvalidAnswer."""

    @property
    def agreement(self) -> NodeAgreement:
        """Agreement of the nodes behind this transport; a single one agrees with itself."""
        return ALONE

    @property
    def view(self) -> int:
        """A number that changes when another node is believed: what was seen of the chain is to be read again then."""
        return 0

    def set_confirmations(self, blocks: int) -> None:  # noqa: B027  (a single node has nobody to differ from)
        """Says under how many blocks the nodes behind this transport have the same ones: higher up they may differ."""


class RepeatingTransport(Transport):
    """JSON-RPC over any means that carries bytes there and back; subclasses say which.

    `timeout`: seconds that one attempt may take in all, from the look-up of the name to the last byte. `deadline`:
    seconds for all attempts at one request together. `attempts`: how often a request is tried when the network, or a
    busy node (status 429 and 5xx, an answer that breaks off), fails. Every request may be repeated: reading is
    harmless, and a signed transaction counts once however often it is sent. `stop`: ends every request at once, with
    Stopped.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: float = 10.0,
        deadline: float = 30.0,
        attempts: int = 5,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self._timeout = timeout
        self._deadline = deadline
        self._attempts = attempts
        self._stop = stop
        self._ids = itertools.count(1)

    @abstractmethod
    def _exchange(self, body: bytes, ends: float) -> bytes:
        """Sends one request and returns its answer, of little more than `MAX_ANSWER` bytes at most. Runs in a thread
        that is left behind at the instant `ends` of time.monotonic. Raises Transient, InvalidAnswer."""

    def request(self, method: str, params: list[Any]) -> object:
        request_id = next(self._ids)
        asked = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        body = json.dumps(asked, default=as_json).encode()
        ends = time.monotonic() + self._deadline
        pauses = Pauses(first=0.1, most=2.5, spread=1.0)
        for attempt in itertools.count(1):
            try:
                return self._attempt(method, request_id, body, min(self._timeout, ends - time.monotonic()))
            except Halted as error:
                raise self._stopped(method) from error
            except Transient as error:
                wait = max(error.after, pauses.next())
                if attempt >= self._attempts or time.monotonic() + wait >= ends:
                    raise self._hopeless(method, error) from error
            try:
                pause(wait, self._stop)
            except Halted as error:
                raise self._stopped(method) from error
        raise AssertionError("an endless loop has ended")

    def _attempt(self, method: str, request_id: int, body: bytes, seconds: float) -> object:
        try:
            raw = within(seconds, self._stop, lambda: self._exchange(body, time.monotonic() + seconds))
        except TooLate as error:
            raise Transient(f"more than {self._timeout:g} seconds") from error
        return self._result(method, request_id, raw)

    def _stopped(self, method: str) -> Stopped:
        return Stopped(f"stopped while {self.name} was asked for {method}: run the same command again to carry on.")

    def _hopeless(self, method: str, error: Exception) -> ChainError:
        if isinstance(error, _Broken):
            return InvalidAnswer(str(error))
        return ChainUnavailable(
            f"no usable answer from the chain at {self.name} to {method} ({error}): start the node, or check the "
            "address."
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


class HttpTransport(RepeatingTransport):
    """JSON-RPC over HTTP(S). Raises ChainUnavailable if `url` is not an http(s) URL."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 10.0,
        deadline: float = 30.0,
        attempts: int = 5,
        stop: threading.Event | None = None,
    ) -> None:
        name = shown_url(url, ("http", "https"))
        if name is None:
            raise ChainUnavailable("the chain's address is not an http(s) URL: use the form http://127.0.0.1:8545.")
        super().__init__(name, timeout=timeout, deadline=deadline, attempts=attempts, stop=stop)
        self._url = url
        self._session = session()

    def _exchange(self, body: bytes, ends: float) -> bytes:
        try:
            answer = post(
                self._session, self._url, body, seconds=max(0.01, ends - time.monotonic()), most=MAX_ANSWER + 1
            )
        except urllib3.exceptions.ProtocolError as error:
            raise Transient("the connection broke off") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise Transient(type(error).__name__) from error
        if answer.status == 429 or (answer.status >= 500 and b'"jsonrpc"' not in answer.body):
            raise Transient(f"status {answer.status}", min(answer.retry_after, _MOST_WAIT))
        return answer.body


class Transient(ChainError):
    """A failure that is worth another try, `after` so many seconds at the earliest."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        self.after = after
        super().__init__(why)


class _Broken(Transient):
    """An answer that is no JSON, mostly because it was cut off on its way."""


def refusal(method: str, error: object) -> RpcRefused:
    """Reads the `error` member of a JSON-RPC answer, whatever it holds."""
    if not isinstance(error, Mapping):
        return RpcRefused(method, 0, "no reason given")
    code, message, payload = error.get("code"), error.get("message"), error.get("data")
    if isinstance(payload, Mapping):  # some nodes wrap the data of a revert once more
        payload = payload.get("data")
    try:
        revert = read_data(as_json(payload) if isinstance(payload, bytes) else payload, "a revert")
    except InvalidAnswer:
        revert = None
    reason = printable(message)[:300] if isinstance(message, str) else "no reason given"
    return RpcRefused(method, code if isinstance(code, int) else 0, reason, revert)


def as_json(value: object) -> object:
    """Bytes and records of web3, as JSON takes them. Raises TypeError for anything else."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
