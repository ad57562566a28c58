"""The content store against a real Kubo, and against servers that are not what they seem."""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiebreak.store import FolderStore, open_store
from tiebreak.store.builder import CHUNK, LINKS, build_file
from tiebreak.store.errors import (
    ContentMissing,
    ContentTooLarge,
    CorruptBlock,
    StoreError,
    StoreUnavailable,
    UnsupportedFile,
)
from tiebreak.store.kubo import KuboStore

ABSENT = "QmRQ353oFNqt8zfZ9X1HgRUszwv9RkEEwmMZZkbkYEsybn"


@pytest.fixture
def kubo(kubo_url: str) -> KuboStore:
    return KuboStore(kubo_url, timeout=30.0)


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.mark.parametrize("size", [0, 1, 12, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 17])
def test_a_file_has_the_cid_that_kubo_gives_it(kubo: KuboStore, folder: FolderStore, size: int) -> None:
    data = random.Random(size).randbytes(size)
    cid = kubo.add_bytes(data)
    assert folder.add_bytes(data) == cid
    assert kubo.read(cid, max_bytes=size) == data
    assert folder.read(cid, max_bytes=size) == data


@pytest.mark.parametrize("chunks", [LINKS, LINKS + 1])
def test_a_file_that_fills_or_overflows_one_node_has_kubos_cid(
    kubo: KuboStore, folder: FolderStore, tmp_path: Path, chunks: int
) -> None:
    path = tmp_path / "large"
    path.write_bytes(random.Random(1).randbytes(CHUNK) * (chunks - 1) + b"the end")
    cid = kubo.add_file(path)
    assert folder.add_file(path) == cid
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


def test_a_directory_tree_has_kubos_cid_and_comes_back_whole(
    kubo: KuboStore, folder: FolderStore, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "tree")
    cid = kubo.add_directory(tree)
    assert folder.add_directory(tree) == cid
    kubo.get_directory(cid, tmp_path / "from kubo", max_bytes=10**6)
    folder.get_directory(cid, tmp_path / "from folder", max_bytes=10**6)
    assert contents(tmp_path / "from kubo") == contents(tmp_path / "from folder") == contents(tree)


def test_a_directory_just_below_the_sharding_threshold_has_kubos_cid_and_one_above_is_refused(
    kubo: KuboStore, folder: FolderStore, tmp_path: Path
) -> None:
    tree = tmp_path / "wide"
    tree.mkdir()
    for i in range(1040):  # 1040 entries of 217 + 34 bytes stay below 256 KiB; five more do not
        (tree / f"{i:0217}").write_bytes(b"")
    cid = kubo.add_directory(tree)
    assert folder.add_directory(tree) == cid
    for i in range(1040, 1045):
        (tree / f"{i:0217}").write_bytes(b"")
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


def cid_of(data: bytes) -> str:
    return str(build_file(io.BytesIO(data), lambda _cid, _block: None).cid)


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


def test_a_daemon_that_stores_something_else_is_noticed() -> None:
    answer = json.dumps({"Name": "x", "Hash": ABSENT, "Size": "1"}).encode()
    with (
        server(lambda handler: send(handler, 200, answer)) as url,
        pytest.raises(CorruptBlock, match="stored"),
    ):
        KuboStore(url).add_bytes(b"not that")


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
    expected = cid_of(b"x")

    def flaky(handler: BaseHTTPRequestHandler) -> None:
        nonlocal calls
        calls += 1
        handler.rfile.read1(65536)
        if calls < 3:
            handler.connection.close()
        else:
            send(handler, 200, json.dumps({"Name": "", "Hash": expected, "Size": "9"}).encode())

    with server(flaky) as url:
        assert KuboStore(url).add_bytes(b"x") == expected
    assert calls == 3


def test_the_location_decides_which_store_is_opened(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path / "s"), FolderStore)
    assert isinstance(open_store("http://127.0.0.1:5001"), KuboStore)
    assert isinstance(open_store("/ip4/127.0.0.1/tcp/5001"), KuboStore)
