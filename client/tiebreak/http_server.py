"""HTTP servers that no client can hold up: uvicorn with bounded connections, for the dashboard, the text server, and
programs of this machine (metrics, development chains).

A client that says nothing, or a byte a second, costs a connection. Were these not bounded, it could take all files that
a role may open, and with them its journal.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Sequence
from socket import AF_INET, AF_INET6, create_server, socket
from threading import Thread

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

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


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a request. Raises ValueError for one of more than `most` bytes, before it is read if its
    Content-Length says so."""
    given = request.headers.get("content-length", "0")
    if not given.isascii() or not given.isdigit() or len(given) > 12 or int(given) > most:
        raise ValueError
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > most:
            raise ValueError
    return bytes(found)


SECONDS_PER_REQUEST = 10.0
"""Time in which a client has to send a request, and to take what it gets."""

MOST_CONNECTIONS = 128
"""Connections at the same time, where nothing else is said; more are answered with 503."""


class BoundedConnection(H11Protocol):
    """A connection of uvicorn that is cut off where its client keeps it waiting. uvicorn alone waits for a request, and
    for a client to take its answer, for ever. Where there are too many connections, the oldest that waits for a
    request, or for the rest of one, ends at once."""

    most_connections = MOST_CONNECTIONS

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
        return sum(not one.transport.is_closing() for one in self.connections) >= self.most_connections

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


def bounded_server(app: ASGIApp, most_connections: int = MOST_CONNECTIONS, grace: int = 1) -> uvicorn.Server:
    """Return a server of an application, which says nothing of itself. grace: seconds for answers that are being given
    when it ends."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        http=type("Connection", (BoundedConnection,), {"most_connections": most_connections}),
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


class ServingError(Exception):
    """A server cannot be had at an address; the message is one sentence."""


def listen_at(host: str, port: int, *, only_local: bool = False) -> socket:
    """Return a socket that listens at an address of this machine; port 0: any free one. only_local: whether other
    machines must not reach it. Raises ServingError."""
    try:
        where = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ServingError(f"{host!r} is no IP address: use 127.0.0.1 to answer this machine alone.") from None
    if only_local and not where.is_loopback:
        raise ServingError(
            f"{where} can be reached from other machines, and the page has no password: use 127.0.0.1, and a tunnel "
            "(ssh -L) from elsewhere."
        )
    try:
        return create_server((str(where), port), family=AF_INET6 if where.version == 6 else AF_INET, backlog=128)
    except OSError as error:
        raise ServingError(
            f"port {port} cannot be used at {where} ({error.strerror}): choose another, or 0 for any."
        ) from error


def url_of(listening: socket) -> str:
    """Return the address that a browser takes of a socket, with a slash at its end."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


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


class LocalServer(BackgroundServer):
    """Serves an application at `url`, 127.0.0.1:`port` (0: any free port), to programs of this machine, until `stop`.
    Raises ServingError."""

    def __init__(self, app: ASGIApp, port: int, name: str) -> None:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            is_local = names_this_machine(Headers(scope=scope).getlist("host"))
            await (app if is_local else PlainTextResponse("only local programs may ask\n", 403))(scope, receive, send)

        listening = listen_at("127.0.0.1", port, only_local=True)
        self.url = url_of(listening).removesuffix("/")
        super().__init__(bounded_server(guarded), listening, name)
        if not self.start():
            raise ServingError(f"the server at {self.url} did not start: choose another port.")
