"""The HTTP client: answers come whole within their time, head and all, or not at all, and have a size.

All that this program asks by HTTP passes here. Nodes and webhooks are asked by `session` and `post`, through the
proxies of the environment. Stores may be anybody's, and are asked by `store.http.HttpServer`, which takes nothing from
the environment.

A socket's own timeout bounds the silence between two bytes. So a server that sends a header, an interim answer
(100 Continue) or a trailer now and then would keep its reader, the thread that it runs in and the socket for ever.
"""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import time
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import requests
import requests.adapters
import urllib3
import urllib3.connection

_PIECE = 1 << 16


def shown_url(url: str, schemes: Sequence[str] | None = None) -> str | None:
    """The part of a URL that may be shown: scheme, host and port. None if it is none of these schemes (None: any), or
    has no host. Hosted nodes and gateways have their API key in the path, in the query or in the user part."""
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
    """An answer of a server. `more`: whether the body was longer than the caller has asked for, and was cut.
    `retry_after`: seconds after which it asks to be asked again; 0.0 where it does not say so."""

    status: int
    body: bytes
    more: bool
    retry_after: float

    def json(self) -> Any:
        """The body as JSON. Raises ValueError for anything else."""
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError("nests too deep") from error


class _Timed(io.RawIOBase):
    """The bytes of a socket until its timeout, counted from now, is over; then TimeoutError. OSError after `most`."""

    def __init__(self, source: socket.socket, most: int | None) -> None:
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
        untimed, self.fp = self.fp, io.BufferedReader(_Timed(sock, self.most_bytes))
        untimed.close()


def _pools(most: int | None = None) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Scheme -> urllib3's pool of connections with such answers. most: bytes of an answer, head and all."""

    class Response(_TimedResponse):
        most_bytes = most

    class Http(urllib3.connection.HTTPConnection):
        response_class = Response

    class Https(urllib3.connection.HTTPSConnection):
        response_class = Response

    class HttpPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Http

    class HttpsPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Https

    return {"http": HttpPool, "https": HttpsPool}


def pool_manager(**options: Any) -> urllib3.PoolManager:
    """Connections of urllib3 for requests whose read timeout is for the whole answer."""
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
    """A session of requests in which the timeout of a request is for the whole answer."""
    made = requests.Session()
    bound(made)
    return made


def bound(made: requests.Session, most: int | None = None) -> None:
    """Has the timeout of a request of this session be for the whole answer, which has at most `most` bytes."""
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Adapter(most))


def read_answer(answer: urllib3.BaseHTTPResponse, most: int) -> HttpAnswer:
    """An open answer, with at most `most` bytes of its body as they come, not unpacked. Raises the HTTPError of
    urllib3 (ProtocolError for one that was cut off) and OSError."""
    read = bytearray()
    while len(read) <= most and (piece := answer.read1(_PIECE, decode_content=False)):
        read += piece
    more = len(read) > most
    if not more:
        answer.release_conn()
    after = answer.headers.get("Retry-After", "").strip()  # a date counts as none
    seconds = float(after) if re.fullmatch("[0-9]{1,9}", after) else 0.0
    return HttpAnswer(answer.status, bytes(read[:most]), more, seconds)


def post(connections: requests.Session, url: str, body: bytes, *, seconds: float, most: int) -> HttpAnswer:
    """The answer to JSON, within `seconds`; a redirect is one, and is not followed. `most`: as for `read_answer`; at 0
    the body is not waited for. Raises RequestException, and what `read_answer` does."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    with connections.post(
        url, data=body, headers=headers, timeout=seconds, stream=True, allow_redirects=False
    ) as answer:
        return read_answer(answer.raw, most) if most else HttpAnswer(answer.status_code, b"", True, 0.0)
