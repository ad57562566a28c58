"""A remote pinning service, which fetches content over IPFS and keeps it.

What it answers is a stranger's: it is bounded, parsed, and shown without control characters and without the token. The
service is trusted to keep what it says it has pinned.

Source: https://ipfs.github.io/pinning-services-api-spec/ (version 1.0.0)
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from roundlog.storage import open_regular

from tiebreak.http_client import HttpAnswer
from tiebreak.store.dagpb import Cid
from tiebreak.store.http import HttpServer, NoResponse, Retries, base_url
from tiebreak.store.store_errors import InvalidCid, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from tiebreak.store.kubo import KuboStore

TOKEN_VARIABLE = "TIEBREAK_PIN_TOKEN"

_MOST_ANSWER = 1 << 20
_MOST_ORIGINS = 20
_MOST_PINS = 1000
"""Most requests for one CID that a page of the service's list has."""
_MOST_TOKEN = 8192
_MOST_ADDRESS = 512
_PEER = re.compile(r"/(ip4|ip6|dns|dns4|dns6|dnsaddr)/[A-Za-z0-9.:_/-]+/p2p/[A-Za-z0-9]+")
_STATES = ("pinned", "pinning", "queued", "failed")
_EMPTY = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Pin(NamedTuple):
    """A request as the service shows it. `state`: one of `_STATES`. `name`: what its maker has called it. `delegates`:
    multiaddrs of the service's peers that will fetch the content. `details`: its own words."""

    request: str
    state: str
    name: str
    delegates: tuple[str, ...]
    details: str


class PinningService:
    """A pinning service. `address`: its URL, to which ``/pins`` is appended. `token`: the access token, which only this
    service gets.

    `timeout`: seconds for one request; `attempts`: how often it is tried. `patience`: seconds for which a new pin, or
    the removal of all, is waited for; `pace`: seconds until the first look at it, which double up to thirty. `stop`:
    ends every request and wait at once. Raises StoreUnavailable for an address or a token of another form, and for a
    token over plain HTTP.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        timeout: float = 30.0,
        attempts: int = 4,
        patience: float = 120.0,
        pace: float = 1.0,
        stop: threading.Event | None = None,
    ) -> None:
        self._patience, self._pace = patience, pace
        url = base_url(address, "a pinning service", "https://example.org/psa, without a user name or a query")
        place = urllib.parse.urlsplit(url)
        self.name = f"the pinning service {place.netloc}"
        if place.scheme != "https" and place.hostname not in _LOOPBACK:
            raise StoreUnavailable(f"{self.name} would get the token unencrypted: use its https:// address.")
        if not re.fullmatch(r"[!-~]+", token) or len(token) > _MOST_TOKEN:
            raise StoreUnavailable(f"the token for {self.name} is empty or has spaces in it: copy it again.")
        self._server = HttpServer(url, {"Authorization": f"Bearer {token}"}, secret=token)
        self._retries = Retries(name=self.name, remedy="try again later", timeout=timeout, attempts=attempts, stop=stop)

    def pin(self, cid: str, daemons: Sequence[KuboStore] = ()) -> None:
        """Have the service pin content, and wait until it has. Idempotent: a request that is under way is found again.

        `daemons`: our own, which have the content. The service gets their addresses; they call its peers, since a
        daemon behind a router cannot be called. Raises StoreError if the service fails or refuses, StoreUnavailable if
        it does not answer or is not done in time."""
        root = Cid.parse(cid)
        origins: list[str] = []
        for daemon in daemons:
            with suppress(StoreError):  # the service asks the network, then
                origins += daemon.addresses()
        wanted = json.dumps({"cid": cid, "name": _name(cid), "origins": origins[:_MOST_ORIGINS]}).encode()
        found = self._retries.run(f"pin {cid}", lambda left: self._begin(root, wanted, left))
        if found.state in ("queued", "pinning") and found.delegates:
            for daemon in daemons:
                daemon.connect(found.delegates)
        self._wait(cid, found)

    def unpin(self, cid: str) -> None:
        """Withdraw the requests of this program for this content, not those of others in the account. Idempotent."""
        root = Cid.parse(cid)
        ends = time.monotonic() + self._patience
        for pin in self._retries.run(f"list its pins of {cid}", lambda left: self._list(root, left)):
            if pin.name != _name(cid):
                continue
            if time.monotonic() > ends:
                raise StoreUnavailable(
                    f"{self.name} takes too long to unpin {cid}: the rest is withdrawn when it is tried again."
                )
            self._drop(pin.request, f"unpin {cid}")

    def check(self) -> None:
        """Ask whether the service answers and takes the token, for the pins of an empty block. Raises StoreError."""
        self._retries.run("list its pins", lambda left: self._list(Cid.parse(_EMPTY), left))

    def _begin(self, root: Cid, wanted: bytes, seconds: float) -> Pin:
        """Return the request for this content, made if there is none. A lost answer to it is found again here."""
        known = [pin for pin in self._list(root, seconds) if pin.state != "failed"]
        if known:
            return min(known, key=lambda pin: _STATES.index(pin.state))
        return self._parsed(self._ask("POST", "/pins", seconds, body=wanted), root)

    def _wait(self, cid: str, found: Pin) -> None:
        """Look at a request until the content is pinned. Raises StoreError."""
        root, request, rest = Cid.parse(cid), found.request, self._pace
        ends = time.monotonic() + self._patience
        while found.state != "pinned":
            if found.state == "failed":
                self._drop(request, f"drop its failed pin of {cid}")
                why = f" ({found.details})" if found.details else ""
                raise StoreError(
                    f"{self.name} could not pin {cid}{why}: make sure that a peer serves it, and try again."
                )
            if time.monotonic() + rest > ends:
                raise StoreUnavailable(
                    f"{self.name} has not pinned {cid} yet (it is {found.state}): it goes on, look again later."
                )
            self._retries.wait(f"pin {cid}", rest)
            rest = min(30.0, 2 * rest)
            found = self._retries.run(
                f"say how the pin of {cid} goes on",
                lambda left: self._parsed(self._ask("GET", f"/pins/{_quoted(request)}", left), root),
            )

    def _list(self, root: Cid, seconds: float) -> list[Pin]:
        params = {"cid": str(root), "status": ",".join(_STATES), "limit": str(_MOST_PINS)}
        found = self._ask("GET", "/pins", seconds, params=params)
        results = found.get("results") if isinstance(found, dict) else None
        if not isinstance(results, list) or len(results) > _MOST_PINS:
            raise self._foreign()
        return [self._parsed(one, root) for one in results]

    def _drop(self, request: str, what: str) -> None:
        self._retries.run(what, lambda left: self._ask("DELETE", f"/pins/{_quoted(request)}", left))

    def _parsed(self, found: Any, root: Cid) -> Pin:
        """Return a PinStatus, checked to be about our content."""
        try:
            request, state, pin = found["requestid"], found["status"], found["pin"]
            about, name = Cid.parse(pin["cid"]), pin.get("name")
        except (InvalidCid, AttributeError, LookupError, TypeError) as error:
            raise self._foreign() from error
        if (about.codec, about.digest) != (root.codec, root.digest) or state not in _STATES:
            raise self._foreign()
        if not isinstance(request, str) or not 0 < len(request) <= 1024 or request in (".", ".."):
            raise self._foreign()
        delegates, info = found.get("delegates"), found.get("info")
        known = delegates if isinstance(delegates, list) else []
        peers = [one for one in known if isinstance(one, str) and len(one) <= _MOST_ADDRESS and _PEER.fullmatch(one)]
        details = info.get("status_details") if isinstance(info, dict) else None
        words = self._server.shown(details) if isinstance(details, str) else ""
        return Pin(request, state, str(name), tuple(peers[:_MOST_ORIGINS]), words)

    def _ask(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        params: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> Any:
        """Return the JSON of an answer; None for a request that is removed, or not there any more."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        answer = self._server.ask(
            method, path, params=params, headers=headers, body=body, seconds=seconds, most=_MOST_ANSWER
        )
        if answer.status == 429 or answer.status >= 500:
            raise NoResponse(f"status {answer.status}{self._reason(answer)}", answer.retry_after)
        if answer.status in (401, 403):
            raise StoreUnavailable(
                f"{self.name} does not accept the token{self._reason(answer)}: set {TOKEN_VARIABLE}, or --pin-token."
            )
        if method == "DELETE" and (answer.status == 404 or 200 <= answer.status < 300):
            return None
        if not 200 <= answer.status < 300:
            raise StoreUnavailable(
                f"{self.name} refused the request (status {answer.status}{self._reason(answer)}): see its "
                "documentation."
            )
        try:
            return answer.json()
        except ValueError as error:
            raise self._foreign() from error

    def _reason(self, answer: HttpAnswer) -> str:
        """Return the service's own words about an error, after a comma."""
        with suppress(ValueError, LookupError, TypeError):
            error = answer.json()["error"]
            return (
                f", {self._server.shown(': '.join(str(error[key]) for key in ('reason', 'details') if key in error))}"
            )
        return ""

    def _foreign(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.name} does not answer like the Pinning Service API: check the address.")


def read_token(file: Path | None) -> str:
    """Return the access token: from a file that nobody else can read, or else from the environment variable
    TIEBREAK_PIN_TOKEN. Raises StoreUnavailable."""
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            raise StoreUnavailable(
                f"the pinning service needs a token: set {TOKEN_VARIABLE}, or name a file of mode 0600 with "
                "--pin-token."
            )
        return token
    try:
        with open_regular(file) as stream:
            if os.fstat(stream.fileno()).st_mode & 0o077:
                raise StoreUnavailable(f"the token in {file} can be read by others: run chmod 600 on that file.")
            return stream.read(_MOST_TOKEN + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise StoreUnavailable(f"the token cannot be read from {file} ({error.strerror}): check the path.") from error


def _name(cid: str) -> str:
    """Return our name for a request, by which it is told from others in the same account."""
    return f"tiebreak {cid}"


def _quoted(request: str) -> str:
    return urllib.parse.quote(request, safe="")
