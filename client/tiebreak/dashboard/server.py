"""The server of a site: uvicorn on the loopback interface, in this thread or beside it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tiebreak.dashboard.site import Site
from tiebreak.dashboard.web import make_app

_START_SECONDS = 20.0

_SECONDS_PER_REQUEST = 10.0
"""Time in which a client has to send a request, and to take what it gets."""

_MOST_CONNECTIONS = 128
"""Connections at the same time; more are answered with 503."""


class ServerError(Exception):
    """The page cannot be served at this address; the message is one sentence."""


def listen(host: str, port: int) -> socket.socket:
    """A socket on the loopback interface. `port` 0: any free one. Raises ServerError for any other interface, or a
    port that is taken."""
    try:
        where = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ServerError(f"{host!r} is not an address of this machine alone: use 127.0.0.1.") from None
    if not where.is_loopback:
        raise ServerError(
            f"{where} can be reached from other machines, and the page has no password: use 127.0.0.1, and a tunnel "
            "(ssh -L) from elsewhere."
        )
    family = socket.AF_INET6 if where.version == 6 else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((str(where), port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise ServerError(
            f"port {port} of {where} cannot be used ({error.strerror}): choose another with --port, or 0 for any."
        ) from error
    return found


class BoundedConnection(H11Protocol):
    """A client's connection, which is cut off where no request comes in time, or no answer is taken: uvicorn waits for
    both for ever. Where there are too many connections, the oldest that waits for a request ends at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._look_again()
        if len(self.connections) >= _MOST_CONNECTIONS:
            # Of others than this one, which may just be sending.
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
        self._next_look = self.loop.call_later(_SECONDS_PER_REQUEST / 4, self._look)

    def _look(self) -> None:
        if not (self.waits_for_a_request or self.flow.write_paused or self.transport.is_closing()):
            self._since = self.loop.time()  # it is being answered
        if self.loop.time() - self._since > _SECONDS_PER_REQUEST:
            self.transport.abort()
        else:
            self._look_again()


class Server:
    """A site on a socket. Used in a `with` block, it serves beside; `run` serves in this thread, until a signal."""

    def __init__(self, site: Site, listening: socket.socket) -> None:
        self._site = site
        self._socket = listening
        config = uvicorn.Config(
            make_app(site),
            lifespan="off",
            http=BoundedConnection,
            ws="none",
            access_log=False,
            log_config=None,
            log_level="critical",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=16 * 1024,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def run(self) -> None:
        """Serves until SIGINT or SIGTERM."""
        self._site.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._site.close()

    def __enter__(self) -> Server:
        self._site.start()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="dashboard", daemon=True
        )
        self._thread.start()
        ends = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > ends:
                raise ServerError("the page's server did not start: choose another port with --port.")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10)
        self._site.close()
