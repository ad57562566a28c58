"""A content store behind Kubo's HTTP RPC.

The daemon is not trusted with content: whatever is fetched comes block by block and goes through the same checks as the
embedded store's, and every block that is sent must come back under the CID that was computed here. It is trusted to
keep what it says it has pinned, and to say so in few words. Some blocks are sent at a time, and not those that it has.

Source: https://docs.ipfs.tech/reference/kubo/rpc/
"""

from __future__ import annotations

import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import requests
import urllib3

from tiebreak.http_client import Halted, HttpAnswer, TooLate, bound
from tiebreak.store.dagpb import MAX_BLOCK, RAW, Cid
from tiebreak.store.http import HttpServer, NoResponse, base_url, patiently, shown_location
from tiebreak.store.store import Store
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, InvalidCid, StoreError, StoreUnavailable, short
from tiebreak.store.transfers import WIDTH, OnTransfer, untold

# Its patched copy of requests passes an argument that urllib3 deprecates, for address families we do not need.
os.environ.setdefault("PY_IPFS_HTTP_CLIENT_PATCH_REQUESTS", "no")
import ipfshttpclient
import ipfshttpclient.exceptions as ipfs_errors

_WIDTH = 4
"""Blocks on the way at a time: enough to hide the latency of a daemon, and at most 8 MiB of memory."""

_MISSES = 64
"""Blocks in a row that the store does not have, after which it is not asked any more. An addition that was interrupted
is found again at its beginning; what is sent twice does no harm."""


class Upload:
    """An `Addition` to a store over the network. `send`: stores one block. `holds`: whether the store has it. `pin`:
    pins a root. All may raise StoreError; the next call after an error raises it."""

    def __init__(
        self, *, send: Callable[[Cid, bytes], None], holds: Callable[[Cid], bool], pin: Callable[[Cid], None]
    ) -> None:
        self._send, self._holds, self._pin = send, holds, pin
        self._pool = ThreadPoolExecutor(_WIDTH, thread_name_prefix="upload")
        self._free = threading.Semaphore(_WIDTH)
        self._lock = threading.Lock()
        self._misses = 0
        self._taken: set[bytes] = set()
        self._error: BaseException | None = None
        self.sent = 0
        """Blocks that the store did not have."""

    def put(self, cid: Cid, block: bytes) -> None:
        """Takes a block; waits while others are on the way."""
        if cid.digest in self._taken:
            return
        self._taken.add(cid.digest)
        self._free.acquire()
        self._check()
        self._pool.submit(self._one, cid, block).add_done_callback(self._done)

    def finish(self, root: Cid) -> None:
        """Waits until the store has all blocks, and pins the root."""
        self._pool.shutdown(wait=True)
        self._check()
        self._pin(root)

    def _one(self, cid: Cid, block: bytes) -> None:
        if self._error is not None:
            return
        if self._misses < _MISSES:
            known = self._holds(cid)
            with self._lock:
                self._misses = 0 if known else self._misses + 1
            if known:
                return
        self._send(cid, block)
        with self._lock:
            self.sent += 1

    def _done(self, future: Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None and self._error is None:
            self._error = error
        self._free.release()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        # Blocks that wait for their turn are dropped; those on the way end by their own time limits.
        self._pool.shutdown(wait=False, cancel_futures=True)


T = TypeVar("T")

_PIN_TIMEOUTS = 10
_CONNECT_SECONDS = 10.0
_MOST_ANSWER = 1 << 20
"""Bytes of an answer that is no block."""
_MOST_MESSAGE = 4096
"""Bytes that are read of an answer that may be an error, however few were asked for."""

_NO_ANSWER = (
    ipfs_errors.ConnectionError,
    ipfs_errors.TimeoutError,
    ipfs_errors.ProtocolError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
)
_MISSING = re.compile(r"not found|could not find|no such|not pinned|deadline exceeded", re.IGNORECASE)
_CODECS = {RAW: "raw"}


class KuboStore(Store):
    """A `ContentStore` in a Kubo daemon (tested with 0.22).

    `address`: the daemon's RPC address, a URL (``http://127.0.0.1:5001``) or a multiaddr
    (``/ip4/127.0.0.1/tcp/5001``). `timeout`: seconds that one attempt at a request may take in all. `attempts`: how
    often a request is tried when the network fails, or when a block comes damaged, with growing pauses. `stop`: ends
    every request at once. Raises StoreUnavailable for an address of another form; a daemon that is not there is noticed
    at the first request.
    """

    width = WIDTH

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 60.0,
        attempts: int = 4,
        stop: threading.Event | None = None,
        on_transfer: OnTransfer = untold,
    ) -> None:
        super().__init__(f"Kubo at {address}", stop, on_transfer)
        self._address = address
        self._timeout, self._attempts = timeout, attempts
        try:
            url = _url(address)
            # Client, not connect(): connect() refuses every daemon newer than 0.7 although this part of the RPC is
            # unchanged.
            self._client: Any = ipfshttpclient.Client(_multiaddr(url), timeout=timeout, session=True)
            # It reads an answer to its end, however long and slow that is.
            bound(self._client._client._session, _MOST_ANSWER)
            self._server = HttpServer(url)
        except (ipfs_errors.AddressError, ValueError) as error:
            raise StoreUnavailable(
                f"{shown_location(address)!r} is not the address of a Kubo RPC: use the form "
                "http://127.0.0.1:5001, without a user name, a path or a query."
            ) from error

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        # The daemon gives up before we do, so that absent content is told from an absent daemon.
        def fetch(left: float) -> bytes:
            limit = {"arg": str(cid), "timeout": f"{int(900 * left)}ms"}
            answer = self._ask("block/get", limit, left, most=MAX_BLOCK + 1)
            return self.checked(cid, answer.body)

        return self._call(f"fetch {cid}", fetch, seconds=seconds)

    def _part(self, root: Cid, first: int, size: int, seconds: float | None) -> bytes:
        # The daemon finds the way to the bytes; the caller that asks for a part can tell the right ones.
        def fetch(left: float) -> bytes:
            wanted = {"arg": str(root), "offset": str(first), "length": str(size), "timeout": f"{int(900 * left)}ms"}
            answer = self._ask("cat", wanted, left, most=max(size + 1, _MOST_MESSAGE))
            if len(answer.body) != size:
                found = "more" if answer.more else len(answer.body)
                raise CorruptBlock(
                    f"Kubo at {self._address} returned {found} bytes where {size} of {root} were asked for: use "
                    "another daemon."
                )
            return answer.body

        return self._call(f"fetch a part of {root}", fetch, seconds=seconds)

    def pin(self, cid: str) -> None:
        root = str(Cid.parse(cid))
        # A daemon fetches what it does not have yet, and says nothing meanwhile.
        each = _PIN_TIMEOUTS * self._timeout
        limit = {"timeout": f"{int(900 * each)}ms"}
        answer = self._call(
            f"pin {root}",
            lambda left: self._by_client(lambda: self._client.pin.add(root, timeout=left, opts=dict(limit))),
            each=each,
        )
        pins = answer.get("Pins")
        if not isinstance(pins, list) or len(pins) != 1 or not _names(pins[0], Cid.parse(cid)):
            raise self._foreign()

    def unpin(self, cid: str) -> None:
        root = str(Cid.parse(cid))
        with suppress(ContentMissing):  # Kubo's answer when there is no pin to withdraw
            self._call(f"unpin {root}", lambda left: self._by_client(lambda: self._client.pin.rm(root, timeout=left)))

    def has(self, cid: str) -> bool:
        return self._holds(Cid.parse(cid))

    def addresses(self) -> list[str]:
        """The multiaddrs under which other peers may reach this daemon."""
        answer = self._call("say its addresses", lambda left: self._by_client(lambda: self._client.id(timeout=left)))
        found = answer.get("Addresses")
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self._foreign()
        return found

    def connect(self, peers: Sequence[str]) -> None:
        """Has the daemon call other peers, by their multiaddrs. Those that cannot be reached are left alone."""
        for peer in peers:
            with suppress(StoreError):
                limit = {"arg": peer, "timeout": f"{int(900 * _CONNECT_SECONDS)}ms"}
                self._call(f"call {peer}", partial(self._answer, "swarm/connect", limit), seconds=_CONNECT_SECONDS)

    @contextmanager
    def adding(self) -> Iterator[Upload]:
        with Upload(send=self._put, holds=self._holds, pin=lambda root: self.pin(str(root))) as upload:
            yield upload

    def _holds(self, cid: Cid) -> bool:
        limit = {"arg": str(cid), "offline": "true"}
        try:
            answer = self._call(f"look up {cid}", lambda left: self._answer("block/stat", limit, left))
        except ContentMissing:
            return False
        if not _names(answer.get("Key"), cid):
            raise self._foreign()
        return True

    def _put(self, cid: Cid, block: bytes) -> None:
        how = {"cid-codec": _CODECS.get(cid.codec, "dag-pb"), "mhtype": "sha2-256", "allow-big-block": "true"}
        answer = self._call(f"take block {cid}", lambda left: self._answer("block/put", how, left, file=block))
        if not _names(answer.get("Key"), cid):
            raise CorruptBlock(
                f"Kubo at {self._address} did not store block {cid} as that: use another daemon, or check the address."
            )

    def _by_client(self, request: Callable[[], Any]) -> dict[str, Any]:
        """The JSON object that the client library gets. Blocks do not pass through it, which it would hold in memory
        twice."""
        try:
            return dict(request())
        except ipfs_errors.ErrorResponse as error:
            raise _Refusal(str(error)) from error
        except _NO_ANSWER as error:
            raise NoResponse(short(str(error))) from error
        except (ipfs_errors.Error, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The library asserts and indexes its way through answers, so a foreign server shows in many ways.
            raise self._foreign() from error

    def _answer(
        self, command: str, params: dict[str, str], seconds: float, *, file: bytes | None = None
    ) -> dict[str, Any]:
        """The JSON object that a command answers with."""
        answer = self._ask(command, params, seconds, most=_MOST_ANSWER, file=file)
        try:
            found = answer.json()
        except ValueError as error:
            raise self._foreign() from error
        if not isinstance(found, dict):
            raise self._foreign()
        return found

    def _ask(
        self, command: str, params: dict[str, str], seconds: float, *, most: int, file: bytes | None = None
    ) -> HttpAnswer:
        """The answer to one command. Raises _Refusal if it is an error."""
        answer = self._server.ask("POST", f"/api/v0/{command}", params=params, file=file, seconds=seconds, most=most)
        if answer.status != 200:
            raise _Refusal(_message(answer))
        return answer

    def _call(
        self,
        what: str,
        request: Callable[[float], T],
        *,
        each: float | None = None,
        seconds: float | None = None,
    ) -> T:
        """The daemon's answer to a request, which is repeated if need be. `each`: seconds of one attempt; `seconds`: of
        all."""
        try:
            return patiently(
                request, attempts=self._attempts, each=each or self._timeout, seconds=seconds, stop=self.stop
            )
        except Halted as error:
            raise StoreUnavailable(
                f"stopped while Kubo at {self._address} was asked to {what}: run the same command again to carry on."
            ) from error
        except _Refusal as error:
            if _MISSING.search(str(error)):
                raise ContentMissing(
                    f"Kubo at {self._address} could not {what} ({short(str(error))}): make sure that somebody pins it."
                ) from error
            raise StoreError(
                f"Kubo at {self._address} refused to {what} ({short(str(error))}): see the daemon's log."
            ) from error
        except (TooLate, NoResponse) as error:
            raise StoreUnavailable(
                f"no answer from Kubo at {self._address} to {what}: start it with `ipfs daemon`, or check the address."
            ) from error

    def _foreign(self) -> StoreUnavailable:
        return StoreUnavailable(f"the server at {self._address} does not answer like Kubo's RPC: check the address.")


class _Refusal(Exception):
    """An error answer of the daemon."""


def _url(address: str) -> str:
    """The URL of an RPC, from a URL or a multiaddr. Raises ValueError."""
    if address.startswith("/"):
        parts = address.strip("/").split("/")
        kind, host, tcp, port, *scheme = parts
        if kind not in ("ip4", "ip6", "dns", "dns4", "dns6") or tcp != "tcp" or scheme not in ([], ["http"], ["https"]):
            raise ValueError(address)
        address = f"{scheme[0] if scheme else 'http'}://{f'[{host}]' if kind == 'ip6' else host}:{port}"
    url = base_url(address, path=False)
    has_port = re.search(r":[0-9]+$", url) is not None
    return url if has_port or url.startswith("https:") else f"{url}:5001"


def _multiaddr(url: str) -> str:
    """The URL of an RPC as the client library wants it."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    kind = "ip6" if ":" in host else "ip4" if re.fullmatch(r"[0-9.]+", host) else "dns"
    return f"/{kind}/{host}/tcp/{parts.port or 443}/{parts.scheme}"


def _names(text: object, cid: Cid) -> bool:
    """Whether a text of the daemon names this block, in whichever version of an identifier."""
    try:
        named = Cid.parse(text) if isinstance(text, str) else None
    except InvalidCid:
        return False
    return named is not None and (named.codec, named.digest) == (cid.codec, cid.digest)


def _message(answer: HttpAnswer) -> str:
    """The message in an error answer of the RPC."""
    try:
        return str(answer.json()["Message"])
    except (ValueError, KeyError, TypeError):
        return "an error without explanation"
