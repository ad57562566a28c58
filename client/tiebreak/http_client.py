"""The HTTP client, and calls and pauses that end in time: all that this program asks by HTTP passes here.

Nodes and webhooks are asked by `session` and `post`, through the proxies of the environment. Stores may be anybody's,
and are asked by `store.http.HttpServer`, which takes nothing from the environment.

A socket's own timeout bounds the silence between two bytes. A server that sends a header, an interim answer (100
Continue) or a trailer now and then would keep its reader, the thread that it runs in and the socket for ever.
"""

from __future__ import annotations

import http.client
import io
import random
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, ClassVar, TypeVar

import requests
import requests.adapters
import urllib3

T = TypeVar("T")

_LOOK = 0.05
"""Seconds between two looks at the stop signal while a call runs."""


class TooLate(Exception):
    """A call has not ended within its time."""


class Halted(Exception):
    """The stop signal was given."""


def pause(seconds: float, stop: Event | None) -> None:
    """Wait `seconds`. Raises Halted as soon as `stop` is set."""
    if stop is None:
        time.sleep(max(0.0, seconds))
    elif stop.wait(max(0.0, seconds)):
        raise Halted


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Run `call` in a thread of its own, which does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="request", daemon=True).start()
    return future


def within(seconds: float, stop: Event | None, call: Callable[[], T]) -> T:
    """Return the result of `call`, or raise its exception, if it ends within `seconds`.

    The call runs in a thread of its own, which is left behind when its time is over: the look-up of a name has no
    timeout. Such a call must therefore change nothing in this process. Raises TooLate, and Halted when `stop` is set.
    """
    future = in_thread(call)
    ends = time.monotonic() + seconds
    while not wait([future], max(0.0, min(_LOOK, ends - time.monotonic())), FIRST_COMPLETED).done:
        if stop is not None and stop.is_set():
            raise Halted
        if time.monotonic() >= ends:
            raise TooLate
    return future.result()


class Pauses:
    """Exponential backoff: pauses from `first` seconds, doubled up to `most`. `spread`: each is longer by a random part
    of itself, up to this one, so that many who failed at the same time do not come again at the same time."""

    def __init__(self, *, first: float, most: float, spread: float = 0.0) -> None:
        self._first, self._most, self._spread = first, most, spread
        self._now = first

    def next(self) -> float:
        """Return the seconds to wait after one more failure."""
        pause, self._now = self._now, min(2 * self._now, self._most)
        return pause * (1 + self._spread * random.random())

    def reset(self) -> None:
        """Start again at `first`, after a success."""
        self._now = self._first


def shown_url(url: str, schemes: Sequence[str] | None = None) -> str | None:
    """Return the part of a URL that may be shown: scheme, host and port. None if it is none of these schemes (None:
    any), or has no host. Hosted nodes and gateways have their API key in the path, in the query or in the user part."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname or (schemes is not None and parts.scheme not in schemes):
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of a server. `retry_after`: seconds after which it asks to be asked again; 0.0 where it does not say
    so."""

    status: int
    body: bytes
    retry_after: float


class TimedBytes(io.RawIOBase):
    """The bytes of a socket until its timeout, counted from now, is over; then TimeoutError. OSError after `most`
    bytes."""

    def __init__(self, source: socket.socket, most: int | None = None) -> None:
        self._left = most
        self._socket, self._raw = source, source.makefile("rb", buffering=0)
        self._seconds = source.gettimeout()
        self._ends = None if self._seconds is None else time.monotonic() + self._seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if self._ends is not None:
            left = self._ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
        count = self._raw.readinto(buffer)
        if self._left is not None and count:
            self._left -= count
            if self._left < 0:
                raise OSError("the answer is longer than any that is wanted")
        return count

    def close(self) -> None:
        if not self.closed:
            # The next request on this connection may be sent within it. OSError: the socket is closed already.
            with suppress(OSError):
                self._socket.settimeout(self._seconds)
            self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """An answer whose bytes all come within the timeout that the socket has when it is asked."""

    most_bytes: ClassVar[int | None] = None

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        untimed, self.fp = self.fp, io.BufferedReader(TimedBytes(sock, self.most_bytes))
        untimed.close()


def _pools(most: int | None = None) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return urllib3's pools of connections with such answers, by scheme. most: bytes of an answer, head and all."""
    response = type("Response", (_TimedResponse,), {"most_bytes": most})
    found = {}
    for scheme, pool in (("http", urllib3.HTTPConnectionPool), ("https", urllib3.HTTPSConnectionPool)):
        connection = type("Connection", (pool.ConnectionCls,), {"response_class": response})
        found[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})
    return found


def pool_manager(**options: Any) -> urllib3.PoolManager:
    """Return connections of urllib3 for requests whose read timeout is for the whole answer."""
    manager = urllib3.PoolManager(**options)
    manager.pool_classes_by_scheme = _pools()
    return manager


class _Adapter(requests.adapters.HTTPAdapter):
    def __init__(self, most: int | None) -> None:
        self._pools = _pools(most)
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


def session() -> requests.Session:
    """Return a session of requests in which the timeout of a request is for the whole answer."""
    made = requests.Session()
    bound(made)
    return made


def bound(made: requests.Session, most: int | None = None) -> None:
    """Make the timeout of each request of this session one for the whole answer, which has at most `most` bytes."""
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Adapter(most))


def read_answer(answer: urllib3.BaseHTTPResponse, most: int) -> HttpAnswer:
    """Read at most `most` bytes of an open answer's body as they come, not unpacked. Raises the HTTPError of urllib3
    (ProtocolError for one that was cut off) and OSError."""
    read = bytearray()
    while len(read) <= most and (piece := answer.read1(1 << 16, decode_content=False)):
        read += piece
    if len(read) <= most:
        answer.release_conn()
    after = answer.headers.get("Retry-After", "").strip()  # a date counts as none
    seconds = float(after) if re.fullmatch("[0-9]{1,9}", after) else 0.0
    return HttpAnswer(answer.status, bytes(read[:most]), seconds)


def post(connections: requests.Session, url: str, body: bytes, *, seconds: float, most: int) -> HttpAnswer:
    """Send JSON and return the answer, within `seconds`; a redirect is one, and is not followed. `most`: as for
    `read_answer`; at 0 the body is not waited for. Raises RequestException, and what `read_answer` does."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    with connections.post(
        url, data=body, headers=headers, timeout=seconds, stream=True, allow_redirects=False
    ) as answer:
        return read_answer(answer.raw, most) if most else HttpAnswer(answer.status_code, b"", 0.0)
