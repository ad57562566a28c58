"""A remote pinning service, which fetches content over IPFS and keeps it.

What it answers is a stranger's: it is bounded, parsed, and shown without control characters and without the token. The
service is trusted to keep what it says it has pinned.

Source: https://ipfs.github.io/pinning-services-api-spec/ (version 1.0.0)
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from roundlog.storage import open_regular

from tiebreak.http_client import Halted, HttpAnswer, TooLate, pause
from tiebreak.store.dagpb import Cid
from tiebreak.store.http import HttpServer, NoResponse, base_url, patiently, shown_location
from tiebreak.store.store_errors import InvalidCid, StoreError, StoreUnavailable, short

T = TypeVar("T")

TOKEN_VARIABLE = "TIEBREAK_PIN_TOKEN"

_MOST_ANSWER = 1 << 20
_MOST_ORIGINS = 20
_MOST_PINS = 1000
"""Most requests for one CID that a page of the service's list has."""
_ROUNDS = 5
_MOST_TOKEN = 8192
_MOST_ADDRESS = 512
_PEER = re.compile(r"/(ip4|ip6|dns|dns4|dns6|dnsaddr)/[A-Za-z0-9.:_/-]+/p2p/[A-Za-z0-9]+")
_STATES = ("queued", "pinning", "pinned", "failed")
_EMPTY = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


Reach = Callable[[Sequence[str]], None]
"""Is given multiaddrs of peers to connect to, as well as that goes."""


def _nobody(peers: Sequence[str]) -> None:
    """A `Reach` that connects to nobody."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A request as the service shows it. `state`: one of queued, pinning, pinned, failed. `name`: what its maker has
    called it. `delegates`: multiaddrs of the service's peers that will fetch the content. `info`: its own words."""

    request: str
    state: str
    name: str
    delegates: tuple[str, ...]
    info: str


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
        self._token, self._stop = token, stop
        self._timeout, self._attempts, self._patience, self._pace = timeout, attempts, patience, pace
        try:
            url = base_url(address, path=True)
        except ValueError as error:
            raise StoreUnavailable(
                f"{shown_location(address)!r} is not the address of a pinning service: use the form "
                "https://example.org/psa, without a user name or a query."
            ) from error
        place = urllib.parse.urlsplit(url)
        self.name = f"the pinning service {place.netloc}"
        if place.scheme != "https" and place.hostname not in _LOOPBACK:
            raise StoreUnavailable(f"{self.name} would get the token unencrypted: use its https:// address.")
        if not re.fullmatch(r"[!-~]+", token) or len(token) > _MOST_TOKEN:
            raise StoreUnavailable(f"the token for {self.name} is empty or has spaces in it: copy it again.")
        self._server = HttpServer(url, {"Authorization": f"Bearer {token}"})

    def pin(self, cid: str, *, origins: Sequence[str] = (), reach: Reach = _nobody) -> None:
        """Has the service pin content, and waits until it has. Idempotent: a request that is under way is found again.

        origins: multiaddrs of peers that have the content. reach: is given the service's own peers, which a peer behind
        a router has to call first. Raises StoreError if the service fails or refuses, StoreUnavailable if it does not
        answer or is not done in time."""
        root = Cid.parse(cid)
        wanted = json.dumps({"cid": cid, "name": _name(cid), "origins": list(origins)[:_MOST_ORIGINS]})
        found = self._call(f"pin {cid}", lambda left: self._begin(root, wanted, left))
        ends = time.monotonic() + self._patience
        if found.state in ("queued", "pinning") and found.delegates:
            reach(found.delegates)
        for looks in itertools.count():
            if found.state == "pinned":
                return
            request = found.request
            if found.state == "failed":
                self._call(f"drop its failed pin of {cid}", partial(self._drop, request))
                why = f" ({found.info})" if found.info else ""
                raise StoreError(
                    f"{self.name} could not pin {cid}{why}: make sure that a peer serves it, and try again."
                )
            rest = min(30.0, self._pace * 2 ** min(looks, 10))
            if time.monotonic() + rest > ends:
                raise StoreUnavailable(
                    f"{self.name} has not pinned {cid} yet (it is {found.state}): it goes on, look again later."
                )
            self._wait(rest, cid)
            found = self._call(f"say how the pin of {cid} goes on", partial(self._look, request, root))
        raise AssertionError("an endless loop has ended")

    def check(self) -> None:
        """Asks whether the service answers and takes the token, for the pins of an empty block. Raises StoreError."""
        self._call("list its pins", lambda left: self._list(Cid.parse(_EMPTY), left))

    def unpin(self, cid: str) -> None:
        """Withdraws the requests of this program for this content, not those of others in the account. Idempotent."""
        root = Cid.parse(cid)
        ends = time.monotonic() + self._patience
        for _ in range(_ROUNDS):
            found = self._call(f"list its pins of {cid}", lambda left: self._list(root, left))
            ours = [pin.request for pin in found if pin.name == _name(cid)]
            if not ours:
                return
            for request in ours:
                if time.monotonic() > ends:
                    raise StoreUnavailable(
                        f"{self.name} takes too long to unpin {cid}: the rest is withdrawn when it is tried again."
                    )
                self._call(f"unpin {cid}", partial(self._drop, request))
        raise StoreError(f"{self.name} shows pins of {cid} after they were removed: look into your account there.")

    def _begin(self, root: Cid, wanted: str, seconds: float) -> Pin:
        """The request for this content, made if there is none. A lost answer to it is found again here."""
        known = self._list(root, seconds)
        best = next((pin for state in ("pinned", "pinning", "queued") for pin in known if pin.state == state), None)
        if best is not None:
            return best
        return self._parsed(self._ask("POST", "/pins", seconds, body=wanted), root)

    def _look(self, request: str, root: Cid, seconds: float) -> Pin:
        return self._parsed(self._ask("GET", f"/pins/{_quoted(request)}", seconds), root)

    def _list(self, root: Cid, seconds: float) -> list[Pin]:
        params = {"cid": str(root), "status": ",".join(_STATES), "limit": str(_MOST_PINS)}
        found = self._ask("GET", "/pins", seconds, params=params)
        results = found.get("results") if isinstance(found, dict) else None
        if not isinstance(results, list) or len(results) > _MOST_PINS:
            raise self._foreign()
        return [self._parsed(one, root) for one in results]

    def _drop(self, request: str, seconds: float) -> None:
        self._ask("DELETE", f"/pins/{_quoted(request)}", seconds, gone_is_fine=True)

    def _parsed(self, found: object, root: Cid) -> Pin:
        """A PinStatus, checked to be about our content."""
        match found:
            case {"requestid": str(request), "status": str(state), "pin": {"cid": str(cid)}}:
                pass
            case _:
                raise self._foreign()
        assert isinstance(found, dict), "it has matched"
        name, info = found["pin"].get("name"), found.get("info")
        details = info.get("status_details") if isinstance(info, dict) else None
        try:
            about = Cid.parse(cid)
        except InvalidCid as error:
            raise self._foreign() from error
        if (about.codec, about.digest) != (root.codec, root.digest) or state not in _STATES:
            raise self._foreign()
        if not 0 < len(request) <= 1024 or request in (".", ".."):
            raise self._foreign()
        delegates = found.get("delegates")
        known = delegates if isinstance(delegates, list) else []
        peers = [one for one in known if isinstance(one, str) and len(one) <= _MOST_ADDRESS and _PEER.fullmatch(one)]
        words = self._safe(details) if isinstance(details, str) else ""
        return Pin(request, state, name if isinstance(name, str) else "", tuple(peers[:_MOST_ORIGINS]), words)

    def _ask(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        params: dict[str, str] | None = None,
        body: str | None = None,
        gone_is_fine: bool = False,
    ) -> Any:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        content = body.encode() if body is not None else None
        answer = self._server.ask(
            method, path, params=params, headers=headers, body=content, seconds=seconds, most=_MOST_ANSWER
        )
        if answer.status == 429 or answer.status >= 500:
            raise NoResponse(f"status {answer.status}{self._reason(answer)}", answer.retry_after)
        if answer.status == 404 and gone_is_fine:
            return None
        if answer.status in (401, 403):
            raise StoreUnavailable(
                f"{self.name} does not accept the token{self._reason(answer)}: set {TOKEN_VARIABLE}, or --pin-token."
            )
        if not 200 <= answer.status < 300:
            raise StoreUnavailable(
                f"{self.name} refused the request (status {answer.status}{self._reason(answer)}): see its "
                "documentation."
            )
        if method == "DELETE":
            return None
        try:
            return answer.json()
        except ValueError as error:
            raise self._foreign() from error

    def _reason(self, answer: HttpAnswer) -> str:
        """The service's own words about an error, from its second on."""
        try:
            found = answer.json()
        except ValueError:
            return ""
        match found:
            case {"error": {"reason": str(reason), "details": str(details)}}:
                return f", {self._safe(f'{reason}: {details}')}"
            case {"error": {"reason": str(reason)}}:
                return f", {self._safe(reason)}"
        return ""

    def _safe(self, text: str) -> str:
        """A stranger's text without the token, which it may repeat."""
        return short(text.replace(self._token, "[token]"))

    def _call(self, what: str, request: Callable[[float], T]) -> T:
        try:
            return patiently(request, attempts=self._attempts, each=self._timeout, seconds=None, stop=self._stop)
        except Halted as error:
            raise self._stopped(what) from error
        except NoResponse as error:
            raise StoreUnavailable(
                f"{self.name} did not {what} ({self._safe(str(error))}): try again later."
            ) from error
        except TooLate as error:
            raise StoreUnavailable(f"{self.name} did not {what} in time: try again later.") from error

    def _wait(self, seconds: float, cid: str) -> None:
        try:
            pause(seconds, self._stop)
        except Halted as error:
            raise self._stopped(f"pin {cid}") from error

    def _stopped(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"stopped while {self.name} was asked to {what}: run the same command again to carry on."
        )

    def _foreign(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.name} does not answer like the Pinning Service API: check the address.")


def read_token(file: Path | None) -> str:
    """The access token: from a file that nobody else can read, or else from the environment variable
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
    """Our name for a request, by which it is told from others in the same account."""
    return f"tiebreak {cid}"


def _quoted(request: str) -> str:
    return urllib.parse.quote(request, safe="")
