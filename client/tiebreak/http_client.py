"""The HTTP client, and calls and pauses that end in time: all that this program asks by HTTP passes here.

Nodes and webhooks are asked through the proxies of the environment. Stores may be anybody's, and their sessions take
nothing from it (`trust_env`).

A socket's own timeout bounds the silence between two bytes. A server that sends a header, an interim answer (100
Continue) or a trailer now and then would keep its reader, the thread that it runs in and the socket for ever.
"""

from __future__ import annotations

import http.client
import io
import itertools
import random
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Any, ClassVar, TypeVar

import requests
import requests.adapters
import urllib3

T = TypeVar("T")

_LOOK = 0.05
"""Seconds between two looks at the stop signal while a call runs."""

_MOST_WAIT = 30.0
"""Longest pause in seconds that a server's Retry-After can ask for."""


class TooLate(Exception):
    """A call has not ended within its time."""


class Halted(Exception):
    """The stop signal was given."""


class NoResponse(Exception):
    """A server has not answered, or not with a whole answer. `wait`: seconds after which it asks to be tried again."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


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
    """Return a session of requests in which the timeout of a request is for the whole answer, and which unpacks
    nothing."""
    made = requests.Session()
    made.headers["Accept-Encoding"] = "identity"
    bound(made)
    return made


def bound(made: requests.Session, most: int | None = None) -> None:
    """Make the timeout of each request of this session one for the whole answer, which has at most `most` bytes."""
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Adapter(most))


def ask(
    connections: requests.Session, method: str, url: str, *, seconds: float, most: int, **options: Any
) -> HttpAnswer:
    """Return the answer to one request within `seconds`; a redirect is one, and is not followed. most: bytes of the
    body that are read, as they come and not unpacked; at 0 it is not waited for. options: as of requests. Raises
    NoResponse, whose text has nothing of the URL."""
    try:
        with connections.request(
            method, url, timeout=max(0.01, seconds), stream=True, allow_redirects=False, **options
        ) as answer:
            read = bytearray()
            while len(read) < most and (piece := answer.raw.read1(1 << 16, decode_content=False)):
                read += piece
            if len(read) < most:
                answer.raw.release_conn()  # else bytes may still be on the way
            after = answer.headers.get("Retry-After", "").strip()  # a date counts as none
            pause = float(after) if re.fullmatch("[0-9]{1,9}", after) else 0.0
            return HttpAnswer(answer.status_code, bytes(read[:most]), pause)
    except urllib3.exceptions.ProtocolError as error:
        raise NoResponse("the connection broke off") from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        # The system's reason; the libraries' own texts have the URL.
        reason: BaseException | None = error
        while reason is not None and not getattr(reason, "strerror", None):
            reason = reason.__cause__ or reason.__context__
        raise NoResponse(getattr(reason, "strerror", None) or type(error).__name__) from error


def repeated(
    call: Callable[[float], T],
    *,
    timeout: float,
    attempts: int,
    seconds: float | None,
    stop: Event | None,
    passing: tuple[type[Exception], ...] = (NoResponse, TooLate),
) -> T:
    """Return the result of `call`, which gets the seconds that it has, `timeout` at most, and is tried again after
    growing pauses while its error is one of `passing`: `attempts` times, within `seconds` in all (None: any). Raises
    the last error, TooLate, and Halted when `stop` is set."""
    ends = float("inf") if seconds is None else time.monotonic() + seconds
    pauses = Pauses(first=0.1, most=5.0, spread=1.0)
    for attempt in itertools.count(1):
        left = min(timeout, ends - time.monotonic())
        if left <= 0:
            raise TooLate
        try:
            return within(left, stop, partial(call, left))
        except passing as error:
            wait = max(pauses.next(), min(_MOST_WAIT, getattr(error, "wait", 0.0)))
            if attempt >= attempts or time.monotonic() + wait >= ends:
                raise
        pause(wait, stop)
    raise AssertionError("an endless loop has ended")
