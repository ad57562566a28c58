"""A faulty JSON-RPC proxy: loses, delays, cuts, drips, ages and refuses what passes between a role and its node.

Each role has a path of its own (`http://127.0.0.1:PORT/NAME`), with a weather of its own and a random generator of its
own, so that a role's faults depend on the seed and on the number of its requests only.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eth_hash.auto import keccak

_DRIP_SECONDS = (2.0, 6.0)
_DELAY_SECONDS = (0.1, 2.0)
_REMEMBERED = 4000
"""Answers that may come again, stale."""


class Fault(StrEnum):
    """The faults of one request."""

    DROP_BEFORE = "dropped before it reached the node"
    DROP_AFTER = "the answer was dropped after the effect"
    DELAY = "delayed"
    TOO_MANY = "status 429"
    UNAVAILABLE = "status 503"
    TRUNCATED = "JSON cut off"
    BROKEN_OFF = "connection broken off in the middle"
    DRIP = "dripped byte by byte"
    STALE = "an earlier answer again"
    LAGGING = "seen by a node a few blocks behind"
    FAR_BEHIND = "seen by a node many blocks behind"
    EMPTY = "an empty answer"
    REFUSED = "an internal error instead of an answer"
    RANGE = "a range of logs refused"
    LIE = "a false answer"


_USUAL = (
    *(Fault.DROP_BEFORE, Fault.DROP_AFTER, Fault.DELAY, Fault.TOO_MANY, Fault.UNAVAILABLE, Fault.TRUNCATED),
    *(Fault.BROKEN_OFF, Fault.DRIP, Fault.STALE, Fault.LAGGING, Fault.LAGGING, Fault.FAR_BEHIND, Fault.EMPTY),
    Fault.REFUSED,
)
_BLOCK_PARAMETER = {"eth_call": 1, "eth_getBalance": 1, "eth_getCode": 1, "eth_getTransactionCount": 1}
"""Positions of the block in the parameters of methods."""
_TRUE = ("eth_chainId", "net_version", "web3_clientVersion")
"""Methods about which nobody lies: a node of another chain is not asked."""
_EMPTY = {
    "eth_call": "0x",
    "eth_getCode": "0x",
    "eth_getLogs": [],
    "eth_getTransactionReceipt": None,
    "eth_getTransactionByHash": None,
}


@dataclass(slots=True)
class Weather:
    """The present behaviour of a role's node.

    rate: share of the requests with a fault. down: no request gets through. log_range: the most blocks in one question
    for logs; None for any number. lies: whether half of the answers are false."""

    rate: float = 0.0
    down: bool = False
    log_range: int | None = None
    lies: bool = False


@dataclass(slots=True)
class _Line:
    """A role's way to the node. remembered: the time of the first answer to a request, and the answer."""

    random: random.Random
    weather: Weather = field(default_factory=Weather)
    remembered: dict[str, deque[tuple[float, Any]]] = field(default_factory=dict)


class _Refusal(Exception):
    """An error member of a JSON-RPC answer."""

    def __init__(self, code: int, message: str) -> None:
        self.error = {"code": code, "message": message}


class _Broken(Exception):
    """The connection ends here."""


class FaultyNode:
    """Serves the node at `127.0.0.1:upstream` under `url(NAME)`, in threads of this process, until `close`."""

    def __init__(self, upstream: int, seed: int) -> None:
        self.upstream, self._seed = upstream, seed
        self.faults: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        """Requests by role."""
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"node": self})
        self._server = ServerOfThreads(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{name}"

    def line(self, name: str) -> _Line:
        with self._lock:
            if name not in self._lines:
                self._lines[name] = _Line(random.Random(f"{self._seed}-{name}"))
            return self._lines[name]

    def weather(self, name: str, weather: Weather) -> None:
        """Set the behaviour from now on."""
        self.line(name).weather = weather

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, fault: Fault) -> None:
        with self._lock:
            self.faults[fault.value] += 1


class ServerOfThreads(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that were killed, or tired of waiting, are what this is for."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    node: FaultyNode
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60.0

    def setup(self) -> None:
        super().setup()
        self._upstream = http.client.HTTPConnection("127.0.0.1", self.node.upstream, timeout=30)

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        name = self.path.strip("/")
        line = self.node.line(name)
        with self.node._lock:
            self.node.requests[name] += 1
            fault = _drawn(line)
        if fault is not None:
            self.node.count(fault)
        try:
            self._serve(line, fault, body)
        except _Broken:
            self.close_connection = True

    def _serve(self, line: _Line, fault: Fault | None, body: bytes) -> None:
        if fault is Fault.DROP_BEFORE or line.weather.down:
            raise _Broken
        if fault in (Fault.TOO_MANY, Fault.UNAVAILABLE):
            self._reply(b"slow down", 429 if fault is Fault.TOO_MANY else 503)
            return
        if fault is Fault.DELAY:
            time.sleep(line.random.uniform(*_DELAY_SECONDS))
        try:
            request = json.loads(body)
        except ValueError:
            raise _Broken from None  # its sender was killed in the middle of it
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request.get("id")}
        try:
            answer["result"] = self._result(line, fault, str(request.get("method")), list(request.get("params", [])))
        except _Refusal as refusal:
            answer["error"] = refusal.error
        raw = json.dumps(answer).encode()
        if fault is Fault.DROP_AFTER:
            raise _Broken
        if fault is Fault.TRUNCATED:
            raw = raw[: len(raw) // 2]
        if fault is Fault.BROKEN_OFF:
            self._head(200, len(raw))
            self.wfile.write(raw[: len(raw) // 2])
            raise _Broken
        if fault is Fault.DRIP:
            self._drip(raw, line.random.uniform(*_DRIP_SECONDS))
            return
        self._reply(raw)

    def _result(self, line: _Line, fault: Fault | None, method: str, params: list[Any]) -> Any:
        if line.weather.lies and method not in _TRUE and params[:1] != ["0x0"] and line.random.random() < 0.5:
            self.node.count(Fault.LIE)
            return self._lie(line, method, params)
        key = json.dumps([method, params])
        if fault is Fault.REFUSED:
            raise _Refusal(-32603, "internal error")
        if fault is Fault.EMPTY and method in _EMPTY:
            return _EMPTY[method]
        if fault is Fault.STALE and (old := line.remembered.get(key)) and method != "eth_sendRawTransaction":
            return old[0][1]
        if method == "eth_getLogs" and (most := line.weather.log_range) is not None:
            self._limit(params[0], most)
        if fault in (Fault.LAGGING, Fault.FAR_BEHIND) and method != "eth_sendRawTransaction":
            behind = line.random.randint(1, 4) if fault is Fault.LAGGING else line.random.randint(5, 80)
            return self._behind(behind, method, params)
        result = self._ask(method, params)
        answers = line.remembered.setdefault(key, deque(maxlen=8))
        answers.append((time.monotonic(), result))
        while answers and time.monotonic() - answers[0][0] > 10:
            answers.popleft()
        if len(line.remembered) > _REMEMBERED:
            line.remembered.clear()
        return result

    def _lie(self, line: _Line, method: str, params: list[Any]) -> Any:
        """Another answer than the true one: an older state, nothing, a failure, another number; of a transaction that
        was handed over, which is dropped, its hash."""
        if method == "eth_sendRawTransaction":
            return "0x" + keccak(bytes.fromhex(params[0][2:])).hex()
        if method == "eth_estimateGas":
            raise _Refusal(3, "execution reverted")
        if method in ("eth_getTransactionCount", "eth_getBalance", "eth_maxPriorityFeePerGas"):
            return hex(line.random.randrange(5000))
        if method in _EMPTY and line.random.random() < 0.5:
            return _EMPTY[method]
        found = self._behind(line.random.randint(1, 80), method, params)
        if method == "eth_getTransactionReceipt" and found:
            return found | {"status": "0x0"}
        if method == "eth_getBlockByNumber" and found:
            return found | {"hash": "0x" + line.random.randbytes(32).hex()}
        return found[1:] if method == "eth_getLogs" else found

    def _limit(self, wanted: dict[str, Any], most: int) -> None:
        first, last = (wanted.get(name, "latest") for name in ("fromBlock", "toBlock"))
        head = int(self._ask("eth_blockNumber", []), 16)
        start, end = (int(one, 16) if str(one).startswith("0x") else head for one in (first, last))
        if end - start + 1 > most:
            self.node.count(Fault.RANGE)
            raise _Refusal(-32005, f"eth_getLogs is limited to a range of {most} blocks")

    def _behind(self, behind: int, method: str, params: list[Any]) -> Any:
        """The answer of a node that has not seen the newest `behind` blocks."""
        head = max(0, int(self._ask("eth_blockNumber", []), 16) - behind)
        if method == "eth_blockNumber":
            return hex(head)
        if method in _BLOCK_PARAMETER:
            place = _BLOCK_PARAMETER[method]
            params = [*params[:place], hex(head), *params[place + 1 :]]
            return self._ask(method, params)
        if method == "eth_estimateGas":
            return self._ask(method, [params[0], hex(head)])
        if method == "eth_getBlockByNumber":
            if str(params[0]).startswith("0x"):
                return self._ask(method, params) if int(params[0], 16) <= head else None
            return self._ask(method, [hex(head), *params[1:]])
        if method == "eth_getLogs":
            wanted = dict(params[0])
            for name in ("fromBlock", "toBlock"):
                number = wanted.get(name, "latest")
                wanted[name] = hex(min(head, int(number, 16) if str(number).startswith("0x") else head))
            return self._ask(method, [wanted])
        result = self._ask(method, params)
        seen = result.get("blockNumber") if isinstance(result, dict) else None
        return None if seen is not None and int(seen, 16) > head else result

    def _ask(self, method: str, params: list[Any]) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        for attempt in (1, 2):
            try:
                self._upstream.request("POST", "/", body, {"Content-Type": "application/json"})
                answer = json.loads(self._upstream.getresponse().read())
                break
            except (OSError, http.client.HTTPException, ValueError):
                self._upstream.close()
                if attempt == 2:
                    raise _Broken from None
        if (error := answer.get("error")) is not None:
            refusal = _Refusal(0, "")
            refusal.error = error
            raise refusal
        return answer.get("result")

    def _head(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _reply(self, raw: bytes, status: int = 200) -> None:
        self._head(status, len(raw))
        self.wfile.write(raw)

    def _drip(self, raw: bytes, seconds: float) -> None:
        self._head(200, len(raw))
        pieces = min(len(raw), 40)
        for i in range(pieces):
            self.wfile.write(raw[len(raw) * i // pieces : len(raw) * (i + 1) // pieces])
            self.wfile.flush()
            time.sleep(seconds / pieces)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the campaign prints what matters."""


def _drawn(line: _Line) -> Fault | None:
    """The fault of a line's next request."""
    if line.weather.down:
        return Fault.DROP_BEFORE
    if line.random.random() >= line.weather.rate:
        return None
    return line.random.choice(_USUAL)
