"""A content store behind a trustless HTTP gateway: read only, and every block is checked.

Source: https://specs.ipfs.tech/http-gateways/trustless-gateway/
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from tiebreak.http_client import Halted, HttpAnswer, TooLate
from tiebreak.store.dagpb import MAX_BLOCK, Cid
from tiebreak.store.http import HttpServer, NoResponse, base_url, patiently, shown_location
from tiebreak.store.store import Addition, Store
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, StoreError, StoreUnavailable
from tiebreak.store.transfers import WIDTH, OnTransfer, untold

T = TypeVar("T")

_ACCEPT = {"Accept": "application/vnd.ipld.raw"}
_RAW = {"format": "raw"}
_BUSY = (429, 500, 502, 503, 504)
_EMPTY = "bafkqaaa"
"""The identifier that holds a block of no bytes, by which gateways are found out about."""


class GatewayStore(Store):
    """A `ContentStore` of what a trustless gateway serves; nothing can be added or pinned.

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
        on_transfer: OnTransfer = untold,
    ) -> None:
        super().__init__(f"the gateway {shown_location(address)}", stop, on_transfer)
        self._timeout, self._attempts = timeout, attempts
        try:
            self._server = HttpServer(base_url(address, path=True), _ACCEPT)
        except ValueError as error:
            raise StoreUnavailable(
                f"{shown_location(address)!r} is not the address of a gateway: use the form "
                "gateway+https://example.org, without a user name or a query."
            ) from error

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        def fetch(left: float) -> bytes:
            answer = self._ask("GET", cid, left, {})
            if answer.status != 200:
                raise self._refused(answer, f"give block {cid}")
            return self.checked(cid, answer.body)

        return self._call(f"give block {cid}", fetch, seconds)

    def _leaf(self, cid: Cid, first: int, size: int, seconds: float | None) -> bytes:
        def fetch(left: float) -> bytes:
            answer = self._ask("GET", cid, left, {"Range": f"bytes={first}-{first + size - 1}"})
            if answer.status == 206 and len(answer.body) == size:
                return answer.body
            if answer.status == 206:
                raise CorruptBlock(f"{self.name} returned another part of block {cid} than it was asked for.")
            if answer.status != 200:
                raise self._refused(answer, f"give a part of block {cid}")
            return self.checked(cid, answer.body)[first : first + size]

        return self._call(f"give a part of block {cid}", fetch, seconds)

    def check(self) -> None:
        """Asks whether a gateway answers there, for a block that lies in its own identifier and has no bytes, as the
        specification says. Raises StoreUnavailable."""

        def look(left: float) -> None:
            answer = self._server.ask("GET", f"/ipfs/{_EMPTY}", params=_RAW, seconds=left, most=1)
            if answer.status in _BUSY:
                raise NoResponse(f"status {answer.status}", answer.retry_after)
            if 300 <= answer.status < 400:
                raise self._refused(answer, "give an empty block")
            if answer.status != 200 or answer.body:
                raise StoreUnavailable(f"{self.name} does not answer like a trustless gateway: check the address.")

        self._call("give an empty block", look)

    def has(self, cid: str) -> bool:
        root = Cid.parse(cid)

        def look(left: float) -> bool:
            # A gateway that keeps nothing answers 412 instead of asking the network.
            answer = self._ask("HEAD", root, left, {"Cache-Control": "only-if-cached"})
            if answer.status not in (200, 404, 410, 412):
                raise self._refused(answer, f"look up {root}")
            return answer.status == 200

        return self._call(f"look up {root}", look)

    def adding(self) -> AbstractContextManager[Addition]:
        raise self._read_only()

    def pin(self, cid: str) -> None:
        raise self._read_only()

    def unpin(self, cid: str) -> None:
        raise self._read_only()

    def _ask(self, method: str, cid: Cid, seconds: float, headers: dict[str, str]) -> HttpAnswer:
        answer = self._server.ask(
            method, f"/ipfs/{cid}", params=_RAW, headers=headers, seconds=seconds, most=MAX_BLOCK + 1
        )
        if answer.status in _BUSY:
            raise NoResponse(f"status {answer.status}", answer.retry_after)
        return answer

    def _refused(self, answer: HttpAnswer, what: str) -> StoreError:
        if answer.status in (404, 410, 412, 451):
            return ContentMissing(
                f"{self.name} could not {what} (status {answer.status}): use another store, or make sure that somebody "
                "pins it."
            )
        if 300 <= answer.status < 400:
            return StoreUnavailable(
                f"{self.name} redirects to another place, which is not followed: name a gateway that answers itself."
            )
        return StoreUnavailable(
            f"{self.name} refused to {what} (status {answer.status}): use a trustless gateway, which serves "
            "?format=raw."
        )

    def _call(self, what: str, request: Callable[[float], T], seconds: float | None = None) -> T:
        try:
            return patiently(request, attempts=self._attempts, each=self._timeout, seconds=seconds, stop=self.stop)
        except Halted as error:
            raise StoreUnavailable(
                f"stopped while {self.name} was asked to {what}: run the same command again to carry on."
            ) from error
        except NoResponse as error:
            raise StoreUnavailable(
                f"{self.name} did not {what} ({error}): try again later, or use another store."
            ) from error
        except TooLate as error:
            raise StoreUnavailable(
                f"{self.name} did not {what} in time: try again later, or use another store."
            ) from error

    def _read_only(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.name} can only be read from: give a folder or Kubo's RPC with --store as well.")
