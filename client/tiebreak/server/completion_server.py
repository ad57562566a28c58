"""The interface over HTTP: a Starlette application on a server of uvicorn. It answers this machine alone unless it is
told to listen elsewhere, where a proxy that encrypts has to stand before it."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tiebreak.http_server import (
    BackgroundServer,
    ServingError,
    bounded_server,
    names_this_machine,
    read_body,
    url_of,
)
from tiebreak.server.completion_bodies import event_of
from tiebreak.server.completion_requests import MAX_REQUEST_BYTES, RequestError, parse_request
from tiebreak.server.text_service import PendingAnswer, TextChangedError, TextService

RECEIPT_HEADER = "Tiebreak-Receipt"
"""Header with the digests of the receipts of an answer's texts, by their places; streams, whose headers go out before
their end, have none."""

T = TypeVar("T")

_BODY_SECONDS = 10.0
"""Time in which the body of a request has to be there."""
_HEALTH = "/health"
_IDLE_CONNECTIONS = 64
"""Connections beside those that wait for answers."""


def make_completion_app(service: TextService) -> Starlette:
    """Return the application of a service that is prepared."""
    handlers = _Handlers(service)
    routes = [
        Route(_HEALTH, handlers.health, methods=["GET"]),
        Route("/v1/completions", partial(handlers.complete, is_chat=False), methods=["POST"]),
        Route("/v1/chat/completions", partial(handlers.complete, is_chat=True), methods=["POST"]),
        Route("/v1/models", handlers.models, methods=["GET"]),
        Route("/v1/models/{name}", handlers.model, methods=["GET"]),
        Route("/v1/receipts/{name}", handlers.receipt, methods=["GET"]),
    ]
    errors = (RequestError, ClientDisconnect, HTTPException, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, _refused))


async def _refused(request: Request, error: Exception) -> Response:
    """Return the answer to a request that has ended with an error: an object as OpenAI's."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)
    if isinstance(error, HTTPException):
        said = {404: "There is nothing at this address: see GET /v1/models.", 405: "This address has another method."}
        message = said.get(error.status_code, "The request cannot be answered.")
        error = RequestError(message, status=error.status_code, headers=error.headers)
    return _refusal(error if isinstance(error, RequestError) else _internal(error))


class GuardedApplication:
    """An application for requests that may come in, and refusals for others."""

    def __init__(
        self, app: ASGIApp, *, loopback: bool, origins: Sequence[str] = (), api_key: bytes | None = None
    ) -> None:
        """loopback: whether requests have to name this machine as their host. origins: those of the web pages that may
        read the answers. api_key: what all requests have to bring but those for the server's health."""
        self._app, self._loopback, self._origins = app, loopback, [[origin] for origin in origins]
        self._key_sha256 = None if api_key is None else sha256(api_key).digest()
        told = (RECEIPT_HEADER, "Retry-After")
        self._for_pages = CORSMiddleware(
            self._locked, origins, ("GET", "POST"), ("*",), allow_private_network=True, expose_headers=told
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        app: ASGIApp = self._locked
        if self._loopback and not names_this_machine(headers.getlist("host")):
            # A web page whose own name was made to point here (DNS rebinding) sends that name.
            said = "This server answers to names of this machine alone, as 127.0.0.1."
            app = _refusal(RequestError(said, status=403))
        elif headers.getlist("origin") in self._origins:
            app = self._for_pages
        await app(scope, receive, send)

    async def _locked(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if self._key_sha256 is not None and scope["path"] != _HEALTH:
            given = [one.partition(" ") for one in Headers(scope=scope).getlist("authorization")]
            keys = [key.encode("latin-1") for scheme, _, key in given if scheme.lower() == "bearer"]
            # Hashes of all keys have one length, which tells nothing of this one's.
            if len(given) != 1 or not keys or not compare_digest(sha256(keys[0]).digest(), self._key_sha256):
                said = "The request does not bring this server's API key: send it as Authorization: Bearer <key>."
                more = {"WWW-Authenticate": "Bearer"}
                app = _refusal(RequestError(said, code="invalid_api_key", status=401, headers=more))
        await app(scope, receive, send)


class _Handlers:
    def __init__(self, service: TextService) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:
        return Response()

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        if request.path_params["name"] != self._service.model:
            raise RequestError("This model is not served here.", param="model", code="model_not_found", status=404)
        return JSONResponse(self._model())

    async def receipt(self, request: Request) -> Response:
        index = request.query_params.get("choice", "0")
        place = int(index) if re.fullmatch("[0-9]{1,3}", index, re.ASCII) else -1
        found = await asyncio.to_thread(self._service.receipts.receipt, request.path_params["name"], place)
        if found is None:
            raise RequestError("There is no receipt of this digest, or of this answer's text.", status=404)
        return Response(found, media_type="application/json")

    def _model(self) -> dict[str, object]:
        service = self._service
        return {"id": service.model, "object": "model", "created": service.created, "owned_by": "tiebreak"}

    async def complete(self, request: Request, *, is_chat: bool) -> Response:
        service = self._service
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A page of another site can send other types without asking (CORS).
            raise RequestError("Send the request as application/json.", status=415)
        data = await _body(request)
        asked = parse_request(data, service.model, is_chat=is_chat)
        service.enter()
        try:
            answer = await _unless_gone(request.receive, service.begin(asked, sha256(data).digest()))
        except BaseException:
            service.leave()
            raise
        return _Answered(service, answer)


class _Answered(Response):
    """An answer that is given up once its client is gone."""

    def __init__(self, service: TextService, answer: PendingAnswer) -> None:
        super().__init__()
        self._service, self._answer = service, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(Exception):  # the client is gone, or cannot be told anything
                await _unless_gone(receive, self._give(scope, receive, send))
        finally:
            self._service.leave()

    async def _give(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._answer.request.stream:
            await self._stream(send)
            return
        try:
            body, digests = await self._service.whole(self._answer)
            headers = {RECEIPT_HEADER: ", ".join("0x" + digest.hex() for digest in digests)}
            response = Response(body, media_type="application/json", headers=headers)
        except Exception as error:
            response = _refusal(_internal(error))
        await response(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with aclosing(self._service.events(self._answer)) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            said = event_of(_internal(error).body())
            await send({"type": "http.response.body", "body": said, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work, which is given up once its client is gone. Raises ClientDisconnect then."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await read_body(request, MAX_REQUEST_BYTES)
    except ValueError:
        raise RequestError(f"The request has more than {MAX_REQUEST_BYTES} bytes.", status=413) from None
    except TimeoutError:
        raise RequestError("The request was not there in time.", status=408) from None


def _refusal(error: RequestError) -> JSONResponse:
    return JSONResponse(error.body(), error.status, error.headers)


def _internal(error: Exception) -> RequestError:
    from roundlog.capture import CaptureError
    from roundlog.execution import StoppedError
    from roundlog.generation import FolderError, RequestDroppedError

    if isinstance(error, CaptureError):
        # The model and the prompt were tried before: it is how its tokens are to be chosen.
        reason = " ".join(str(error).split())[:300]
        return RequestError(f"Tokens of this model cannot be chosen so ({reason}): leave top_k, top_p and min_p out.")
    if isinstance(error, StoppedError):
        return RequestError("The model gives a number that is not finite behind this text.", status=500)
    if isinstance(error, TextChangedError):
        return RequestError("The end of this text changes what was sent of it: ask again without stream.", status=500)
    if isinstance(error, FolderError):
        return RequestError(f"The answer cannot be written: {error}.", status=500)
    if isinstance(error, RequestDroppedError):
        return RequestError("The server ends: ask again later.", status=503)
    return RequestError(f"Something went wrong that should not ({type(error).__name__}): please report it.", status=500)


class CompletionServer:
    """A prepared service on a socket. Used in a `with` block, it serves beside; `run` serves in this thread, until a
    signal."""

    def __init__(
        self,
        service: TextService,
        listening: socket.socket,
        *,
        origins: Sequence[str] = (),
        api_key: bytes | None = None,
    ) -> None:
        """origins, api_key: as GuardedApplication has them."""
        self._service, self._socket = service, listening
        loopback = ipaddress.ip_address(listening.getsockname()[0]).is_loopback
        self._server = bounded_server(
            GuardedApplication(make_completion_app(service), loopback=loopback, origins=origins, api_key=api_key),
            service.most_answers + _IDLE_CONNECTIONS,
            grace=5,
        )
        self._beside = BackgroundServer(self._server, listening, "text server")

    @property
    def url(self) -> str:
        """The address of the server, without the path `v1`."""
        return url_of(self._socket)

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._service.close()

    def __enter__(self) -> CompletionServer:
        if not self._beside.start():
            raise ServingError("the server did not start: choose another port with --port.")
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.stop()
        self._service.close()
