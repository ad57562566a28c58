"""HTTP servers of uvicorn that no client can hold up: sockets, connections and settings of the dashboard's and of the
text server's. It stands behind the same door as both: uvicorn is an optional dependency."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_PER_REQUEST = 10.0
"""Time in which a client has to send a request, and to take what it gets."""

MOST_CONNECTIONS = 128
"""Connections at the same time, where nothing else is said; more are answered with 503."""


_CLOSE = (b"connection", b"close")
_HALF_CLOSE_SECONDS = 1.0
"""Time behind a request in which a client that ends is one that has only said all."""
_PROBE_SECONDS = (0.1, 1.0)
"""Time to the second probe of a client that sends no more, and between all later ones."""


def refusing(body: bytes, media_type: str) -> Any:
    """An application that answers each request with status 503, this body, and a time to come back."""
    headers = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body)), (b"retry-after", b"5")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": [*headers, _CLOSE]})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return app


class BoundedConnection(H11Protocol):
    """A client's connection, which is cut off where no request comes in time, or no answer is taken: uvicorn waits for
    both for ever. Where there are too many connections, the oldest that waits for a request, or for the rest of one,
    ends at once. A client that sends its request and closes its own direction is answered, if it is still there."""

    most: ClassVar[int] = MOST_CONNECTIONS
    overloaded: ClassVar[Any] = staticmethod(refusing(b"Service Unavailable", "text/plain; charset=utf-8"))
    """The application that answers where there are too many connections."""
    pipelines: ClassVar[bool] = True
    """Whether requests behind one that is being answered wait for its end. Its client's end is not seen meanwhile."""

    _probe: asyncio.TimerHandle | None = None
    _discards = False
    _asked = 0.0
    """Instant of the newest request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._look_again()
        if self._count() >= self.most:
            # Others only: this one may just be sending.
            idle = [one for one in self.connections if one is not self and isinstance(one, BoundedConnection)]
            idle = [one for one in idle if one.waits_for_a_request and not one.transport.is_closing()]
            if idle:
                min(idle, key=lambda one: one._since).transport.abort()

    @property
    def waits_for_a_request(self) -> bool:
        """Whether nothing is being answered: no request is there, or not all of its body."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _count(self) -> int:
        """Connections that are not ending, if there could be too many."""
        total = len(self.connections)
        return total if total < self.most else sum(not one.transport.is_closing() for one in self.connections)

    def data_received(self, data: bytes) -> None:
        if self._discards:
            return
        super().data_received(data)
        if not (self.pipelines or self.waits_for_a_request) and self.conn.trailing_data[0]:
            # Reading goes on, so that the end of the client is seen.
            self._discards = True
            self._end_behind_the_answer()
            self.flow.resume_reading()

    def handle_events(self) -> None:
        before = self.cycle
        self.app = self.overloaded if self._count() >= self.most else self.config.loaded_app
        super().handle_events()
        if self.cycle is not before:
            self._since = self._asked = self.loop.time()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keeps the connection of a request whose answer has not begun: half-closed and gone are told apart by what
        comes back of a probe. Of an answer that has begun, whose own writes are probes, only if this comes with the
        request."""
        is_late = self.cycle is not None and self.loop.time() - self._asked > _HALF_CLOSE_SECONDS
        if self.waits_for_a_request or self.scope["http_version"] != "1.1" or (self.cycle.response_started and is_late):
            return None
        self._end_behind_the_answer()
        self._send_probe(_PROBE_SECONDS[0])
        return True

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        if self._probe is not None:
            self._probe.cancel()
        super().connection_lost(exc)

    def _end_behind_the_answer(self) -> None:
        self.cycle.keep_alive = False
        if not self.cycle.response_started:
            self.headers.append(_CLOSE)  # which uvicorn looks up in the request

    def _send_probe(self, seconds: float) -> None:
        """Writes what clients skip: 100 Continue. Where nobody reads, a later write fails, and the answer is given up.
        An answer that has begun is such a write itself."""
        if self.transport.is_closing() or self.cycle.response_started:
            return
        self.transport.write(
            self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue")) or b""
        )
        self._probe = self.loop.call_later(seconds, self._send_probe, _PROBE_SECONDS[1])

    def _look_again(self) -> None:
        self._next_look = self.loop.call_later(SECONDS_PER_REQUEST / 4, self._look)

    def _look(self) -> None:
        if not (self.waits_for_a_request or self.flow.write_paused or self.transport.is_closing()):
            self._since = self.loop.time()  # it is being answered
        if self.loop.time() - self._since > SECONDS_PER_REQUEST:
            self.transport.abort()
        else:
            self._look_again()


def bounded_server(
    app: Any,
    most_connections: int = MOST_CONNECTIONS,
    grace: int = 1,
    *,
    overloaded: Any = BoundedConnection.overloaded,
    pipelines: bool = True,
) -> uvicorn.Server:
    """The server of an application, which says nothing of itself and bounds what clients may hold. grace: seconds for
    answers that are being given when it ends. overloaded, pipelines: as BoundedConnection has them."""
    kind = {"most": most_connections, "overloaded": staticmethod(overloaded), "pipelines": pipelines}
    connection = type("BoundedConnection", (BoundedConnection,), kind)
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
