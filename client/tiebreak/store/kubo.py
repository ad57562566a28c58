"""A content store behind Kubo's HTTP RPC.

The daemon is not trusted with content: whatever is fetched comes block by block and goes through the same checks as the
embedded store's, and every block that is sent must come back under the CID that was computed here. It is trusted to
keep what it says it has pinned, and to say so in few words. Some blocks are sent at a time, and not those that it has.

Source: https://docs.ipfs.tech/reference/kubo/rpc/
"""

from __future__ import annotations

import io
import os
import re
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import requests
import urllib3

from tiebreak.http_client import NoResponse, bound
from tiebreak.rpc.chain_errors import printable
from tiebreak.store.dagpb import MAX_BLOCK, RAW, Cid
from tiebreak.store.http import WIDTH, Retries, base_url, shown_location
from tiebreak.store.store import Build, Store
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, InvalidCid, StoreError, StoreUnavailable

# Its patched copy of requests passes an argument that urllib3 deprecates, for address families we do not need.
os.environ.setdefault("PY_IPFS_HTTP_CLIENT_PATCH_REQUESTS", "no")
import ipfshttpclient
import ipfshttpclient.exceptions as ipfs_errors

_PIN_TIMEOUTS = 10
"""A daemon fetches what it is to pin, and says nothing meanwhile: so many times longer may that take."""
_MOST_ANSWER = MAX_BLOCK + (1 << 16)
"""Bytes of an answer, with its head."""

_RPC, _FORM = "a Kubo RPC", "http://127.0.0.1:5001, without a user name, a path or a query"
_NO_ANSWER = (
    ipfs_errors.ConnectionError,
    ipfs_errors.TimeoutError,
    ipfs_errors.ProtocolError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
)
# The library asserts and indexes its way through answers, so a foreign server shows in many ways.
_FOREIGN = (ipfs_errors.Error, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_MISSING = re.compile(r"not found|could not find|no such|not pinned|deadline exceeded", re.IGNORECASE)


class KuboStore(Store):
    """A `Store` in a Kubo daemon (tested with 0.22).

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
    ) -> None:
        super().__init__(f"Kubo at {address}", stop)
        self.retries = Retries(
            name=self.name,
            remedy="start it with `ipfs daemon`, or check the address",
            timeout=timeout,
            attempts=attempts,
            stop=stop,
        )
        where = _multiaddr(address)
        try:
            # Client, not connect(): connect() refuses every daemon newer than 0.7 although this part of the RPC is
            # unchanged.
            self._client: Any = ipfshttpclient.Client(where, session=True, chunk_size=MAX_BLOCK)
        except (ipfs_errors.AddressError, ValueError) as error:
            raise StoreUnavailable(
                f"{shown_location(address)!r} is not the address of {_RPC}: use the form {_FORM}."
            ) from error
        session = self._client._client._session
        session.trust_env = False
        session.headers["Accept-Encoding"] = "identity"
        session.hooks["response"].append(_require_plain)
        # The library reads an answer to its end, however long and slow that is.
        bound(session, _MOST_ANSWER)

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        check = partial(self.checked, cid)
        found: bytes = self._ask(
            f"fetch {cid}", self._client.block.get, str(cid), check=check, seconds=seconds, gives_up=True
        )
        return found

    def add_blocks(self, build: Build) -> Cid:
        pool = ThreadPoolExecutor(WIDTH, thread_name_prefix="upload")
        waiting: deque[Future[None]] = deque()
        taken: set[bytes] = set()

        def put(cid: Cid, block: bytes) -> None:
            if cid.digest in taken:
                return
            taken.add(cid.digest)
            if len(waiting) == WIDTH:
                waiting.popleft().result()
            waiting.append(pool.submit(self._put, cid, block))

        try:
            root = build(put)
            for future in waiting:
                future.result()
        finally:
            # Blocks that wait for their turn are dropped; those on the way end by their own time limits.
            pool.shutdown(wait=False, cancel_futures=True)
        self.pin(str(root))
        return root

    def pin(self, cid: str) -> None:
        root = Cid.parse(cid)
        slow = replace(self.retries, timeout=_PIN_TIMEOUTS * self.retries.timeout)
        pinned = self._ask(f"pin {root}", self._client.pin.add, str(root), field="Pins", gives_up=True, retries=slow)
        if not isinstance(pinned, list) or len(pinned) != 1 or not _names(pinned[0], root):
            raise self.foreign()

    def unpin(self, cid: str) -> None:
        root = str(Cid.parse(cid))
        with suppress(ContentMissing):  # Kubo's answer when there is no pin to withdraw
            self._ask(f"unpin {root}", self._client.pin.rm, root)

    def has(self, cid: str) -> bool:
        root = Cid.parse(cid)
        try:
            key = self._ask(f"look up {root}", self._client.block.stat, str(root), field="Key", offline=True)
        except ContentMissing:
            return False
        if not _names(key, root):
            raise self.foreign()
        return True

    def remote_pins(self, what: str, command: str, options: Mapping[str, str | Sequence[str]]) -> bytes:
        """Return the answer to a command of ``ipfs pin remote``, which the client library does not know. what: as of
        `Retries.run`. Raises StoreError."""
        request = partial(self._client._client.request, f"/pin/remote/{command}")
        found = self._ask(what, request, options=options, gives_up=True)
        if not isinstance(found, bytes):
            raise self.foreign()
        return found

    def _put(self, cid: Cid, block: bytes) -> None:
        if self.has(str(cid)):
            return
        how = {"cid-codec": "raw" if cid.codec == RAW else "dag-pb", "mhtype": "sha2-256", "allow-big-block": "true"}

        def put(**arguments: Any) -> Any:
            return self._client.block.put(io.BytesIO(block), **{**arguments, "opts": how})

        if not _names(self._ask(f"take block {cid}", put, field="Key"), cid):
            raise CorruptBlock(
                f"{self.name} did not store block {cid} as that: use another daemon, or check the address."
            )

    def _ask(
        self,
        what: str,
        command: Callable[..., Any],
        *args: object,
        field: str | None = None,
        check: Callable[[Any], Any] = lambda found: found,
        seconds: float | None = None,
        retries: Retries | None = None,
        gives_up: bool = False,
        options: Mapping[str, str | Sequence[str]] = MappingProxyType({}),
        **arguments: object,
    ) -> Any:
        """Return the answer to a command of the library, or a field of it.

        `what`, `seconds`: as of `Retries.run`. `options`: of the command. `check`: returns a right answer, and raises
        CorruptBlock for one to be fetched again. `gives_up`: whether the daemon is to give up before we do, so that
        absent content is told from an absent daemon. Raises StoreError."""

        def once(left: float) -> Any:
            limit = {"timeout": f"{int(900 * left)}ms"} if gives_up else {}
            try:
                found = command(*args, timeout=left, opts={**options, **limit}, **arguments)
                return check(found if field is None else found[field])
            except ipfs_errors.StatusError as error:
                is_told = isinstance(error, ipfs_errors.ErrorResponse)
                told = printable(str(error), 200) if is_told else "without an explanation"
                if _MISSING.search(told):
                    raise ContentMissing(
                        f"{self.name} could not {what} ({told}): make sure that somebody pins it."
                    ) from error
                raise StoreError(f"{self.name} refused to {what} ({told}): see the daemon's log.") from error
            except _NO_ANSWER as error:
                raise NoResponse("no whole answer") from error
            except _FOREIGN as error:
                raise self.foreign() from error

        return (retries or self.retries).run(what, once, seconds)

    def foreign(self) -> StoreUnavailable:
        """Return the error for an answer that is not one of Kubo's."""
        return StoreUnavailable(f"{self.name} does not answer like Kubo's RPC: check the address.")


def _require_plain(answer: requests.Response, **_: object) -> None:
    """Raise ValueError for an answer that redirects, or that would be unpacked: Kubo's RPC does neither."""
    if answer.is_redirect or "Content-Encoding" in answer.headers:
        raise ValueError("a redirect, or a packed body")


def _multiaddr(address: str) -> str:
    """Return the address of an RPC as the client library wants it, from a URL or a multiaddr. Raises
    StoreUnavailable."""
    if re.match(r"/(ip4|ip6|dns|dns4|dns6)/", address):
        return address
    parts = urllib.parse.urlsplit(base_url(address, _RPC, _FORM, path=False))
    host = parts.hostname or ""
    kind = "ip6" if ":" in host else "ip4" if re.fullmatch(r"[0-9.]+", host) else "dns"
    return f"/{kind}/{host}/tcp/{parts.port or (443 if parts.scheme == 'https' else 5001)}/{parts.scheme}"


def _names(text: object, cid: Cid) -> bool:
    """Return whether a text of the daemon names this block, in whichever version of an identifier."""
    try:
        named = Cid.parse(text) if isinstance(text, str) else None
    except InvalidCid:
        return False
    return named is not None and (named.codec, named.digest) == (cid.codec, cid.digest)
