"""A content store behind Kubo's HTTP RPC.

The daemon is not trusted with content: whatever is fetched comes block by block and goes through the same
checks as the embedded store's, and what is added must come back under the CID that was computed here. It is
trusted to keep what it says it has pinned.

Source: https://docs.ipfs.tech/reference/kubo/rpc/
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import requests
import urllib3

from tiebreak.deadlines import Halted, TooLate, pause
from tiebreak.deadlines import within as in_time
from tiebreak.store.builder import build_directory, build_file, open_regular
from tiebreak.store.cid import Cid
from tiebreak.store.dagpb import MAX_BLOCK
from tiebreak.store.errors import ContentMissing, CorruptBlock, StoreError, StoreUnavailable
from tiebreak.store.reader import Fetch, limited, read_file, verified, write_directory, write_file

# Its patched copy of requests passes an argument that urllib3 deprecates, for address families we do not
# need.
os.environ.setdefault("PY_IPFS_HTTP_CLIENT_PATCH_REQUESTS", "no")
import ipfshttpclient
import ipfshttpclient.exceptions as ipfs_errors

T = TypeVar("T")

_RETRIED = (
    ipfs_errors.ConnectionError,
    ipfs_errors.TimeoutError,
    ipfs_errors.ProtocolError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
)
_UPLOAD_RATE = 64 * 1024  # bytes a second at least
_PIN_TIMEOUTS = 10
_MISSING = re.compile(r"not found|could not find|no such|not pinned|deadline exceeded", re.IGNORECASE)


class KuboStore:
    """A `ContentStore` in a Kubo daemon (tested with 0.22).

    `address`: the daemon's RPC address, a URL (``http://127.0.0.1:5001``) or a multiaddr
    (``/ip4/127.0.0.1/tcp/5001``). `timeout`: seconds that one attempt at a request may take in all; an upload
    gets one more for every `_UPLOAD_RATE` bytes. `attempts`: how often a request is tried when the network fails, or
    when a block comes damaged, with growing pauses. `stop`: ends every request at once. Raises StoreUnavailable for an
    address of another form; a daemon that is not there is noticed at the first request.
    """

    def __init__(
        self, address: str, *, timeout: float = 60.0, attempts: int = 4, stop: threading.Event | None = None
    ) -> None:
        self._address = address
        self._stop = stop
        self._attempts = attempts
        # Client, not connect(): connect() refuses every daemon newer than 0.7 although this part of the RPC
        # is unchanged.
        try:
            multiaddr, self._url = _both_forms(address)
            self._client: Any = ipfshttpclient.Client(multiaddr, timeout=timeout)
        except (ipfs_errors.AddressError, ValueError) as error:
            raise StoreUnavailable(
                f"{address!r} is not the address of a Kubo RPC: use the form http://127.0.0.1:5001."
            ) from error
        self._timeout = timeout

    def add_bytes(self, data: bytes) -> str:
        expected = build_file(io.BytesIO(data), _discard).cid
        return self._added(expected, lambda: self._add(io.BytesIO(data)), len(data))

    def add_file(self, path: Path) -> str:
        with open_regular(path) as stream:
            expected = build_file(stream, _discard).cid

            def upload() -> Any:
                stream.seek(0)
                return self._add(stream)

            return self._added(expected, upload, path.stat().st_size)

    def add_directory(self, path: Path) -> str:
        root = build_directory(path, _discard)
        return self._added(root.cid, lambda: self._add(path), root.total_size)

    def address_of_file(self, path: Path) -> str:
        with open_regular(path) as stream:
            return str(build_file(stream, _discard).cid)

    def address_of_directory(self, path: Path) -> str:
        return str(build_directory(path, _discard).cid)

    def read(self, cid: str, *, max_bytes: int, within: float | None = None) -> bytes:
        return b"".join(read_file(self._fetching(cid, within), Cid.parse(cid), max_bytes))

    def get_file(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        write_file(self._fetching(cid, within), Cid.parse(cid), dest, max_bytes)

    def get_directory(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        write_directory(self._fetching(cid, within), Cid.parse(cid), dest, max_bytes)

    def pin(self, cid: str) -> None:
        root = str(Cid.parse(cid))
        # A daemon fetches what it does not have yet, and says nothing meanwhile.
        self._call(f"pin {root}", lambda: self._client.pin.add(root), _PIN_TIMEOUTS * self._timeout)

    def unpin(self, cid: str) -> None:
        root = str(Cid.parse(cid))
        with contextlib.suppress(ContentMissing):  # Kubo's answer when there is no pin to withdraw
            self._call(f"unpin {root}", lambda: self._client.pin.rm(root))

    def has(self, cid: str) -> bool:
        root = Cid.parse(cid)
        try:
            self._call(f"look up {root}", lambda: self._client.block.stat(str(root), offline=True))
        except ContentMissing:
            return False
        return True

    def _add(self, source: object) -> Any:
        # Everything that decides the CID is said, so that a daemon with other defaults gives the same one.
        return self._client.add(
            source,
            recursive=True,
            pin=True,
            chunker="size-262144",
            raw_leaves=False,
            cid_version=0,
            opts={"hash": "sha2-256", "progress": False},
        )

    def _added(self, expected: Cid, upload: Callable[[], Any], size: int) -> str:
        answer = self._call(f"add {expected}", upload, self._timeout + size / _UPLOAD_RATE)
        # The last entry of a directory's answer is its root.
        last = answer[-1] if isinstance(answer, list) and answer else answer
        try:
            received = last["Hash"]
        except (KeyError, TypeError) as error:
            raise self._foreign() from error
        if received != str(expected):
            raise CorruptBlock(
                f"Kubo at {self._address} stored {received} where {expected} was sent: do not change files "
                "while they "
                "are added, or use another daemon."
            )
        return str(expected)

    def _fetching(self, cid: str, within: float | None) -> Fetch:
        return limited(self._fetch, cid, within, self._stop)

    def _fetch(self, cid: Cid) -> bytes:
        def fetch() -> bytes:
            ends = time.monotonic() + self._timeout
            # Not through the client library: it reads an answer to its end, however long that is.
            with requests.post(
                f"{self._url}/api/v0/block/get",
                # The daemon gives up before we do, so that absent content is told from an absent daemon.
                params={"arg": str(cid), "timeout": f"{int(900 * self._timeout)}ms"},
                headers={"Accept-Encoding": "identity"},
                stream=True,
                timeout=self._timeout,
            ) as answer:
                body = bytearray()
                # In pieces, so that this thread ends when nobody waits for it any more.
                while len(body) <= MAX_BLOCK and (piece := answer.raw.read1(1 << 16, decode_content=False)):
                    body += piece
                    if time.monotonic() > ends:
                        raise requests.Timeout("a slow answer")
            if answer.status_code != 200:
                raise ipfs_errors.ErrorResponse(_message(bytes(body)), None)
            return verified(cid, bytes(body), f"Kubo at {self._address}")

        return self._call(f"fetch {cid}", fetch)

    def _call(self, what: str, request: Callable[[], T], seconds: float | None = None) -> T:
        """The daemon's answer to a request, which is repeated if need be. `seconds`: for each attempt."""
        try:
            for attempt in itertools.count(1):
                try:
                    return in_time(self._timeout if seconds is None else seconds, self._stop, request)
                except (*_RETRIED, TooLate, CorruptBlock):
                    if attempt >= self._attempts:
                        raise
                pause(min(5.0, 0.1 * 2 ** (attempt - 1)) * (1 + random.random()), self._stop)
        except Halted as error:
            raise StoreUnavailable(
                f"stopped while Kubo at {self._address} was asked to {what}: run the same command again to carry on."
            ) from error
        except ipfs_errors.ErrorResponse as error:
            if _MISSING.search(str(error)):
                raise ContentMissing(
                    f"Kubo at {self._address} could not {what} ({_short(error)}): make sure that somebody pins it."
                ) from error
            raise StoreError(
                f"Kubo at {self._address} refused to {what} ({_short(error)}): see the daemon's log."
            ) from error
        except (
            TooLate,
            ipfs_errors.ConnectionError,
            ipfs_errors.TimeoutError,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
        ) as error:
            raise StoreUnavailable(
                f"no answer from Kubo at {self._address} to {what}: start it with `ipfs daemon`, or check the address."
            ) from error
        except (ipfs_errors.Error, AssertionError, TypeError, AttributeError) as error:
            # The client library asserts and indexes its way through answers, so a foreign server shows in
            # many ways.
            raise self._foreign() from error
        raise AssertionError("an endless loop has ended")

    def _foreign(self) -> StoreUnavailable:
        return StoreUnavailable(f"the server at {self._address} does not answer like Kubo's RPC: check the address.")


def _both_forms(address: str) -> tuple[str, str]:
    """The address of an RPC as Kubo's multiaddr and as a URL, from either. Raises ValueError."""
    if address.startswith("/"):
        parts = address.strip("/").split("/")
        kind, host, tcp, port, *scheme = parts
        if kind not in ("ip4", "ip6", "dns", "dns4", "dns6") or tcp != "tcp" or scheme not in ([], ["http"], ["https"]):
            raise ValueError(address)
        address = f"{scheme[0] if scheme else 'http'}://{f'[{host}]' if kind == 'ip6' else host}:{port}"
    url = urllib.parse.urlsplit(address)
    if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/") or url.query:
        raise ValueError(address)
    port_number = url.port or (443 if url.scheme == "https" else 5001)
    if ":" in url.hostname:
        kind, shown = "ip6", f"[{url.hostname}]"
    else:
        kind, shown = "ip4" if re.fullmatch(r"[0-9.]+", url.hostname) else "dns", url.hostname
    return f"/{kind}/{url.hostname}/tcp/{port_number}/{url.scheme}", f"{url.scheme}://{shown}:{port_number}"


def _message(body: bytes) -> str:
    """The message in an error answer of the RPC."""
    try:
        return str(json.loads(body)["Message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "an error without explanation"


def _discard(_cid: Cid, _block: bytes) -> None:
    """Sink of a build that only computes the CID."""


def _short(error: Exception) -> str:
    # Without the control characters with which a stranger's text could rewrite a terminal.
    text = " ".join("".join(character if character.isprintable() else " " for character in str(error)).split())
    return text if len(text) <= 200 else text[:197] + "..."
