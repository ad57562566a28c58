"""HTTP answers that come as a whole within their time, head and all, or not at all.

A socket's own timeout bounds the silence between two bytes. So a server that sends a header, an interim answer
(100 Continue) or a trailer now and then would keep its reader, the thread that it runs in and the socket for ever.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

import requests
import requests.adapters
import urllib3
import urllib3.connection


class _Timed(io.RawIOBase):
    """The bytes of a socket until its timeout, counted from now, is over; then TimeoutError."""

    def __init__(self, source: socket.socket) -> None:
        self._socket, self._raw = source, source.makefile("rb", buffering=0)
        seconds = source.gettimeout()
        self._ends = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if self._ends is not None:
            left = self._ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """An answer whose bytes all come within the timeout that the socket has when it is asked."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        untimed, self.fp = self.fp, io.BufferedReader(_Timed(sock))
        untimed.close()


class _Http(urllib3.connection.HTTPConnection):
    response_class = _TimedResponse


class _Https(urllib3.connection.HTTPSConnection):
    response_class = _TimedResponse


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


_POOLS = {"http": _HttpPool, "https": _HttpsPool}


def pool_manager(**options: Any) -> urllib3.PoolManager:
    """Connections of urllib3 for requests whose read timeout is for the whole answer."""
    manager = urllib3.PoolManager(**options)
    manager.pool_classes_by_scheme = _POOLS
    return manager


class _Adapter(requests.adapters.HTTPAdapter):
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager


def session() -> requests.Session:
    """A session of requests in which the timeout of a request is for the whole answer."""
    made = requests.Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Adapter())
    return made
