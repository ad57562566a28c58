"""Clients of an HTTP server on this machine that say nothing, little, or something hostile."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

HOSTILE_HOSTS = (
    *("evil.com", "evil.com:localhost", "evil.com#@localhost", "localhost.evil.com", "127.0.0.1.evil.com"),
    *("localhost:80@evil.com", "127.0.0.1@evil.com", "user@localhost", "[::1]@evil.com"),
    *("localhost:80#evil.com", "localhost:80/evil.com", "localhost:80?evil.com", "localhost\\evil.com"),
    *("localhost, evil.com", "localhost evil.com", "localhost:evil.com", "localhost:80:80", "localhost:-1"),
    *("localhost:\u0661".encode().decode("latin-1"), "%6cocalhost", "localhost.", "127.0.0.1.", "", ":80"),
    *("127.0.0.256", "127.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.01", "0.0.0.0", "128.0.0.1"),
    *("::1", "[::1", "[::1%25lo]", "[::ffff:8.8.8.8]", "[127.0.0.1]"),
)
"""Host headers that do not name this machine, or are no Host headers."""

LOCAL_HOSTS = (
    *("localhost", "LocalHost:80", "localhost:", "127.0.0.1", "127.0.0.1:65535", "127.0.0.2:80", "[::1]:80", "[::1]"),
)


def status(url: str, *hosts: str, method: str = "GET", more: str = "", body: str = "") -> int:
    """Status of the answer to a request with these Host headers."""
    with connected(url) as client:
        lines = "".join(f"Host: {host}\r\n" for host in hosts) + more
        client.sendall(f"{method} {urlsplit(url).path or '/'} HTTP/1.1\r\n{lines}\r\n{body}".encode("latin-1"))
        return int(client.makefile("rb").readline().split()[1])


def connected(url: str) -> socket.socket:
    """A connection to the server of a URL, on which nothing was sent."""
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None
    return socket.create_connection((address.hostname, address.port), timeout=20)


def silent(url: str, count: int) -> ExitStack:
    """So many connections on which nothing is sent, open until the stack is closed."""
    stack = ExitStack()
    for _ in range(count):
        stack.enter_context(connected(url))
    return stack


def seconds_until_cut_off(url: str, begin: bytes, drop: bytes, *, most: float = 8.0) -> float:
    """Time until a server ends the connection of a client that sends `begin`, then `drop` five times a second, and
    reads nothing; `most` if it does not."""
    started = time.monotonic()
    with connected(url) as client:
        client.settimeout(0.2)
        missing = begin
        while time.monotonic() - started < most:
            try:
                missing = missing[client.send(missing) :] if missing else missing
                if not missing:
                    time.sleep(0.2)
                    missing = drop
                    # Of a client that has sent nothing, only the end of the connection tells.
                    if not drop and client.recv(1) == b"":
                        break
            except TimeoutError:
                continue
            except OSError:
                break
    return time.monotonic() - started
