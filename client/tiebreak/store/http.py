"""Requests to HTTP servers that are not trusted: Kubo's RPC, gateways, pinning services.

An answer is bounded in bytes and in time while it comes, is never unpacked, never followed to another place, and never
sent credentials of another place (nothing is read from ``.netrc``).
"""

from __future__ import annotations

import itertools
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import urllib3

from tiebreak.http_client import HttpAnswer, Pauses, TooLate, pause, pool_manager, read_answer, shown_url
from tiebreak.http_client import within as in_time
from tiebreak.store.store_errors import CorruptBlock, short

T = TypeVar("T")

_CONNECTIONS = 8
_MOST_WAIT = 30.0
"""Longest pause in seconds that a server's Retry-After can ask for."""


class NoResponse(Exception):
    """A server has not answered, or not with a whole answer. `wait`: seconds after which it asks to be tried again."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


class HttpServer:
    """An HTTP server. `base`: its URL, to which paths are appended. `headers`: sent with every request."""

    def __init__(self, base: str, headers: Mapping[str, str] | None = None) -> None:
        self.base = base
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "tiebreak", **(headers or {})}
        self._pool = pool_manager(maxsize=_CONNECTIONS, retries=False)

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        file: bytes | None = None,
        seconds: float,
        most: int,
    ) -> HttpAnswer:
        """The answer to one request. `file`: content of a form with one file. `seconds`: for all of it. `most`: bytes
        of the body that are read. Raises NoResponse."""
        query = "?" + urllib.parse.urlencode(params) if params else ""
        content: dict[str, Any] = {"body": body}
        if file is not None:
            content = {"fields": {"file": ("block", file, "application/octet-stream")}}
        try:
            answer = self._pool.request(
                method,
                f"{self.base}{path}{query}",
                headers={**self._headers, **(headers or {})},
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(total=seconds),
                **content,
            )
            try:
                return read_answer(answer, 0 if method == "HEAD" else most)
            finally:
                answer.close()  # gives nothing back to the pool that still has bytes on the way
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise NoResponse(_plainly(error)) from error


def patiently(
    request: Callable[[float], T], *, attempts: int, each: float, seconds: float | None, stop: threading.Event | None
) -> T:
    """The result of `request`, tried up to `attempts` times with growing pauses while it raises NoResponse or
    CorruptBlock, or takes too long.

    `request` gets the seconds that it has. `each`: seconds of one attempt; `seconds`: of all together (None: as they
    come). Raises the last error, TooLate, and Halted when `stop` is set."""
    ends = None if seconds is None else time.monotonic() + seconds
    pauses = Pauses(first=0.1, most=5.0, spread=1.0)
    for attempt in itertools.count(1):
        left = each if ends is None else min(each, ends - time.monotonic())
        if left <= 0:
            raise TooLate
        asked = 0.0
        try:
            return in_time(left, stop, lambda left=left: request(left))  # type: ignore[misc]
        except (NoResponse, CorruptBlock, TooLate) as error:
            if attempt >= attempts:
                raise
            asked = min(_MOST_WAIT, error.wait) if isinstance(error, NoResponse) else 0.0
        rest = max(asked, pauses.next())
        if ends is not None and time.monotonic() + rest >= ends:
            raise TooLate
        pause(rest, stop)
    raise AssertionError("an endless loop has ended")


def base_url(text: str, *, path: bool) -> str:
    """The URL of a server without a slash at its end. `path`: whether it may have a path. Raises ValueError, also for a
    URL with a user name, a query or a fragment, and for one with an @ in its path, which may be the end of a user name
    with a slash in it."""
    url = urllib.parse.urlsplit(text)
    if (
        url.scheme not in ("http", "https")
        or not url.hostname
        or "@" in text
        or url.query
        or url.fragment
        or (url.path not in ("", "/") and not path)
        or not re.fullmatch(r"[!-~]+", text)
    ):
        raise ValueError(text)
    url.port  # noqa: B018 (raises ValueError for a port that is none)
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def shown_location(location: str) -> str:
    """A store's location, a folder's excepted, or the address of a server, for messages: of a URL the scheme, the host
    and the port. What may be a secret and is no such part is left out."""
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


def _plainly(error: Exception) -> str:
    """A network error in a few words, without the library's names of objects."""
    if isinstance(error, urllib3.exceptions.LocationParseError):
        return "its address has no such host"  # the library's text has the address
    reason = getattr(error, "reason", None)
    return short(str(reason) if isinstance(reason, Exception) else str(error)) or type(error).__name__
