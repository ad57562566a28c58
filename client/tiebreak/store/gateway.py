"""A content store behind a trustless HTTP gateway: read only, and every block is checked.

Source: https://specs.ipfs.tech/http-gateways/trustless-gateway/
"""

from __future__ import annotations

import threading

from tiebreak.http_client import HttpAnswer, NoResponse, ask, session
from tiebreak.store.dagpb import MAX_BLOCK, Cid
from tiebreak.store.http import WIDTH, Retries, base_url, shown_location
from tiebreak.store.store import Build, Store
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, StoreUnavailable

_BUSY = (429, 500, 502, 503, 504)
_MISSING = (404, 410, 412, 451)


class GatewayStore(Store):
    """A `Store` of what a trustless gateway serves; nothing can be added or pinned.

    `address`: the gateway's URL (``https://trustless-gateway.example``). `timeout`: seconds that one attempt at a
    request may take in all. `attempts`: how often a request is tried when the network fails, when the gateway asks for
    patience, or when a block comes damaged. A gateway that redirects is refused: it could send us anywhere. `stop`:
    ends every request at once. Raises StoreUnavailable for an address of another form.
    """

    writable = False
    width = WIDTH

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 60.0,
        attempts: int = 4,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(f"the gateway {shown_location(address)}", stop)
        self._retries = Retries(
            name=self.name,
            remedy="try again later, or use another store",
            timeout=timeout,
            attempts=attempts,
            stop=stop,
        )
        self._url = base_url(address, "a gateway", "gateway+https://example.org, without a user name or a query")
        self._session = session()
        self._session.trust_env = False  # no credentials of .netrc
        self._session.headers.update({"Accept": "application/vnd.ipld.raw", "User-Agent": "tiebreak"})

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        def fetch(left: float) -> bytes:
            return self.checked(cid, self._ask("GET", str(cid), left).body)

        return self._retries.run(f"give block {cid}", fetch, seconds)

    def _leaf(self, cid: Cid, first: int, size: int, seconds: float | None) -> bytes:
        def fetch(left: float) -> bytes:
            answer = self._ask("GET", str(cid), left, {"Range": f"bytes={first}-{first + size - 1}"})
            if answer.status == 200:
                return self.checked(cid, answer.body)[first : first + size]
            if len(answer.body) != size:
                raise CorruptBlock(f"{self.name} returned another part of block {cid} than it was asked for.")
            return answer.body

        return self._retries.run(f"give a part of block {cid}", fetch, seconds)

    def has(self, cid: str) -> bool:
        root = str(Cid.parse(cid))
        try:
            # A gateway that keeps nothing answers 412 instead of asking the network.
            cached = {"Cache-Control": "only-if-cached"}
            self._retries.run(f"look up {root}", lambda left: self._ask("HEAD", root, left, cached))
        except ContentMissing:
            return False
        return True

    def add_blocks(self, build: Build) -> Cid:
        raise self._read_only()

    def pin(self, cid: str) -> None:
        raise self._read_only()

    def unpin(self, cid: str) -> None:
        raise self._read_only()

    def _ask(self, method: str, cid: str, seconds: float, headers: dict[str, str] | None = None) -> HttpAnswer:
        """Return an answer of status 200, or 206 if a `Range` was asked for. Raises NoResponse and StoreError."""
        most = 0 if method == "HEAD" else MAX_BLOCK + 1
        url = f"{self._url}/ipfs/{cid}?format=raw"
        answer = ask(self._session, method, url, headers=headers, seconds=seconds, most=most)
        if answer.status in _BUSY:
            raise NoResponse(f"status {answer.status}", answer.retry_after)
        if answer.status in _MISSING:
            raise ContentMissing(
                f"{self.name} could not give block {cid} (status {answer.status}): use another store, or make sure "
                "that somebody pins it."
            )
        if 300 <= answer.status < 400:
            raise StoreUnavailable(
                f"{self.name} redirects to another place, which is not followed: name a gateway that answers itself."
            )
        if answer.status != 200 and not (answer.status == 206 and headers is not None and "Range" in headers):
            raise StoreUnavailable(
                f"{self.name} refused to give block {cid} (status {answer.status}): use a trustless gateway, which "
                "serves ?format=raw."
            )
        return answer
