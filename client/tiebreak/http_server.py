"""HTTP servers that no client can hold up: of this machine's own programs (metrics, development chains), in threads;
and uvicorn, for the dashboard and the text server.

A client that says nothing, or a byte a second, costs a connection. Were these not bounded, it could take all files that
a role may open, and with them its journal. uvicorn is an optional dependency, and loaded where it is used.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, SHUT_RDWR, create_server, socket
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, ClassVar

from tiebreak.http_client import TimedBytes

if TYPE_CHECKING:
    import uvicorn

_HOST = re.compile(r"(?P<name>localhost|\[::1\]|[0-9.]+)(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE)


def names_this_machine(hosts: Sequence[str]) -> bool:
    """Return whether a request's Host headers are one, of the form of RFC 9110, that names the loopback interface. A
    web page whose own name was made to point here (DNS rebinding) sends that name."""
    found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if found is None:
        return False
    try:
        return not found["name"][0].isdigit() or ipaddress.IPv4Address(found["name"]).is_loopback
    except ValueError:
        return False


_MOST_WAITING = 64
_CLOSES_WITHIN = 0.05  # seconds


class LoopbackServer(ThreadingHTTPServer):
    """Serves at 127.0.0.1:`port` (0: any free port), a thread for each connection. Of more than 64 connections that
    wait for a whole request, the oldest is closed. Raises OSError where the port cannot be had."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, handler: type[LoopbackHandler]) -> None:
        self._lock = Lock()
        self._waiting: dict[socket, None] = {}
        super().__init__(("127.0.0.1", port), handler)

    def start(self, name: str) -> None:
        """Serve in a thread of this name, until `close`."""
        self._thread = Thread(target=self.serve_forever, args=(_CLOSES_WITHIN,), name=name, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def waits(self, connection: socket) -> None:
        """Take note that a connection waits for a request."""
        with self._lock:
            self._waiting.setdefault(connection)
            while len(self._waiting) > _MOST_WAITING:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with suppress(OSError):
                    oldest.shutdown(SHUT_RDWR)  # its thread finds the end of it, and closes it

    def has_request(self, connection: socket) -> None:
        """Take note that a connection's request is there, or that it is closed."""
        with self._lock:
            self._waiting.pop(connection, None)

    def shutdown_request(self, request: Any) -> None:
        self.has_request(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a client that was killed, or tired of waiting."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection. `timeout`: seconds for each to be there as a whole, from the connection's
    beginning or the last answer; of what one sends after its headers, the handler says by `has_request` when it has
    read it."""

    timeout: ClassVar[float] = 10.0
    server: LoopbackServer

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._received = TimedBytes(self.connection)
        self.rfile = io.BufferedReader(self._received)

    def handle_one_request(self) -> None:
        self._received.begin()
        self.server.waits(self.connection)
        super().handle_one_request()

    def has_request(self) -> None:
        """End the time that the request has."""
        self.server.has_request(self.connection)
        self.connection.settimeout(self.timeout)

    def is_for_this_machine(self) -> bool:
        """Return whether the request names this machine as its host."""
        return names_this_machine(self.headers.get_all("Host", []))

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: standard error has the process's own errors."""


SECONDS_PER_REQUEST = 10.0
"""Time in which a client of uvicorn has to send a request, and to take what it gets."""

MOST_CONNECTIONS = 128
"""Connections at the same time, where nothing else is said; more are answered with 503."""


def bounded_server(app: Any, most_connections: int = MOST_CONNECTIONS, grace: int = 1) -> uvicorn.Server:
    """Return a server of an application, which says nothing of itself. uvicorn alone waits for a request, and for a
    client to take its answer, for ever: this one cuts such connections off. Where there are too many, the oldest that
    waits for a request, or for the rest of one, ends at once.

    grace: seconds for answers that are being given when it ends."""
    import uvicorn
    from uvicorn.protocols.http.flow_control import service_unavailable
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedConnection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.since = self.loop.time()
            self.timer = self.loop.call_later(SECONDS_PER_REQUEST / 4, self.look)
            if self.is_one_too_many():
                others = [one for one in self.connections if one is not self and isinstance(one, BoundedConnection)]
                waiting = [one for one in others if one.waits_for_a_request and not one.transport.is_closing()]
                if waiting:
                    min(waiting, key=lambda one: one.since).transport.abort()

        @property
        def waits_for_a_request(self) -> bool:
            """Whether nothing is being answered: no request is there, or not all of its body."""
            return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

        def is_one_too_many(self) -> bool:
            return sum(not one.transport.is_closing() for one in self.connections) >= most_connections

        def handle_events(self) -> None:
            # uvicorn's own limit counts connections that end, and requests of theirs.
            self.app = service_unavailable if self.is_one_too_many() else self.config.loaded_app
            before = self.cycle
            super().handle_events()
            if self.cycle is not before:
                self.since = self.loop.time()

        def on_response_complete(self) -> None:
            self.since = self.loop.time()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self.timer.cancel()
            super().connection_lost(exc)

        def look(self) -> None:
            if not (self.waits_for_a_request or self.flow.write_paused or self.transport.is_closing()):
                self.since = self.loop.time()  # it is being answered
            if self.loop.time() - self.since > SECONDS_PER_REQUEST:
                self.transport.abort()
            else:
                self.timer = self.loop.call_later(SECONDS_PER_REQUEST / 4, self.look)

    config = uvicorn.Config(
        app,
        lifespan="off",
        http=BoundedConnection,
        ws="none",
        access_log=False,
        log_config=None,
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=grace,
        h11_max_incomplete_event_size=16 * 1024,
    )
    return uvicorn.Server(config)


_START_SECONDS = 20.0


class BackgroundServer:
    """A server of uvicorn on a socket, in a thread beside."""

    def __init__(self, server: uvicorn.Server, listening: socket, name: str) -> None:
        self._server = server
        self._thread = Thread(target=server.run, kwargs={"sockets": [listening]}, name=name, daemon=True)

    def start(self) -> bool:
        """Start it, and return whether it serves now: it did not start if not."""
        self._thread.start()
        ends = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > ends:
                return False
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        """End it, and wait for that."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(10)


def bound_socket(where: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> socket:
    """Return a socket that listens at an address. port 0: any free one. Raises OSError."""
    return create_server((str(where), port), family=AF_INET6 if where.version == 6 else AF_INET, backlog=128)


def url_of(listening: socket) -> str:
    """Return the address that a browser takes of a socket, with a slash at its end."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
