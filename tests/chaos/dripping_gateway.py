"""A trustless gateway to the folders of all parties that drips, breaks off, redirects and sends other bytes."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from tiebreak.store import FolderStore
from tiebreak.store.dagpb import Cid
from tiebreak.store.store_errors import InvalidCid, StoreError

from tests.chaos.faulty_node import ServerOfThreads


class Flaw(StrEnum):
    """The ways in which an answer of the gateway is wrong."""

    BUSY = "busy"
    ABSENT = "absent for a moment"
    AWAY = "redirected"
    DRIPPED_HEAD = "dripped head"
    DRIPPED_BODY = "dripped body"
    INTERIM = "interim answers"
    CUT = "cut off"
    BENT = "other bytes"
    LONGER = "longer than asked for"


_PAUSE = 0.05
_LONGEST_DRIP = 6.0


class DrippingGateway:
    """Serves the blocks in the folders below `folders` under `url(NAME)`, until `close`. `rate`: share of the answers
    with a flaw."""

    def __init__(self, folders: Path, seed: int) -> None:
        self.folders, self.rate = folders, 0.0
        self.flaws: Counter[str] = Counter()
        self._draw = random.Random(f"gateway of {seed}")
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"gateway": self})
        self._server = ServerOfThreads(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def block(self, address: str) -> bytes | None:
        """A block of one of the folders."""
        for folder in sorted(self.folders.iterdir()):
            with suppress(StoreError, InvalidCid):
                return FolderStore(folder).block(Cid.parse(address))
        return None

    def drawn(self) -> Flaw | None:
        with self._lock:
            if self._draw.random() >= self.rate:
                return None
            flaw = self._draw.choice(list(Flaw))
            self.flaws[flaw.value] += 1
            return flaw


class _Handler(BaseHTTPRequestHandler):
    gateway: DrippingGateway
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60.0

    def do_GET(self) -> None:
        block = self.gateway.block(urlsplit(self.path).path.removeprefix("/ipfs/"))
        flaw = self.gateway.drawn()
        if block is None or flaw is Flaw.ABSENT:
            return self._send(404, b"")
        if flaw is Flaw.BUSY:
            return self._send(503, b"")
        if flaw is Flaw.AWAY:
            return self._send(302, b"", "Location: http://127.0.0.1:1/\r\n")
        asked = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", ""))
        part = block if asked is None else block[int(asked[1]) : int(asked[2]) + 1]
        if flaw is Flaw.BENT:
            part = part[:-1] + bytes([part[-1] ^ 1]) if part else b"?"
        if flaw is Flaw.LONGER:
            part += b"?" * 100
        return self._send(200 if asked is None else 206, part, flaw=flaw)

    do_HEAD = do_GET

    def _send(self, status: int, body: bytes, more: str = "", flaw: Flaw | None = None) -> None:
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode()
        body = b"" if self.command == "HEAD" else body
        match flaw:
            case Flaw.DRIPPED_HEAD:
                self._drip(head)
                self.wfile.write(body)
            case Flaw.DRIPPED_BODY:
                self.wfile.write(head)
                self._drip(body)
            case Flaw.INTERIM:
                self._drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 40)
                self.wfile.write(head + body)
            case Flaw.CUT:
                self.wfile.write(head + body[: len(body) // 2])
                self.close_connection = True
            case _:
                self.wfile.write(head + body)

    def _drip(self, content: bytes) -> None:
        """Send so slowly that it takes some seconds, however much it is."""
        began, piece = time.monotonic(), max(1, len(content) * 2 // int(_LONGEST_DRIP / _PAUSE))
        for start in range(0, len(content), piece):
            self.wfile.write(content[start : start + piece])
            if time.monotonic() - began < _LONGEST_DRIP:
                time.sleep(_PAUSE)

    def log_message(self, format: str, *args: object) -> None:
        pass
