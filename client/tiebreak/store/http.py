"""Requests to HTTP servers that are not trusted, and repeated attempts at them.

An answer is bounded in bytes and in time while it comes, is never unpacked, never followed to another place, and never
sent credentials of another place (nothing is read from ``.netrc``).
"""

from __future__ import annotations

import itertools
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import urllib3

from tiebreak.http_client import Halted, HttpAnswer, Pauses, TooLate, pause, pool_manager, read_answer, shown_url
from tiebreak.http_client import within as in_time
from tiebreak.store.store_errors import CorruptBlock, StoreUnavailable, short

T = TypeVar("T")

WIDTH = 8
"""Blocks on the way from or to a store over a network: at most 16 MiB of memory."""

_MOST_WAIT = 30.0
"""Longest pause in seconds that a server's Retry-After can ask for."""


class NoResponse(Exception):
    """A server has not answered, or not with a whole answer. `wait`: seconds after which it asks to be tried again."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


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
        ends = None if seconds is None else time.monotonic() + seconds
        pauses = Pauses(first=0.1, most=5.0, spread=1.0)
        try:
            for attempt in itertools.count(1):
                left = self.timeout if ends is None else min(self.timeout, ends - time.monotonic())
                if left <= 0:
                    raise TooLate
                asked = 0.0
                try:
                    return in_time(left, self.stop, lambda left=left: request(left))  # type: ignore[misc]
                except (NoResponse, CorruptBlock, TooLate) as error:
                    if attempt >= self.attempts:
                        raise
                    asked = min(_MOST_WAIT, error.wait) if isinstance(error, NoResponse) else 0.0
                rest = max(asked, pauses.next())
                if ends is not None and time.monotonic() + rest >= ends:
                    raise TooLate
                self.wait(what, rest)
        except Halted as error:
            raise self._stopped(what) from error
        except (NoResponse, TooLate) as error:
            why = f"({error})" if isinstance(error, NoResponse) else "in time"
            raise StoreUnavailable(f"{self.name} did not {what} {why}: {self.remedy}.") from error
        raise AssertionError("an endless loop has ended")

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


class HttpServer:
    """An HTTP server. `base`: its URL, to which paths are appended. `headers`: sent with every request."""

    def __init__(self, base: str, headers: Mapping[str, str]) -> None:
        self._base = base
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "tiebreak", **headers}
        self._pool = pool_manager(maxsize=WIDTH, retries=False)

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | Sequence[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float,
        most: int,
    ) -> HttpAnswer:
        """Return the answer to one request. `seconds`: for all of it. `most`: bytes of the body that are read. Raises
        NoResponse."""
        query = "?" + urllib.parse.urlencode(params, doseq=True) if params else ""
        try:
            answer = self._pool.request(
                method,
                f"{self._base}{path}{query}",
                headers={**self._headers, **(headers or {})},
                body=body,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(total=seconds),
            )
            try:
                return read_answer(answer, 0 if method == "HEAD" else most)
            finally:
                answer.close()  # gives nothing back to the pool that still has bytes on the way
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise NoResponse(short(_reason(error))) from None


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
            return short(shown)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", location) or re.search(r"[@?#]", location):
        return f"{short(scheme)}://..." if separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) else "..."
    return short(location)


def _reason(error: Exception) -> str:
    """Return a network error in a few words, without the library's names of objects."""
    if isinstance(error, urllib3.exceptions.LocationParseError):
        return "its address has no such host"  # the library's text has the address
    reason = getattr(error, "reason", None)
    return str(reason if isinstance(reason, Exception) else error) or type(error).__name__
