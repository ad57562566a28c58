"""HTTP servers of this machine's own programs: which names they answer to, how long they wait, for how many at a time.

A client that says nothing, or a byte a second, costs a connection and a thread. Were these not bounded, it could take
all files that a role may open, and with them its journal.
"""

from __future__ import annotations

import ipaddress
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, ClassVar

_HOST = re.compile(r"(?P<name>localhost|\[::1\]|[0-9.]+)(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE)

_MOST_WAITING = 64
_CLOSES_WITHIN = 0.05  # seconds


def names_this_machine(hosts: Sequence[str]) -> bool:
    """Whether a request's Host headers are one, of the form of RFC 9110, that names the loopback interface. A web page
    whose own name was made to point here (DNS rebinding) sends that name."""
    found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if found is None:
        return False
    try:
        return not found["name"][0].isdigit() or ipaddress.IPv4Address(found["name"]).is_loopback
    except ValueError:
        return False


class LoopbackServer(ThreadingHTTPServer):
    """Serves at 127.0.0.1:`port` (0: any free port), a thread for each connection. Raises OSError where the port cannot
    be had.

    A connection on which no whole request has come `handler.timeout` seconds after it was opened, or after the last
    answer, is closed; of more than 64 that wait for one, the oldest."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, handler: type[LoopbackHandler]) -> None:
        self._seconds = handler.timeout
        self._lock = threading.Lock()
        self._waiting: dict[socket, float] = {}
        """Connections without a whole request -> when each is closed."""
        super().__init__(("127.0.0.1", port), handler)

    def start(self, name: str) -> None:
        """Serves in a thread of this name, until `close`."""
        self._thread = threading.Thread(target=self.serve_forever, args=(_CLOSES_WITHIN,), name=name, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.waits(request)
        super().process_request(request, client_address)

    def waits(self, connection: socket) -> None:
        """Gives a connection its time for a request."""
        with self._lock:
            self._waiting[connection] = time.monotonic() + self._seconds
            while len(self._waiting) > _MOST_WAITING:
                self._end(next(iter(self._waiting)))

    def has_request(self, connection: socket) -> None:
        """Takes note that a connection's request is there, or that it is closed."""
        with self._lock:
            self._waiting.pop(connection, None)

    def service_actions(self) -> None:
        """Closes the connections whose time is over. Called several times a second."""
        now = time.monotonic()
        with self._lock:
            for connection in [one for one, end in self._waiting.items() if end < now]:
                self._end(connection)

    def shutdown_request(self, request: Any) -> None:
        self.has_request(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed, or tired of waiting, is no error of ours: nothing is printed for it."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _end(self, connection: socket) -> None:
        del self._waiting[connection]
        with suppress(OSError):
            connection.shutdown(SHUT_RDWR)  # its thread finds the end of it, and closes it


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection. `timeout`: seconds for each to be there as a whole; of what one sends
    after its headers, the handler says by `has_request` when it has read it."""

    timeout: ClassVar[float] = 10.0
    server: LoopbackServer

    def handle_one_request(self) -> None:
        self.server.waits(self.connection)
        super().handle_one_request()

    def has_request(self) -> None:
        """Ends the time that the request has."""
        self.server.has_request(self.connection)

    def is_for_this_machine(self) -> bool:
        """Whether the request names this machine as its host."""
        return names_this_machine(self.headers.get_all("Host", []))

    def log_message(self, format: str, *args: object) -> None:
        """Silent: who asks is nobody's business, and standard error has the process's own errors."""
