"""Transports over connections that stay open: WebSocket, and the socket file of a node on this machine (IPC)."""

from __future__ import annotations

import json
import select
import socket
import stat
import threading
import time
from abc import abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

from websockets.exceptions import ConnectionClosed, InvalidMessage, WebSocketException
from websockets.sync.client import ClientConnection, connect

from tiebreak.rpc.chain_errors import ChainUnavailable, InvalidAnswer
from tiebreak.rpc.transport import MAX_ANSWER, RepeatingTransport, Transient
from tiebreak.timed_http import shown_url

C = TypeVar("C")

_MOST_READINGS = 100
"""Times that the beginning of an answer may look like a whole one; nodes end theirs at the first."""

_TOO_BIG = 1009
"""RFC 6455: a message is too big."""


class PooledTransport(RepeatingTransport, Generic[C]):
    """A transport that keeps connections for later requests. Each carries one request at a time, so that an answer
    belongs to the only request that waits; one that fails is closed."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._idle: list[C] = []
        self._lock = threading.Lock()

    @abstractmethod
    def _open(self, seconds: float) -> C:
        """A new connection, within so many seconds. Raises Transient."""

    @abstractmethod
    def _carry(self, connection: C, body: bytes, ends: float) -> bytes:
        """Sends a request and reads its answer. Raises Transient, InvalidAnswer."""

    @abstractmethod
    def _close(self, connection: C) -> None:
        """Closes a connection, whatever its state."""

    def _exchange(self, body: bytes, ends: float) -> bytes:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._open(_left(ends))
        try:
            answer = self._carry(connection, body, ends)
        except BaseException:
            self._close(connection)
            raise
        with self._lock:
            self._idle.append(connection)
        return answer

    def _too_large(self) -> InvalidAnswer:
        return InvalidAnswer(f"{self.name} gave an answer of more than {MAX_ANSWER} bytes: use another node.")


class IpcTransport(PooledTransport[socket.socket]):
    """JSON-RPC over the socket file of a node on this machine: one JSON object after another. `options`: those of
    RepeatingTransport. Raises ChainUnavailable if there is no socket at `path`, unless it `may_be_away` at first."""

    def __init__(self, path: Path, *, may_be_away: bool = False, **options: Any) -> None:
        try:
            is_socket = stat.S_ISSOCK(path.stat().st_mode)
        except OSError as error:
            if not (may_be_away and isinstance(error, FileNotFoundError)):
                raise ChainUnavailable(
                    f"there is no node's socket at {path} ({error.strerror}): check the path."
                ) from error
            is_socket = True
        if not is_socket:
            raise ChainUnavailable(f"{path} is not a node's socket: check the path.")
        super().__init__(str(path), **options)
        self._path = path

    def _open(self, seconds: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(seconds)
        try:
            connection.connect(str(self._path))
        except OSError as error:
            connection.close()
            raise Transient(error.strerror or type(error).__name__) from error
        return connection

    def _carry(self, connection: socket.socket, body: bytes, ends: float) -> bytes:
        raw, readings = bytearray(), 0
        if _has_more(connection):
            raise Transient("the connection has ended, or holds the rest of another answer")
        try:
            connection.settimeout(_left(ends))
            connection.sendall(body + b"\n")
            while len(raw) <= MAX_ANSWER:
                connection.settimeout(_left(ends))
                piece = connection.recv(1 << 16)
                if not piece:
                    raise Transient("the connection broke off")
                raw += piece
                # Some nodes end an answer with a line's end and some do not: only JSON tells whether it is whole.
                if piece.rstrip().endswith((b"}", b"]")) and not _has_more(connection):
                    readings += 1
                    if _is_whole(raw):
                        return bytes(raw)
                    if readings > _MOST_READINGS:
                        raise Transient("an answer in crumbs")
        except OSError as error:
            raise Transient(error.strerror or type(error).__name__) from error
        raise self._too_large()

    def _close(self, connection: socket.socket) -> None:
        connection.close()


class WebSocketTransport(PooledTransport[ClientConnection]):
    """JSON-RPC over WebSocket (RFC 6455). `options`: those of RepeatingTransport. Raises ChainUnavailable if `url` is
    not a ws(s) URL."""

    def __init__(self, url: str, **options: Any) -> None:
        name = shown_url(url, ("ws", "wss"))
        if name is None:
            raise ChainUnavailable("the chain's address is not a ws(s) URL: use the form ws://127.0.0.1:8546.")
        super().__init__(name, **options)
        self._url = url

    def _open(self, seconds: float) -> ClientConnection:
        try:
            manager = connect(
                self._url,
                open_timeout=seconds,
                close_timeout=1.0,
                max_size=MAX_ANSWER,
                compression=None,
                proxy=None,
                ping_interval=None,
            )
            # Entered and never left: the connection outlives this call, and `_close` ends it.
            return manager.__enter__()
        except (WebSocketException, InvalidMessage, OSError, ValueError) as error:
            # Their texts may have the URL, and the key in it.
            raise Transient(type(error).__name__) from error

    def _carry(self, connection: ClientConnection, body: bytes, ends: float) -> bytes:
        try:
            connection.send(body.decode())
            answer = connection.recv(timeout=_left(ends))
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == _TOO_BIG:
                raise self._too_large() from error
            raise Transient("the connection broke off") from error
        except (WebSocketException, OSError) as error:
            raise Transient(type(error).__name__) from error
        return answer.encode() if isinstance(answer, str) else answer

    def _close(self, connection: ClientConnection) -> None:
        connection.close()


def _left(ends: float) -> float:
    return max(0.01, ends - time.monotonic())


def _has_more(connection: socket.socket) -> bool:
    """Whether there is something to read at once: bytes, or the connection's end."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _is_whole(raw: bytearray) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True
