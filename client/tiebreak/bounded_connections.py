"""HTTP servers of uvicorn that no client can hold up: sockets, connections and settings of the dashboard's and of the
text server's. It stands behind the same door as both: uvicorn is an optional dependency."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_PER_REQUEST = 10.0
"""Time in which a client has to send a request, and to take what it gets."""

MOST_CONNECTIONS = 128
"""Connections at the same time, where nothing else is said; more are answered with 503."""


class BoundedConnection(H11Protocol):
    """A client's connection, which is cut off where no request comes in time, or no answer is taken: uvicorn waits for
    both for ever. Where there are too many connections, the oldest that waits for a request ends at once."""

    most: ClassVar[int] = MOST_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._look_again()
        if len(self.connections) >= self.most:
            # Others only: this one may just be sending.
            idle = [one for one in self.connections if one is not self and isinstance(one, BoundedConnection)]
            idle = [one for one in idle if one.waits_for_a_request and not one.transport.is_closing()]
            if idle:
                min(idle, key=lambda one: one._since).transport.abort()

    @property
    def waits_for_a_request(self) -> bool:
        """Whether nothing is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._next_look = self.loop.call_later(SECONDS_PER_REQUEST / 4, self._look)

    def _look(self) -> None:
        if not (self.waits_for_a_request or self.flow.write_paused or self.transport.is_closing()):
            self._since = self.loop.time()  # it is being answered
        if self.loop.time() - self._since > SECONDS_PER_REQUEST:
            self.transport.abort()
        else:
            self._look_again()


def bounded_server(app: Any, most_connections: int = MOST_CONNECTIONS, grace: int = 1) -> uvicorn.Server:
    """The server of an application, which says nothing of itself and bounds what clients may hold. grace: seconds for
    answers that are being given when it ends."""
    connection = type("BoundedConnection", (BoundedConnection,), {"most": most_connections})
    config = uvicorn.Config(
        app,
        lifespan="off",
        http=connection,
        ws="none",
        access_log=False,
        log_config=None,
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=most_connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=grace,
        h11_max_incomplete_event_size=16 * 1024,
    )
    return uvicorn.Server(config)


_START_SECONDS = 20.0


class BackgroundServer:
    """A server on a socket, in a thread beside."""

    def __init__(self, server: uvicorn.Server, listening: socket.socket, name: str) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name=name, daemon=True)

    def start(self) -> bool:
        """Whether it serves now: it did not start if not."""
        self._thread.start()
        ends = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > ends:
                return False
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        """Ends it, and waits for that."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(10)


def bound_socket(where: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> socket.socket:
    """A socket that listens at an address. port 0: any free one. Raises OSError."""
    family = socket.AF_INET6 if where.version == 6 else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((str(where), port))
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found


def url_of(listening: socket.socket) -> str:
    """The address that a browser takes of a socket, with a slash at its end."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
