"""A content store behind Kubo's HTTP RPC.

The daemon is not trusted with content: whatever is fetched comes block by block and goes through the same checks as the
embedded store's, and every block that is sent must come back under the CID that was computed here. It is trusted to
keep what it says it has pinned, and to say so in few words. Some blocks are sent at a time, and not those that it has.

Source: https://docs.ipfs.tech/reference/kubo/rpc/
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from urllib3.filepost import encode_multipart_formdata

from tiebreak.store.dagpb import MAX_BLOCK, RAW, Cid
from tiebreak.store.http import WIDTH, HttpServer, Retries, base_url
from tiebreak.store.store import Build, Store
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, InvalidCid, StoreError, StoreUnavailable, short

T = TypeVar("T")

_PIN_TIMEOUTS = 10
"""A daemon fetches what it is to pin, and says nothing meanwhile: so many times longer may that take."""

_MULTIADDR = re.compile(r"/(?:ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/([0-9]+)(?:/(https?))?")
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
        form = "http://127.0.0.1:5001, without a user name, a path or a query"
        url = base_url(_url(address), "a Kubo RPC", form, path=False)
        self._server = HttpServer(f"{url}/api/v0", {})

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        what, params = f"fetch {cid}", {"arg": str(cid)}
        return self.ask(what, "block/get", params, partial(self.checked, cid), seconds=seconds, gives_up=True)

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
        pinned = self.ask(f"pin {root}", "pin/add", {"arg": cid}, self._field("Pins"), gives_up=True, retries=slow)
        if not isinstance(pinned, list) or len(pinned) != 1 or not _names(pinned[0], root):
            raise self.foreign()

    def unpin(self, cid: str) -> None:
        root = str(Cid.parse(cid))
        with suppress(ContentMissing):  # Kubo's answer when there is no pin to withdraw
            self.ask(f"unpin {root}", "pin/rm", {"arg": root}, bytes)

    def has(self, cid: str) -> bool:
        root = Cid.parse(cid)
        try:
            key = self.ask(f"look up {root}", "block/stat", {"arg": cid, "offline": "true"}, self._field("Key"))
        except ContentMissing:
            return False
        if not _names(key, root):
            raise self.foreign()
        return True

    def _put(self, cid: Cid, block: bytes) -> None:
        if self.has(str(cid)):
            return
        how = {"cid-codec": "raw" if cid.codec == RAW else "dag-pb", "mhtype": "sha2-256", "allow-big-block": "true"}
        if not _names(self.ask(f"take block {cid}", "block/put", how, self._field("Key"), file=block), cid):
            raise CorruptBlock(
                f"{self.name} did not store block {cid} as that: use another daemon, or check the address."
            )

    def ask(
        self,
        what: str,
        command: str,
        params: Mapping[str, str | Sequence[str]],
        read: Callable[[bytes], T],
        *,
        file: bytes | None = None,
        seconds: float | None = None,
        retries: Retries | None = None,
        gives_up: bool = False,
    ) -> T:
        """Return the answer to a command of the RPC, as `read` reads its body: it raises CorruptBlock for one to be
        asked for again.

        `what`, `seconds`: as of `Retries.run`. `params`: of the query. `file`: to be sent. `gives_up`: whether the
        daemon is to give up before we do, so that absent content is told from an absent daemon. Raises StoreError."""
        body, kind = encode_multipart_formdata({"file": ("block", file)}) if file is not None else (None, "")
        headers = {} if body is None else {"Content-Type": kind}

        def once(left: float) -> T:
            query = {**params, **({"timeout": f"{int(900 * left)}ms"} if gives_up else {})}
            answer = self._server.ask(
                "POST", f"/{command}", params=query, headers=headers, body=body, seconds=left, most=MAX_BLOCK + 1
            )
            if answer.status == 200:
                return read(answer.body)
            if answer.status != 500:
                raise self.foreign()
            told = short(str(self.field(answer.body, "Message")))
            if _MISSING.search(told):
                raise ContentMissing(f"{self.name} could not {what} ({told}): make sure that somebody pins it.")
            raise StoreError(f"{self.name} refused to {what} ({told}): see the daemon's log.")

        return (retries or self.retries).run(what, once, seconds)

    def _field(self, name: str) -> Callable[[bytes], Any]:
        return lambda body: self.field(body, name)

    def field(self, body: bytes, name: str) -> Any:
        """Return a field of the JSON object in an answer. Raises StoreUnavailable."""
        try:
            return json.loads(body)[name]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise self.foreign() from error

    def foreign(self) -> StoreUnavailable:
        """Return the error for an answer that is not one of Kubo's."""
        return StoreUnavailable(f"{self.name} does not answer like Kubo's RPC: check the address.")


def _url(address: str) -> str:
    """Return the URL of an RPC, from a URL or a multiaddr; anything else as it is."""
    if (parts := _MULTIADDR.fullmatch(address)) is not None:
        host, port, scheme = parts.groups()
        return f"{scheme or 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    return address


def _names(text: object, cid: Cid) -> bool:
    """Return whether a text of the daemon names this block, in whichever version of an identifier."""
    try:
        named = Cid.parse(text) if isinstance(text, str) else None
    except InvalidCid:
        return False
    return named is not None and (named.codec, named.digest) == (cid.codec, cid.digest)
