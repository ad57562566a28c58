"""A content store behind Kubo's HTTP RPC.

The daemon is not trusted with content: whatever is fetched comes block by block and goes through the same checks as the
embedded store's, and every block that is sent must come back under the CID that was computed here. It is trusted to
keep what it says it has pinned, and to say so in few words. Some blocks are sent at a time, and not those that it has.

Source: https://docs.ipfs.tech/reference/kubo/rpc/
"""

from __future__ import annotations

import re
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import urllib3

from tiebreak.http_client import HttpAnswer
from tiebreak.store.dagpb import MAX_BLOCK, RAW, Cid
from tiebreak.store.http import HttpServer, NoResponse, Retries, base_url
from tiebreak.store.store import Build, Store
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, InvalidCid, StoreError, StoreUnavailable, short
from tiebreak.store.transfers import WIDTH, OnTransfer

_PIN_TIMEOUTS = 10
"""A daemon fetches what it is to pin, and says nothing meanwhile: so many times longer may that take."""
_RPC, _FORM = "a Kubo RPC", "http://127.0.0.1:5001, without a user name, a path or a query"
_MISSING = re.compile(r"not found|could not find|no such|not pinned|deadline exceeded", re.IGNORECASE)
_MULTIADDR = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/@]+)/tcp/([0-9]{1,5})(?:/(https?))?/?")


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
        on_transfer: OnTransfer | None = None,
    ) -> None:
        super().__init__(f"Kubo at {address}", stop, on_transfer)
        self._retries = Retries(
            name=self.name,
            remedy="start it with `ipfs daemon`, or check the address",
            timeout=timeout,
            attempts=attempts,
            stop=stop,
        )
        self._server = HttpServer(_url(address), {})

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        def once(left: float) -> bytes:
            answer = self._ask(what, "block/get", left, arg=str(cid), timeout=f"{int(900 * left)}ms")
            return self.checked(cid, answer.body)

        what = f"fetch {cid}"
        return self._retries.run(what, once, seconds)

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
        slow = replace(self._retries, timeout=_PIN_TIMEOUTS * self._retries.timeout)
        what = f"pin {root}"

        def once(left: float) -> None:
            pinned = self._field(
                "Pins", self._ask(what, "pin/add", left, arg=str(root), timeout=f"{int(900 * left)}ms")
            )
            if not isinstance(pinned, list) or len(pinned) != 1 or not _names(pinned[0], root):
                raise self._foreign()

        slow.run(what, once)

    def has(self, cid: str) -> bool:
        root = Cid.parse(cid)
        what = f"look up {root}"

        def once(left: float) -> object:
            return self._field("Key", self._ask(what, "block/stat", left, arg=str(root), offline="true"))

        try:
            key = self._retries.run(what, once)
        except ContentMissing:
            return False
        if not _names(key, root):
            raise self._foreign()
        return True

    def _put(self, cid: Cid, block: bytes) -> None:
        if self.has(str(cid)):
            return
        how = {"cid-codec": "raw" if cid.codec == RAW else "dag-pb", "mhtype": "sha2-256", "allow-big-block": "true"}
        what = f"take block {cid}"
        body, kind = urllib3.encode_multipart_formdata({"file": ("block", block, "application/octet-stream")})

        def once(left: float) -> object:
            return self._field("Key", self._ask(what, "block/put", left, body, kind, **how))

        if not _names(self._retries.run(what, once), cid):
            raise CorruptBlock(
                f"{self.name} did not store block {cid} as that: use another daemon, or check the address."
            )

    def _ask(
        self, what: str, command: str, seconds: float, body: bytes | None = None, kind: str = "", **params: str
    ) -> HttpAnswer:
        """Return the answer to a command. `what`: a clause for messages. A `timeout` among the parameters has the
        daemon give up before we do, so that absent content is told from an absent daemon. Raises NoResponse,
        StoreError."""
        headers = {"Content-Type": kind} if kind else {}
        answer = self._server.ask(
            "POST",
            f"/api/v0/{command}",
            params=params,
            headers=headers,
            body=body,
            seconds=seconds,
            most=MAX_BLOCK + 1,
        )
        if answer.more:
            raise NoResponse("no whole answer")
        if answer.status == 200:
            return answer
        told = self._field("Message", answer)
        if not isinstance(told, str):
            raise self._foreign()
        if _MISSING.search(told):
            raise ContentMissing(f"{self.name} could not {what} ({short(told)}): make sure that somebody pins it.")
        raise StoreError(f"{self.name} refused to {what} ({short(told)}): see the daemon's log.")

    def _field(self, name: str, answer: HttpAnswer) -> Any:
        """Return a field of an answer in JSON. Raises StoreUnavailable for any other answer."""
        try:
            return answer.json()[name]
        except (ValueError, LookupError, TypeError) as error:
            raise self._foreign() from error

    def _foreign(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.name} does not answer like Kubo's RPC: check the address.")


def _url(address: str) -> str:
    """Return the URL of an RPC, from a URL or a multiaddr. Raises StoreUnavailable."""
    if found := _MULTIADDR.fullmatch(address):
        kind, host, port, scheme = found.groups()
        address = f"{scheme or 'http'}://{f'[{host}]' if kind == 'ip6' else host}:{port}"
    return base_url(address, _RPC, _FORM, path=False)


def _names(text: object, cid: Cid) -> bool:
    """Return whether a text of the daemon names this block, in whichever version of an identifier."""
    try:
        named = Cid.parse(text) if isinstance(text, str) else None
    except InvalidCid:
        return False
    return named is not None and (named.codec, named.digest) == (cid.codec, cid.digest)
