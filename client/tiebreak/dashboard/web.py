"""The site over HTTP: a Starlette application that answers GET and HEAD on the loopback interface, and nothing else.

Every answer carries a Content-Security-Policy that allows no scripts, styles or connections but the site's own. The
name in the Host header has to be this machine's, so that no foreign page can reach the site through a name of its own
(DNS rebinding). Its server is uvicorn, in this thread or beside it.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from tiebreak.dashboard import showing
from tiebreak.dashboard.chain_reader import Busy, HeadSnapshot, Missing
from tiebreak.dashboard.site import Site
from tiebreak.http_server import bounded_server, names_this_machine
from tiebreak.quantities import exact_ether, in_utc
from tiebreak.rpc.chain_errors import ChainError

_LOG = logging.getLogger(__name__)
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
    """Return the application of a site that was started."""
    pages = _Pages(site)
    handlers = {
        "/": lambda request: RedirectResponse("/jobs", 307),
        "/jobs": pages.jobs,
        "/jobs/{number}": pages.job,
        "/games/{number}": pages.game,
        "/accounts": pages.accounts,
        "/changes": pages.changes,
        "/static/{name}": pages.static,
    }
    routes = [Route(path, handler, methods=["GET"]) for path, handler in handlers.items()]
    guard = Middleware(BaseHTTPMiddleware, dispatch=_guard)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: pages.refused})


async def _guard(request: Request, answer: RequestResponseEndpoint) -> Response:
    """Add the headers to every answer, and refuse what a page of another site asks for, or asks of another host."""
    given = request.headers
    is_foreign = given.get("sec-fetch-site") in ("cross-site", "same-site")
    found: Response
    if not names_this_machine(given.getlist("host")):
        found = PlainTextResponse("This page is at 127.0.0.1 only.", 400)
    elif is_foreign and given.get("sec-fetch-mode") != "navigate":
        found = PlainTextResponse("This page answers to itself only.", 403)
    else:
        found = await answer(request)
    found.headers.update(_HEADERS)
    return found


class _Pages:
    """The handlers. Those that read the chain run in threads, so that none holds up another."""

    def __init__(self, site: Site) -> None:
        self._site = site
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

    def jobs(self, request: Request) -> Response:
        return self._page("jobs.html", "jobs", lambda head: self._site.jobs(head, _page(request)))

    def job(self, request: Request) -> Response:
        number, page = _number(request), _page(request)
        return self._page("job.html", "jobs", lambda head: self._site.job(head, number, page))

    def game(self, request: Request) -> Response:
        number = _number(request)
        return self._page("game.html", "jobs", lambda head: self._site.game(head, number))

    def accounts(self, request: Request) -> Response:
        return self._page("accounts.html", "accounts", self._site.accounts)

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_STATIC[name])

    def changes(self, request: Request) -> Response:
        """Answer with a number that changes when pages should be made anew, and the chain's time."""
        head = self._site.head_monitor.snapshot()
        return JSONResponse({"changes": head.changes, "now": head.now()})

    def refused(self, request: Request, error: Exception) -> Response:
        """Answer a request for a page that is not there, or one that is not allowed."""
        assert isinstance(error, HTTPException)
        said = {
            404: "There is no such page.",
            405: "This page can only be looked at: it has nothing to send to.",
        }.get(error.status_code, "That cannot be answered.")
        return self._render("message.html", "", self._site.head_monitor.snapshot(), {"message": said}, error)

    def _page(self, template: str, section: str, make: Callable[[HeadSnapshot], dict[str, Any]]) -> Response:
        head = self._site.head_monitor.snapshot()
        try:
            return self._render(template, section, head, make(head))
        except Missing as error:
            status, said = 404, str(error)
        except Busy as error:
            status, said = 503, str(error)
        except ChainError as error:
            status, said = 502, f"The page cannot be made: {showing.bounded(str(error), 400)}"
        except Exception as error:
            _LOG.debug("%s could not be made", template, exc_info=True)
            status, said = 500, f"Something went wrong that should not ({type(error).__name__}): please report it."
        return self._render("message.html", section, head, {"message": said}, HTTPException(status))

    def _render(
        self,
        template: str,
        section: str,
        head: HeadSnapshot,
        values: dict[str, Any],
        error: HTTPException | None = None,
    ) -> Response:
        everywhere = {
            "section": section,
            "head": head,
            "now": head.now(),
            "contract": self._site.contract.address,
            "explorer": self._site.explorer,
            "trouble": "",
        }
        page = self._templates.get_template(template).render(everywhere | values)
        return HTMLResponse(page, *((200,) if error is None else (error.status_code, error.headers)))


def _number(request: Request) -> int:
    """Return the number in a path. Raises HTTPException for anything else than a number from 1."""
    text = request.path_params["number"]
    if not _NUMBER.fullmatch(text):
        raise HTTPException(404)
    return int(text)


def _page(request: Request) -> int:
    """Return the page that was asked for; the first one for anything else than a number."""
    text = request.query_params.get("page", "1")
    return int(text) if _NUMBER.fullmatch(text) else 1


def serve(site: Site, listening: socket.socket) -> None:
    """Serve a site on a socket until SIGINT or SIGTERM."""
    site.start()
    try:
        bounded_server(make_app(site)).run(sockets=[listening])
    finally:
        site.close()
