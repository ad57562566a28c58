"""The embedded chain behind HTTP, on the loopback interface, so that several processes can share it.

For development only: every local program may move its clock. Web pages may not: requests that a browser would send
across sites (any Origin, other Content-Types, foreign Host names) are refused.
"""

from __future__ import annotations

import errno
import json
import threading
from typing import ClassVar

from tiebreak.loopback import LoopbackHandler, LoopbackServer
from tiebreak.rpc.chain_errors import ChainError, DevnetError, RpcRefused
from tiebreak.rpc.transport import Transport

MAX_REQUEST = 2 * 1024 * 1024
"""Largest request that is read, in bytes: several times the largest transaction."""

_CLOSES_WITHIN = 0.05  # seconds


class RpcServer:
    """Serves `chain` at http://127.0.0.1:`port` (0: any free port) in threads of this process, until `close`.

    Raises DevnetError when the port is taken.
    """

    def __init__(self, chain: Transport, port: int = 0) -> None:
        handler = type("Handler", (_Handler,), {"chain": chain})
        try:
            self._server = LoopbackServer(port, handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise port_taken(port) from error
            raise DevnetError(f"port {port} cannot be used ({error.strerror}): choose another.") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_CLOSES_WITHIN,), name="devnet", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def port_taken(port: int) -> DevnetError:
    """The error for a port that another program has."""
    return DevnetError(f"port {port} is taken: choose another, or stop what listens there.")


class _Handler(LoopbackHandler):
    chain: Transport
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = 30.0
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > MAX_REQUEST:
            self._answer(413, _error(None, -32600, f"send at most {MAX_REQUEST} bytes, with their Content-Length"))
            return
        body = self.rfile.read(int(length))
        self.has_request()
        if not self._is_local():
            self._answer(403, _error(None, -32600, "only local programs may ask, with Content-Type application/json"))
            return
        self._answer(200, self._perform(body))

    def _is_local(self) -> bool:
        kind = self.headers.get("Content-Type", "").split(";")[0].strip().lower()
        return self.is_for_this_machine() and kind == "application/json" and "Origin" not in self.headers

    def _perform(self, body: bytes) -> dict[str, object]:
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
            return {"jsonrpc": "2.0", "id": request_id, "result": self.chain.request(method, params)}
        except RpcRefused as error:
            return {"jsonrpc": "2.0", "id": request_id, "error": error.as_json()}
        except ChainError as error:
            return _error(request_id, -32000, str(error))

    def _answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status != 200:
            # The rest of the request was not read, so the connection cannot be used again.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _error(request_id: object, code: int, message: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
