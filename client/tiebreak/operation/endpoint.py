"""The endpoint of a role on the loopback interface: `/metrics`, `/health` and `/ready`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping

from tiebreak.loopback import LoopbackHandler, LoopbackServer

_CLOSES_WITHIN = 0.05  # seconds


class Endpoint:
    """Serves at http://127.0.0.1:`port` (0: any free port) in threads of this process, until `close`.

    `metrics`: the text of `/metrics` and its type. `health`: what `/health` and `/ready` say, by their paths: whether
    all is well (200) or not (503), and the facts, as JSON. Raises OSError where the port cannot be had.
    """

    def __init__(
        self,
        port: int,
        metrics: Callable[[], tuple[str, bytes]],
        health: Mapping[str, Callable[[], tuple[bool, dict[str, object]]]],
    ) -> None:
        handler = type("Handler", (_Handler,), {"metrics": staticmethod(metrics), "health": health})
        self._server = LoopbackServer(port, handler)
        threading.Thread(
            target=self._server.serve_forever, args=(_CLOSES_WITHIN,), name="endpoint", daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(LoopbackHandler):
    metrics: Callable[[], tuple[str, bytes]]
    health: Mapping[str, Callable[[], tuple[bool, dict[str, object]]]]

    def do_GET(self) -> None:
        self.has_request()
        if not self.is_for_this_machine():
            self._answer(403, "text/plain", b"only local programs may ask\n")
        elif self.path == "/metrics":
            kind, text = self.metrics()
            self._answer(200, kind, text)
        elif self.path in self.health:
            is_well, facts = self.health[self.path]()
            body = json.dumps({"ok": is_well} | facts).encode() + b"\n"
            self._answer(200 if is_well else 503, "application/json", body)
        else:
            self._answer(404, "text/plain", b"there is /metrics, /health and /ready\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
