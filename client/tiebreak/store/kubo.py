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
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tiebreak.http_client import ask, session
from tiebreak.rpc.chain_errors import printable
from tiebreak.store.dagpb import MAX_BLOCK, RAW, Cid
from tiebreak.store.http import WIDTH, Retries, base_url
from tiebreak.store.store import Build, Store
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, InvalidCid, StoreError, StoreUnavailable

_PIN_TIMEOUTS = 10
"""A daemon fetches what it is to pin, and says nothing meanwhile: so many times longer may that take."""

_RPC, _FORM = "a Kubo RPC", "http://127.0.0.1:5001, without a user name, a path or a query"
_MULTIADDR = re.compile(r"/(?:ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/([0-9]{1,5})(?:/(https?))?/?")
_NONSENSE = (LookupError, RecursionError, TypeError, ValueError)
"""Errors of reading JSON that is not what was expected."""
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
        self._url, self._session = _url(address), session()
        self._session.trust_env = False  # no credentials of .netrc

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        check = partial(self.checked, cid)
        return self._ask(f"fetch {cid}", "block/get", {"arg": str(cid)}, check=check, seconds=seconds, gives_up=True)

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
        answer = self._ask(f"pin {root}", "pin/add", {"arg": str(root)}, gives_up=True, retries=slow)
        pinned = self._field(answer, "Pins")
        if not isinstance(pinned, list) or len(pinned) != 1 or not _names(pinned[0], root):
            raise self.foreign()

    def unpin(self, cid: str) -> None:
        root = str(Cid.parse(cid))
        with suppress(ContentMissing):  # Kubo's answer when there is no pin to withdraw
            self._ask(f"unpin {root}", "pin/rm", {"arg": root})

    def has(self, cid: str) -> bool:
        root = Cid.parse(cid)
        try:
            found = self._ask(f"look up {root}", "block/stat", {"arg": str(root), "offline": "true"})
        except ContentMissing:
            return False
        if not _names(self._field(found, "Key"), root):
            raise self.foreign()
        return True

    def remote_pins(self, what: str, command: str, options: Mapping[str, str | Sequence[str]]) -> bytes:
        """Return the answer to a command of ``ipfs pin remote``. what: as of `Retries.run`. Raises StoreError."""
        return self._ask(what, f"pin/remote/{command}", options, gives_up=True)

    def _put(self, cid: Cid, block: bytes) -> None:
        if self.has(str(cid)):
            return
        how = {"cid-codec": "raw" if cid.codec == RAW else "dag-pb", "mhtype": "sha2-256", "allow-big-block": "true"}
        if not _names(self._field(self._ask(f"take block {cid}", "block/put", how, block=block), "Key"), cid):
            raise CorruptBlock(
                f"{self.name} did not store block {cid} as that: use another daemon, or check the address."
            )

    def _ask(
        self,
        what: str,
        command: str,
        options: Mapping[str, str | Sequence[str]],
        *,
        block: bytes | None = None,
        check: Callable[[bytes], bytes] = bytes,
        seconds: float | None = None,
        retries: Retries | None = None,
        gives_up: bool = False,
    ) -> bytes:
        """Return the answer to a command.

        `what`, `seconds`: as of `Retries.run`. `block`: goes with it. `check`: returns a right answer, and raises
        CorruptBlock for one to be fetched again. `gives_up`: whether the daemon is to give up before we do, so that
        absent content is told from an absent daemon. Raises StoreError."""

        def once(left: float) -> bytes:
            limit = {"timeout": f"{int(900 * left)}ms"} if gives_up else {}
            files = None if block is None else {"file": ("block", block, "application/octet-stream")}
            url, params = f"{self._url}/api/v0/{command}", {**options, **limit}
            answer = ask(
                self._session, "POST", url, params=params, files=files, seconds=left, most=MAX_BLOCK + (1 << 16)
            )
            if answer.status < 300:
                return check(answer.body)
            if answer.status < 400:
                raise self.foreign()
            try:
                told = printable(str(json.loads(answer.body)["Message"]), 200)
            except _NONSENSE:
                told = "without an explanation"
            if _MISSING.search(told):
                raise ContentMissing(f"{self.name} could not {what} ({told}): make sure that somebody pins it.")
            raise StoreError(f"{self.name} refused to {what} ({told}): see the daemon's log.")

        return (retries or self.retries).run(what, once, seconds)

    def _field(self, answer: bytes, name: str) -> Any:
        try:
            return json.loads(answer)[name]
        except _NONSENSE as error:
            raise self.foreign() from error

    def foreign(self) -> StoreUnavailable:
        """Return the error for an answer that is not one of Kubo's."""
        return StoreUnavailable(f"{self.name} does not answer like Kubo's RPC: check the address.")


def _url(address: str) -> str:
    """Return the URL of an RPC, from a URL or a multiaddr. Raises StoreUnavailable."""
    if found := _MULTIADDR.fullmatch(address):
        host, port, scheme = found.groups()
        address = f"{scheme or 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    url = urllib.parse.urlsplit(base_url(address, _RPC, _FORM, path=False))
    return url.geturl() if url.port is not None or url.scheme == "https" else f"{url.geturl()}:5001"


def _names(text: object, cid: Cid) -> bool:
    """Return whether a text of the daemon names this block, in whichever version of an identifier."""
    try:
        named = Cid.parse(text) if isinstance(text, str) else None
    except InvalidCid:
        return False
    return named is not None and (named.codec, named.digest) == (cid.codec, cid.digest)
