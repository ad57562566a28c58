"""The content store against a real Kubo, and against servers that are not what they seem."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from tiebreak.store import FolderStore, open_store
from tiebreak.store.dag_builder import CHUNK, LINKS
from tiebreak.store.dagpb import DAG_PB, RAW, Cid
from tiebreak.store.kubo import KuboStore
from tiebreak.store.store_errors import (
    ContentMissing,
    ContentTooLarge,
    CorruptBlock,
    StoreError,
    StoreUnavailable,
    UnsupportedFile,
)

from tests.client.crafted_blocks import everything

ABSENT = str(Cid.of(b"absent", RAW))


@pytest.fixture
def kubo(kubo_url: str) -> KuboStore:
    return KuboStore(kubo_url, timeout=30.0)


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def exported(url: str, cid: str, path: Path) -> Path:
    """Content as Kubo's own reader gives it."""
    answer = requests.post(f"{url}/api/v0/get", params={"arg": cid, "output": str(path)}, timeout=60)
    assert answer.status_code == 200, answer.text
    return path


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_kubo_reads_what_was_added(
    kubo: KuboStore, kubo_url: str, folder: FolderStore, tmp_path: Path, size: int
) -> None:
    data = random.Random(size).randbytes(size)
    cid = kubo.add_bytes(data)
    assert cid.startswith("baf") and folder.add_bytes(data) == cid
    assert exported(kubo_url, cid, tmp_path / "from kubo").read_bytes() == data
    assert kubo.read(cid, max_bytes=size) == data
    assert folder.read(cid, max_bytes=size) == data


@pytest.mark.parametrize("size", [0, 12, CHUNK + 1])
def test_what_kubo_adds_with_older_identifiers_is_read(kubo: KuboStore, kubo_url: str, size: int) -> None:
    data = random.Random(size).randbytes(size)
    how = {"chunker": "size-262144", "raw-leaves": "false", "cid-version": "0", "hash": "sha2-256"}
    answer = requests.post(f"{kubo_url}/api/v0/add", params=how, files={"file": ("x", data)}, timeout=60)
    cid = answer.json()["Hash"]
    assert cid.startswith("Qm") and kubo.read(cid, max_bytes=size) == data


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [LINKS, LINKS + 1])
def test_a_file_that_fills_or_overflows_one_node_is_read_by_kubo(
    kubo: KuboStore, kubo_url: str, folder: FolderStore, tmp_path: Path, chunks: int
) -> None:
    path = tmp_path / "large"
    path.write_bytes(random.Random(1).randbytes(CHUNK) * (chunks - 1) + b"the end")
    cid = kubo.add_file(path)
    assert folder.add_file(path) == cid
    assert exported(kubo_url, cid, tmp_path / "from kubo").read_bytes() == path.read_bytes()
    kubo.get_file(cid, tmp_path / "back", max_bytes=path.stat().st_size)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def make_tree(path: Path) -> Path:
    (path / "sub" / "deeper").mkdir(parents=True)
    (path / "empty").mkdir()
    (path / "a.json").write_text("{}")
    (path / "B").write_bytes(b"")
    (path / "größe — 大").write_bytes(b"unicode name")
    (path / "sub" / "big").write_bytes(random.Random(2).randbytes(CHUNK + 5))
    (path / "sub" / "deeper" / "x").write_bytes(b"hello world\n")
    return path


def contents(path: Path) -> dict[str, bytes | None]:
    return {str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else None for entry in path.rglob("*")}


def test_a_directory_tree_is_read_by_kubo_and_its_files_come_back_whole(
    kubo: KuboStore, kubo_url: str, folder: FolderStore, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "tree")
    cid = kubo.add_directory(tree)
    assert folder.add_directory(tree) == cid
    assert contents(exported(kubo_url, cid, tmp_path / "by kubo")) == contents(tree)
    shutil.rmtree(tree / "sub")
    (tree / "empty").rmdir()
    cid = kubo.add_directory(tree)
    kubo.get_directory(cid, tmp_path / "from kubo", everything, max_bytes=10**6)
    folder.add_directory(tree)
    folder.get_directory(cid, tmp_path / "from folder", everything, max_bytes=10**6)
    assert contents(tmp_path / "from kubo") == contents(tmp_path / "from folder") == contents(tree)


@pytest.mark.slow
def test_a_directory_just_below_the_sharding_threshold_is_one_block_and_one_above_is_refused(
    kubo: KuboStore, kubo_url: str, folder: FolderStore, tmp_path: Path
) -> None:
    tree = tmp_path / "wide"
    tree.mkdir()
    for i in range(1036):  # 1036 entries of 217 + 36 bytes stay below 256 KiB; one more does not
        (tree / f"{i:0217}").write_bytes(b"")
    cid = kubo.add_directory(tree)
    assert folder.add_directory(tree) == cid
    assert len(list(exported(kubo_url, cid, tmp_path / "by kubo").iterdir())) == 1036
    (tree / f"{1036:0217}").write_bytes(b"")
    for store in (kubo, folder):
        with pytest.raises(ContentTooLarge, match="subdirectories"):
            store.add_directory(tree)


def test_pins_are_kept_by_kubo(kubo: KuboStore) -> None:
    cid = kubo.add_bytes(b"pinned content")
    assert kubo.has(cid)
    kubo.unpin(cid)
    kubo.unpin(cid)
    kubo.pin(cid)
    kubo.pin(cid)
    assert not kubo.has(ABSENT)
    with pytest.raises(ContentMissing, match="pins it"):
        kubo.pin(ABSENT)
    with pytest.raises(ContentMissing, match=ABSENT):
        kubo.read(ABSENT, max_bytes=10)


def test_a_symbolic_link_is_refused_before_anything_is_sent(kubo: KuboStore, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    (tree / "link").symlink_to("/etc/passwd")
    with pytest.raises(UnsupportedFile, match="link"):
        kubo.add_directory(tree)


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()


def read_request(handler: BaseHTTPRequestHandler) -> bytes:
    return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def test_no_daemon_is_one_clear_error(tmp_path: Path) -> None:
    store = KuboStore("http://127.0.0.1:1", attempts=2)
    for action in (
        lambda: store.add_bytes(b"x"),
        lambda: store.read(ABSENT, max_bytes=1),
        lambda: store.has(ABSENT),
    ):
        with pytest.raises(StoreUnavailable, match="ipfs daemon"):
            action()


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://", "/ip4/127.0.0.1/udp/5001", "/ip4/nowhere", "x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(StoreUnavailable, match="address of a Kubo RPC"):
        KuboStore(address)


def test_bytes_that_do_not_have_the_wanted_hash_are_refused() -> None:
    with (
        server(lambda handler: send(handler, 200, b"something else")) as url,
        pytest.raises(CorruptBlock, match="do not have its hash"),
    ):
        KuboStore(url).read(ABSENT, max_bytes=100)


def test_an_error_that_nests_for_ever_is_an_error_like_any_other() -> None:
    with server(lambda handler: send(handler, 500, b"[" * 1_000_000)) as url, pytest.raises(StoreError):
        KuboStore(url, attempts=1).read(ABSENT, max_bytes=100)


def test_a_daemon_that_sends_without_end_is_cut_off() -> None:
    sent = 0

    def endless(handler: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.end_headers()
        try:
            while sent < 1 << 30:
                handler.wfile.write(bytes(1 << 16))
                sent += 1 << 16
        except OSError:
            pass

    with server(endless) as url, pytest.raises(CorruptBlock, match="more than"):
        KuboStore(url).read(ABSENT, max_bytes=100)
    assert sent < 1 << 26


def kubo_answers(handler: BaseHTTPRequestHandler, **answers: object) -> None:
    """Answers as a daemon that has nothing and takes everything, but for `answers` by command."""
    command = handler.path.split("?")[0].removeprefix("/api/v0/").replace("/", "_")
    read_request(handler)
    if command == "block_stat" and command not in answers:
        return send(handler, 500, b'{"Message": "block was not found locally (offline)"}')
    answer = answers.get(command, {"Key": X, "Pins": [X]})
    return send(handler, 200, answer if isinstance(answer, bytes) else json.dumps(answer).encode())


X = str(Cid.of(b"x", RAW))


@pytest.mark.parametrize("key", [ABSENT, "Qm", 7, None, [X], X[:-1]])
def test_a_daemon_that_stores_something_else_is_noticed(key: object) -> None:
    with (
        server(lambda handler: kubo_answers(handler, block_put={"Key": key})) as url,
        pytest.raises(CorruptBlock, match="did not store"),
    ):
        KuboStore(url, attempts=1).add_bytes(b"x")


@pytest.mark.parametrize("answer", [{}, {"Pins": []}, {"Pins": [ABSENT]}, {"Pins": X}, {"Pins": [X, X]}, b"[]"])
def test_a_pin_that_is_not_confirmed_is_none(answer: object) -> None:
    with (
        server(lambda handler: kubo_answers(handler, pin_add=answer)) as url,
        pytest.raises(StoreUnavailable, match="does not answer like"),
    ):
        KuboStore(url, attempts=1).add_bytes(b"x")


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"Hash": 7}', b"", b"\xff\xfe", b"1", b'{"Hash": "Qm"}' * 3]
)
def test_a_server_that_is_not_kubo_is_one_clear_error(body: bytes) -> None:
    with server(lambda handler: send(handler, 200, body)) as url, pytest.raises(StoreError):
        KuboStore(url, attempts=1).add_bytes(b"x")


@pytest.mark.parametrize("body", [b"<html>", b'{"Message": {"a": 1}}', b'{"Message": "disk is full"}', b""])
def test_an_error_status_is_one_clear_error(body: bytes) -> None:
    with server(lambda handler: send(handler, 500, body)) as url, pytest.raises(StoreError):
        KuboStore(url, attempts=1).add_bytes(b"x")


def test_a_connection_that_breaks_is_tried_again() -> None:
    calls = 0

    def flaky(handler: BaseHTTPRequestHandler) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            handler.connection.close()
        else:
            kubo_answers(handler)

    with server(flaky) as url:
        assert KuboStore(url).add_bytes(b"x") == X
    assert calls == 5


def test_an_addition_that_was_cut_off_sends_only_the_rest() -> None:
    stored: set[str] = set()
    sent: list[str] = []
    fails_at = 10

    def keeps(handler: BaseHTTPRequestHandler) -> None:
        command, _, query = handler.path.removeprefix("/api/v0/").partition("?")
        body = read_request(handler)
        cid = dict(urllib.parse.parse_qsl(query)).get("arg", "")
        if command == "block/stat":
            missing = b'{"Message": "block was not found locally"}'
            send(handler, 200, json.dumps({"Key": cid}).encode()) if cid in stored else send(handler, 500, missing)
        elif command == "block/put":
            block = body.split(b"\r\n\r\n", 1)[1].rsplit(b"\r\n--", 1)[0]
            cid = str(Cid.of(block, RAW if "cid-codec=raw" in query else DAG_PB))
            sent.append(cid)
            if len(sent) == fails_at:
                return handler.connection.close()
            stored.add(cid)
            send(handler, 200, json.dumps({"Key": cid}).encode())
        else:
            send(handler, 200, json.dumps({"Pins": [cid]}).encode())

    data = random.Random(5).randbytes(20 * CHUNK)
    with server(keeps) as url:
        with pytest.raises(StoreUnavailable):
            KuboStore(url, attempts=1).add_bytes(data)
        before, first = set(stored), len(sent)
        assert 5 < len(before) < 15
        cid = KuboStore(url, attempts=1).add_bytes(data)
        assert not before & set(sent[first:])
    assert cid in stored and len(stored) == 21


def test_an_addition_ends_at_once_when_told_to_stop() -> None:
    stop, over = threading.Event(), threading.Event()
    with server(lambda handler: (over.wait(10), None)[1]) as url:
        threading.Timer(0.1, stop.set).start()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"stopped.*run the same command again"):
            KuboStore(url, stop=stop).add_bytes(random.Random(1).randbytes(30 * CHUNK))
        assert time.monotonic() - started < 1.0
        over.set()


def test_the_location_decides_which_store_is_opened(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path / "s"), FolderStore)
    assert isinstance(open_store("http://127.0.0.1:5001"), KuboStore)
    assert isinstance(open_store("/ip4/127.0.0.1/tcp/5001"), KuboStore)
