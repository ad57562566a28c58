"""The content store against a real Kubo, and against servers that are not what they seem."""

from __future__ import annotations

import json
import random
import shutil
import socket
import threading
import time
import urllib.parse
from pathlib import Path

import pytest
import requests
from tiebreak.store import FolderStore
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.dagpb import DAG_PB, RAW, Cid
from tiebreak.store.kubo import KuboStore
from tiebreak.store.store_errors import ContentMissing, ContentTooLarge, CorruptBlock, StoreError, StoreUnavailable

from tests.client.crafted_blocks import everything
from tests.client.http_stand_in import Request, serving

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


@pytest.mark.parametrize("size", [0, CHUNK, 3 * CHUNK + 17])
def test_kubo_reads_added_files(kubo: KuboStore, kubo_url: str, folder: FolderStore, tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    cid = kubo.add_bytes(data)
    assert cid.startswith("baf") and folder.add_bytes(data) == cid
    assert exported(kubo_url, cid, tmp_path / "from kubo").read_bytes() == data
    assert kubo.read(cid, max_bytes=size) == data
    assert folder.read(cid, max_bytes=size) == data


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


def test_kubo_reads_a_directory_tree(kubo: KuboStore, kubo_url: str, folder: FolderStore, tmp_path: Path) -> None:
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
def test_a_directory_above_one_block_is_refused(
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


def test_bytes_that_do_not_have_the_wanted_hash_are_asked_for_again(folder: FolderStore) -> None:
    cid, calls = folder.add_bytes(b"content"), []

    def wrong_once(request: Request) -> None:
        calls.append(1)
        request.send(200, b"content" if len(calls) > 1 else b"contenT")

    with serving(wrong_once) as url:
        assert KuboStore(url).read(cid, max_bytes=100) == b"content"
    with serving(lambda request: request.send(200, b"x")) as url, pytest.raises(CorruptBlock, match="do not have its"):
        KuboStore(url, attempts=1).read(cid, max_bytes=100)


X = str(Cid.of(b"x", RAW))


def kubo_answers(request: Request, **answers: object) -> None:
    """Answers as a daemon that has nothing and takes everything, but for `answers` by command."""
    command = request.path.split("?")[0].removeprefix("/api/v0/").replace("/", "_")
    if command == "block_stat" and command not in answers:
        return request.send(500, b'{"Message": "block was not found locally (offline)"}')
    answer = answers.get(command, {"Key": X, "Pins": [X]})
    return request.send(200, answer if isinstance(answer, bytes) else json.dumps(answer).encode())


@pytest.mark.parametrize("key", [ABSENT, 7, None, X[:-1]])
def test_a_daemon_that_stores_something_else_is_noticed(key: object) -> None:
    with (
        serving(lambda request: kubo_answers(request, block_put={"Key": key})) as url,
        pytest.raises(CorruptBlock, match="did not store"),
    ):
        KuboStore(url, attempts=1).add_bytes(b"x")


@pytest.mark.parametrize("answer", [{}, {"Pins": [ABSENT]}, {"Pins": X}, {"Pins": [X, X]}, b"[]"])
def test_a_pin_that_is_not_confirmed_is_none(answer: object) -> None:
    with (
        serving(lambda request: kubo_answers(request, pin_add=answer)) as url,
        pytest.raises(StoreUnavailable, match="does not answer like"),
    ):
        KuboStore(url, attempts=1).add_bytes(b"x")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((200, body) for body in (b"<html>", b"[]", b"", b'{"Key": "Qm"}' * 3, b"[" * 1_000_000)),
        (500, b'{"Message": {"a": 1}}'),
    ],
)
def test_a_server_that_is_not_kubo_is_one_clear_error(status: int, body: bytes) -> None:
    with serving(lambda request: request.send(status, body)) as url, pytest.raises(StoreError):
        KuboStore(url, attempts=1).add_bytes(b"x")


def test_a_connection_that_breaks_is_tried_again() -> None:
    calls = []

    def flaky(request: Request) -> None:
        calls.append(1)
        if len(calls) < 3:
            request.connection.shutdown(socket.SHUT_RDWR)
        else:
            kubo_answers(request)

    with serving(flaky) as url:
        assert KuboStore(url).add_bytes(b"x") == X
    assert len(calls) == 5


def test_an_addition_that_was_cut_off_sends_only_the_rest() -> None:
    stored: set[str] = set()
    sent: list[str] = []

    def keeps(request: Request) -> None:
        command, _, query = request.path.removeprefix("/api/v0/").partition("?")
        cid = dict(urllib.parse.parse_qsl(query)).get("arg", "")
        if command == "block/stat":
            missing = b'{"Message": "block was not found locally"}'
            request.send(200, json.dumps({"Key": cid}).encode()) if cid in stored else request.send(500, missing)
        elif command == "block/put":
            block = request.body.split(b"\r\n\r\n", 1)[1].rsplit(b"\r\n--", 1)[0]
            cid = str(Cid.of(block, RAW if "cid-codec=raw" in query else DAG_PB))
            sent.append(cid)
            if len(sent) == 15:
                return request.connection.shutdown(socket.SHUT_RDWR)
            stored.add(cid)
            request.send(200, json.dumps({"Key": cid}).encode())
        else:
            request.send(200, json.dumps({"Pins": [cid]}).encode())

    data = random.Random(5).randbytes(30 * CHUNK)
    with serving(keeps) as url:
        with pytest.raises(StoreUnavailable):
            KuboStore(url, attempts=1).add_bytes(data)
        before, first = set(stored), len(sent)
        assert 5 < len(before) < 28
        cid = KuboStore(url, attempts=1).add_bytes(data)
        assert not before & set(sent[first:])
    assert cid in stored and len(stored) == 31


def test_an_addition_ends_at_once_when_told_to_stop() -> None:
    stop, over = threading.Event(), threading.Event()
    with serving(lambda request: (over.wait(10), None)[1]) as url:
        threading.Timer(0.1, stop.set).start()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"stopped.*run the same command again"):
            KuboStore(url, stop=stop).add_bytes(random.Random(1).randbytes(30 * CHUNK))
        assert time.monotonic() - started < 1.0
        over.set()
