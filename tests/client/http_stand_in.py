"""An HTTP server of a test, for every method, whose answers the test makes."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tiebreak.store.dagpb import Cid
from tiebreak.store.store import Store
from tiebreak.store.store_errors import StoreError


class Request(BaseHTTPRequestHandler):
    """One request: `command`, `path`, `headers`, and `body` once it is read."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    answer: Callable[[Request], None]
    body = b""

    def _any(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = b""
            while size := int(self.rfile.readline(), 16):
                self.body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with suppress(OSError):  # the client has gone
            type(self).answer(self)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT = _any

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answers with a whole body."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def free_port() -> int:
    """A TCP port on which nobody listens: connections are refused until a test serves there."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def endless_body() -> tuple[list[int], Callable[[Request], None]]:
    """The bytes that were sent so far, in a list of one, and an answer whose body ends after a GiB."""
    sent = [0]

    def answer(request: Request) -> None:
        request.send_response(200)
        request.send_header("Connection", "close")
        request.end_headers()
        while sent[0] < 1 << 30:
            request.wfile.write(bytes(1 << 16))
            sent[0] += 1 << 16

    return sent, answer


def giving_blocks(
    store: Store,
    lie: Callable[[bytes], bytes] = lambda block: block,
    *,
    ranges: bool = True,
    sent: list[int] | None = None,
) -> Callable[[Request], None]:
    """Answers of a trustless gateway to a store. lie: makes of a block what is sent. ranges: whether it sends parts of
    blocks (RFC 9110, section 14). sent: gets the size of each answer."""

    def answer(request: Request) -> None:
        address = urlsplit(request.path).path.rpartition("/")[2]
        try:
            block = lie(store.block(Cid.parse(address)))
        except StoreError:
            request.send(404)
            return
        asked = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", request.headers.get("Range", "")) if ranges else None
        if asked is not None:
            block = block[int(asked[1]) : int(asked[2]) + 1]
        if sent is not None:
            sent.append(len(block))
        request.send(200 if asked is None else 206, block)

    return answer


@contextmanager
def serving(answer: Callable[[Request], None], port: int = 0) -> Iterator[str]:
    """The URL of a server that answers as told. port: 0 for any."""
    kind = type("Answering", (Request,), {"answer": staticmethod(answer)})
    httpd = ThreadingHTTPServer(("127.0.0.1", port), kind)
    httpd.daemon_threads = True
    threading.Thread(target=lambda: httpd.serve_forever(poll_interval=0.01), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()
