"""The site over HTTP: a Starlette application that answers GET and HEAD on the loopback interface, and nothing else.

Every answer carries a Content-Security-Policy that allows no scripts, styles or connections but the site's own. The
name in the Host header has to be this machine's, so that no foreign page can reach the site through a name of its own
(DNS rebinding). Its server is uvicorn, in this thread or beside it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiebreak.dashboard import showing
from tiebreak.dashboard.chain_reader import Sight
from tiebreak.dashboard.site import Busy, Missing, Site
from tiebreak.http_server import BackgroundServer, bound_socket, bounded_server, names_this_machine, url_of
from tiebreak.quantities import exact_ether, in_utc
from tiebreak.rpc.chain_errors import ChainError

MOST_STREAMS = 32
"""Event streams that are open at the same time; each further client is told to come back."""

STREAM_SECONDS = 1800.0
"""Length of an event stream; the browser opens the next one by itself."""

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_BEAT_SECONDS = 15.0
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")

_STATIC = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def make_app(site: Site) -> Starlette:
    """The application of a site that was started."""
    pages = _Pages(site)
    routes = [
        Route("/", pages.home, methods=["GET"]),
        Route("/jobs", pages.jobs, methods=["GET"]),
        Route("/jobs/{number}", pages.job, methods=["GET"]),
        Route("/games/{number}", pages.game, methods=["GET"]),
        Route("/accounts", pages.accounts, methods=["GET"]),
        Route("/events", pages.events, methods=["GET"]),
        Route("/static/{name}", pages.static, methods=["GET"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard)], exception_handlers={HTTPException: pages.refused})


class _Guard:
    """Adds the headers to every answer, and refuses what a page of another site asks for, or asks of another host."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the lifespan needs nothing, and websockets are not spoken

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].lower() not in dict(self._headers)]
                message["headers"] = [*kept, *self._headers]
            await send(message)

        if not names_this_machine([value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]):
            await PlainTextResponse("This page is at 127.0.0.1 only.", 400)(scope, receive, guarded)
            return
        given = dict(scope["headers"])
        foreign = given.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
        if foreign and given.get(b"sec-fetch-mode") != b"navigate":
            await PlainTextResponse("This page answers to itself only.", 403)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


class _Pages:
    """The handlers. Those that read the chain run in threads, so that none holds up another."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._streams = 0
        self._static = {name: files("tiebreak.dashboard").joinpath("static", name).read_bytes() for name in _STATIC}
        self._templates = Environment(
            loader=PackageLoader("tiebreak.dashboard"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "ether": showing.ether,
            "exact": exact_ether,
            "span": showing.span,
            "instant": in_utc,
            "hexed": showing.hexed,
            "short": showing.short,
            "words": showing.name_words,
        }

    # Pages.

    def home(self, request: Request) -> Response:
        return RedirectResponse("/jobs", 307)

    def jobs(self, request: Request) -> Response:
        return self._page("jobs.html", "jobs", lambda sight: self._site.jobs(sight, _page(request)))

    def job(self, request: Request) -> Response:
        number, page = _number(request), _page(request)
        return self._page("job.html", "jobs", lambda sight: self._site.job(sight, number, page))

    def game(self, request: Request) -> Response:
        number = _number(request)
        return self._page("game.html", "jobs", lambda sight: self._site.game(sight, number))

    def accounts(self, request: Request) -> Response:
        return self._page("accounts.html", "accounts", lambda sight: self._site.accounts(sight))

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_STATIC[name])

    def refused(self, request: Request, error: Exception) -> Response:
        """Answer to a request for a page that is not there, or to one that is not allowed."""
        assert isinstance(error, HTTPException)
        said = {
            404: "There is no such page.",
            405: "This page can only be looked at: it has nothing to send to.",
        }.get(error.status_code, "That cannot be answered.")
        sight, headers = self._site.head_monitor.sight(), dict(error.headers or {})
        return self._render("message.html", "", sight, error.status_code, {"message": said}, headers)

    def _page(self, template: str, section: str, make: Callable[[Sight], dict[str, Any]]) -> Response:
        sight = self._site.head_monitor.sight()
        try:
            made = make(sight)
            return self._render(template, section, sight, 200, made)
        except Missing as error:
            status, said = 404, str(error)
        except Busy as error:
            status, said = 503, str(error)
        except ChainError as error:
            status, said = 502, f"The page cannot be made: {showing.bounded(str(error), 400)}"
        except Exception as error:
            _LOG.debug("%s could not be made", template, exc_info=True)
            status, said = 500, f"Something went wrong that should not ({type(error).__name__}): please report it."
        return self._render("message.html", section, sight, status, {"message": said})

    def _render(
        self,
        template: str,
        section: str,
        sight: Sight,
        status: int,
        values: dict[str, Any],
        headers: dict[str, str] | None = None,
    ) -> Response:
        everywhere = {
            "section": section,
            "sight": sight,
            "now": sight.now(),
            "contract": self._site.contract.address,
            "explorer": self._site.explorer,
            "follows": self._site.local.follows,
            "trouble": "",
        }
        page = self._templates.get_template(template).render(everywhere | values)
        return HTMLResponse(page, status, headers)

    # Liveness.

    async def events(self, request: Request) -> Response:
        """A stream with one short event for every change, which the pages answer by being made anew."""
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse("Too many pages are open at once: close some.", 503, {"Retry-After": "10"})
        self._streams += 1
        return _Stream(self._changes(), self._closed)

    def _closed(self) -> None:
        self._streams -= 1

    async def _changes(self) -> AsyncIterator[str]:
        yield "retry: 3000\n\n"
        told, quiet, left = -1, 0.0, STREAM_SECONDS
        while left > 0:
            sight = self._site.head_monitor.sight()
            if sight.changes != told or quiet >= _BEAT_SECONDS:
                told, quiet = sight.changes, 0.0
                yield f"data: {json.dumps({'changes': told, 'block': sight.number, 'now': sight.now()})}\n\n"
            await asyncio.sleep(_LOOK_SECONDS)
            quiet, left = quiet + _LOOK_SECONDS, left - _LOOK_SECONDS


class _Stream(StreamingResponse):
    """An event stream that tells when it has ended, by either side."""

    def __init__(self, content: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def _number(request: Request) -> int:
    """The number in a path. Raises HTTPException for anything else than a number from 1."""
    text = request.path_params["number"]
    if not _NUMBER.fullmatch(text):
        raise HTTPException(404)
    return int(text)


def _page(request: Request) -> int:
    """The page that was asked for; the first one for anything else than a number."""
    text = request.query_params.get("page", "1")
    return int(text) if _NUMBER.fullmatch(text) else 1


class ServerError(Exception):
    """The page cannot be served at this address; the message is one sentence."""


def listen(host: str, port: int) -> socket.socket:
    """A socket on the loopback interface. `port` 0: any free one. Raises ServerError for any other interface, or a
    port that is taken."""
    try:
        where = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ServerError(f"{host!r} is not an address of this machine alone: use 127.0.0.1.") from None
    if not where.is_loopback:
        raise ServerError(
            f"{where} can be reached from other machines, and the page has no password: use 127.0.0.1, and a tunnel "
            "(ssh -L) from elsewhere."
        )
    try:
        return bound_socket(where, port)
    except OSError as error:
        raise ServerError(
            f"port {port} of {where} cannot be used ({error.strerror}): choose another with --port, or 0 for any."
        ) from error


class Server:
    """A site on a socket. Used in a `with` block, it serves beside; `run` serves in this thread, until a signal."""

    def __init__(self, site: Site, listening: socket.socket) -> None:
        self._site = site
        self._socket = listening
        self._server = bounded_server(make_app(site))
        self._beside = BackgroundServer(self._server, listening, "dashboard")

    @property
    def url(self) -> str:
        """The address of the page."""
        return url_of(self._socket)

    def run(self) -> None:
        """Serves until SIGINT or SIGTERM."""
        self._site.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._site.close()

    def __enter__(self) -> Server:
        self._site.start()
        if not self._beside.start():
            raise ServerError("the page's server did not start: choose another port with --port.")
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.stop()
        self._site.close()
