"""A chain behind HTTP on the loopback interface, in JSON-RPC, for programs of this machine.

Every local program may move the chain's clock. Web pages may not: requests that a browser would send across sites (any
Origin, other Content-Types, foreign Host names) are refused.
"""

from __future__ import annotations

import json

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tiebreak.http_server import LocalServer, ServingError, read_body
from tiebreak.rpc.chain_errors import ChainError, DevnetError, RpcRefused
from tiebreak.rpc.transport import Transport

MAX_REQUEST = 2 * 1024 * 1024
"""Largest request that is read, in bytes: several times the largest transaction."""


def serve_chain(chain: Transport, port: int = 0) -> LocalServer:
    """Serve a chain at http://127.0.0.1:`port` (0: any free port), until `stop`. Raises DevnetError when the port
    cannot be had."""

    async def answer(request: Request) -> Response:
        try:
            body = await read_body(request, MAX_REQUEST)
        except ValueError:
            return JSONResponse(_error(None, -32600, f"send at most {MAX_REQUEST} bytes"), 413)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" or "origin" in request.headers:
            return JSONResponse(_error(None, -32600, "only local programs may ask, for application/json"), 403)
        return JSONResponse(await run_in_threadpool(_perform, chain, body))

    try:
        return LocalServer(Starlette(routes=[Route("/", answer, methods=["POST"])]), port, "devnet")
    except ServingError as error:
        raise DevnetError(str(error)) from error


def _perform(chain: Transport, body: bytes) -> dict[str, object]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return _error(None, -32700, "not JSON")
    if not isinstance(request, dict):
        return _error(None, -32600, "one request object a time")
    request_id, method, params = request.get("id"), request.get("method"), request.get("params", [])
    if not isinstance(request_id, (int, str)) or not isinstance(method, str) or not isinstance(params, list):
        return _error(None, -32600, "not a JSON-RPC request")
    try:
        return {"jsonrpc": "2.0", "id": request_id, "result": chain.request(method, params)}
    except RpcRefused as error:
        return {"jsonrpc": "2.0", "id": request_id, "error": error.as_json()}
    except ChainError as error:
        return _error(request_id, -32000, str(error))


def _error(request_id: object, code: int, message: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
