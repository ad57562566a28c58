"""Repeated attempts at requests to stores over HTTP, and the addresses of these."""

from __future__ import annotations

import re
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tiebreak.http_client import Halted, NoResponse, TooLate, pause, repeated, shown_url
from tiebreak.rpc.chain_errors import printable
from tiebreak.store.store_errors import CorruptBlock, StoreUnavailable

T = TypeVar("T")

WIDTH = 8
"""Blocks on the way from or to a store over a network: at most 16 MiB of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Repeated attempts at requests to one server.

    `name`: the server in messages. `remedy`: a clause for one that does not answer. `timeout`: seconds of one attempt.
    `attempts`: how many. `stop`: ends every request and pause at once."""

    name: str
    remedy: str
    timeout: float
    attempts: int
    stop: threading.Event | None

    def run(self, what: str, request: Callable[[float], T], seconds: float | None = None) -> T:
        """Return the result of `request`, which gets the seconds that it has, and is tried again with growing pauses
        while it raises NoResponse or CorruptBlock, or takes too long.

        `what`: a clause for messages, what the server is asked to do. `seconds`: of all attempts together (None: as
        they come). Raises StoreUnavailable, the last CorruptBlock, and what `request` raises besides."""
        try:
            return repeated(
                request,
                timeout=self.timeout,
                attempts=self.attempts,
                seconds=seconds,
                stop=self.stop,
                passing=(NoResponse, CorruptBlock, TooLate),
            )
        except Halted as error:
            raise self._stopped(what) from error
        except (NoResponse, TooLate) as error:
            why = f"({error})" if isinstance(error, NoResponse) else "in time"
            raise StoreUnavailable(f"{self.name} did not {what} {why}: {self.remedy}.") from error

    def wait(self, what: str, seconds: float) -> None:
        """Wait before the server is asked again. Raises StoreUnavailable when `stop` is set."""
        try:
            pause(seconds, self.stop)
        except Halted as error:
            raise self._stopped(what) from error

    def _stopped(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"stopped while {self.name} was asked to {what}: run the same command again to carry on."
        )


def base_url(text: str, server: str, form: str, *, path: bool = True) -> str:
    """Return the URL of a server without a slash at its end. `server`, `form`: what it is and how its address is
    written, for messages. `path`: whether the URL may have a path.

    Raises StoreUnavailable, also for a URL with a user name, a query or a fragment, and for one with an @ in its path,
    which may be the end of a user name with a slash in it."""
    try:
        url = urllib.parse.urlsplit(text)
        is_right = url.scheme in ("http", "https") and url.hostname and re.fullmatch(r"[!-~]+", text)
        is_bare = "@" not in text and not url.query and not url.fragment and (path or url.path in ("", "/"))
        url.port  # noqa: B018 (raises ValueError for a port that is none)
    except ValueError:
        is_right = None
    if not is_right or not is_bare:
        raise StoreUnavailable(f"{shown_location(text)!r} is not the address of {server}: use the form {form}.")
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def shown_location(location: str) -> str:
    """Return a store's location, a folder's excepted, or the address of a server, for messages: of a URL the scheme,
    the host and the port. What may be a secret and is no such part is left out."""
    scheme, separator, rest = location.partition("://")
    authority = re.match(r"[^/?#]*", rest)
    # Behind a host there is an @ where a password has a slash in it; then the host is none.
    if separator and authority is not None and "@" not in rest[authority.end() :]:
        shown = shown_url(location)
        if shown is not None:
            return printable(shown, 200)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", location) or re.search(r"[@?#]", location):
        is_scheme = separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme)
        return f"{printable(scheme, 200)}://..." if is_scheme else "..."
    return printable(location, 200)
