"""A pinning service of a test, which keeps the rules of the specification and fails as told."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import urllib.parse
from typing import Any

from tiebreak.store.dagpb import Cid

from tests.client.http_stand_in import Request

TOKEN = "a-secret.token~of+40/characters=1234567890"


class Service:
    """A pinning service in memory. `states`: what a new request passes through, one state a look. `faults`: answers in
    place of the next ones, by status."""

    def __init__(self, *states: str) -> None:
        self.states = states or ("queued", "pinning", "pinned")
        self.pins: dict[str, dict[str, Any]] = {}
        self.faults: list[int] = []
        self.posted = 0
        self.looks: dict[str, int] = {}
        self.lose_answers = False
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> None:
        with self._lock:
            self._answer(request)

    def add(self, cid: str, name: str, state: str = "pinned") -> str:
        number = f"request/{next(self._numbers)}=="
        self.pins[number] = {"cid": cid, "name": name}
        self.looks[number] = len(self.states) if state == "pinned" else 0
        return number

    def _answer(self, request: Request) -> None:
        if self.faults:
            return request.send(self.faults.pop(0), b'{"error": {"reason": "BUSY"}}')
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._send(request, 401, {"error": {"reason": "UNAUTHORIZED", "details": "no such token"}})
        url = urllib.parse.urlsplit(request.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        number = urllib.parse.unquote(url.path.removeprefix("/psa/pins").removeprefix("/"))
        if request.command == "POST":
            wanted = json.loads(request.body)
            assert set(wanted) <= {"cid", "name", "origins", "meta"} and len(wanted["name"]) <= 255
            Cid.parse(wanted["cid"])
            self.posted += 1
            made = self.add(wanted["cid"], wanted["name"], "queued")
            self.pins[made]["origins"] = wanted["origins"]
            if self.lose_answers:
                self.lose_answers = False
                return request.connection.shutdown(socket.SHUT_RDWR)
            return self._send(request, 202, self._status(made))
        if request.command == "GET" and not number:
            assert 1 <= int(query["limit"]) <= 1000
            states = query["status"].split(",")
            found = [self._status(one) for one, pin in self.pins.items() if pin["cid"] == query["cid"]]
            results = [one for one in found if one["status"] in states]
            return self._send(request, 200, {"count": len(results), "results": results})
        if number not in self.pins:
            return self._send(request, 404, {"error": {"reason": "NOT_FOUND"}})
        if request.command == "DELETE":
            del self.pins[number]
            return request.send(202)
        self.looks[number] += 1
        return self._send(request, 200, self._status(number))

    def _status(self, number: str) -> dict[str, Any]:
        state = self.states[min(self.looks[number], len(self.states) - 1)]
        info = {"status_details": "no\x1b[2J peers"} if state == "failed" else {}
        return {
            "requestid": number,
            "status": state,
            "created": "2026-11-23T00:00:00Z",
            "pin": self.pins[number],
            "delegates": ["/ip4/192.0.2.9/tcp/4001/p2p/12D3KooW"],
            "info": info,
        }

    @staticmethod
    def _send(request: Request, status: int, content: object) -> None:
        request.send(status, json.dumps(content).encode(), Content_Type="application/json")
