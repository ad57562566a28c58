"""The content store against a daemon that answers like Kubo, and against servers that are not what they seem.

Identifiers are held against another implementation's in `test_store.py`."""

from __future__ import annotations

import gzip
import json
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from tiebreak.store import FolderStore
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.dagpb import RAW, Cid
from tiebreak.store.kubo import KuboStore
from tiebreak.store.store_errors import (
    ContentMissing,
    CorruptBlock,
    StoreError,
    StoreUnavailable,
)

from tests.client.crafted_blocks import Blocks
from tests.client.http_stand_in import Request, endless_body, serving
from tests.client.pinning_stand_in import KuboDaemon

ABSENT = str(Cid.of(b"absent", RAW))


@pytest.fixture
def kubo(kubo_url: str) -> KuboStore:
    return KuboStore(kubo_url, timeout=30.0)


def test_pins_are_kept_by_kubo(tmp_path: Path) -> None:
    daemon = KuboDaemon(Blocks(tmp_path))
    with serving(daemon) as url:
        kubo = KuboStore(url)
        cid = kubo.add_bytes(b"pinned content")
        assert kubo.has(cid) and daemon.pins == {cid}
        kubo.unpin(cid)
        kubo.unpin(cid)
        assert daemon.pins == set()
        kubo.pin(cid)
        kubo.pin(cid)
        assert daemon.pins == {cid} and not kubo.has(ABSENT)
        with pytest.raises(ContentMissing, match="pins it"):
            kubo.pin(ABSENT)
        with pytest.raises(ContentMissing, match=ABSENT):
            kubo.read(ABSENT, max_bytes=10)


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


def test_bytes_that_do_not_have_the_wanted_hash_are_asked_for_again(tmp_path: Path) -> None:
    cid, calls = FolderStore(tmp_path).add_bytes(b"content"), []

    def wrong_once(request: Request) -> None:
        calls.append(1)
        request.send(200, b"content" if len(calls) > 1 else b"contenT")

    with serving(wrong_once) as url:
        assert KuboStore(url).read(cid, max_bytes=100) == b"content"
    with serving(lambda request: request.send(200, b"x")) as url, pytest.raises(CorruptBlock, match="do not have its"):
        KuboStore(url, attempts=1).read(cid, max_bytes=100)


def test_a_daemon_that_sends_without_end_is_cut_off() -> None:
    sent, endless = endless_body()
    with serving(endless) as url, pytest.raises(StoreUnavailable, match="no whole answer"):
        KuboStore(url, attempts=1).read(ABSENT, max_bytes=100)
    assert sent[0] < 1 << 26


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_is_not_followed(status: int) -> None:
    seen: list[Request] = []
    with (
        serving(lambda request: (seen.append(request), request.send(200))[1]) as elsewhere,
        serving(lambda request: request.send(status, Location=elsewhere)) as url,
        pytest.raises(StoreUnavailable, match="does not answer like Kubo's RPC"),
    ):
        KuboStore(url).read(ABSENT, max_bytes=100)
    assert seen == []


def test_a_compressed_body_is_never_unpacked() -> None:
    bomb = gzip.compress(bytes(20 << 20), 9)
    for store_reads in (lambda store: store.read(ABSENT, max_bytes=100), lambda store: store.addresses()):
        with (
            serving(lambda request: request.send(200, bomb, Content_Encoding="gzip")) as url,
            pytest.raises(StoreUnavailable, match="does not answer like Kubo's RPC"),
        ):
            store_reads(KuboStore(url))


X = str(Cid.of(b"x", RAW))


def kubo_answers(request: Request, **answers: object) -> None:
    """Answers as a daemon that has nothing and takes everything, but for `answers` by command."""
    command = request.path.split("?")[0].removeprefix("/api/v0/").replace("/", "_")
    if command == "block_stat" and command not in answers:
        return request.send(500, b'{"Message": "block was not found locally (offline)"}')
    answer = answers.get(command, {"Key": X, "Pins": [X]})
    return request.send(200, answer if isinstance(answer, bytes) else json.dumps(answer).encode())


@pytest.mark.parametrize("key", [ABSENT, 7, None, [X], X[:-1]])
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


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"", b"\xff\xfe", b'{"Key": "Qm"}' * 3, b'{"Message": {"a": 1}}', b"[" * 1_000_000]
)
def test_a_server_that_is_not_kubo_is_one_clear_error(body: bytes, status: int) -> None:
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


def test_an_addition_that_was_cut_off_sends_only_the_rest(tmp_path: Path) -> None:
    daemon = KuboDaemon(Blocks(tmp_path))
    daemon.breaks_at = 15
    data = random.Random(5).randbytes(30 * CHUNK)
    with serving(daemon) as url:
        with pytest.raises(StoreUnavailable):
            KuboStore(url, attempts=1).add_bytes(data)
        before, daemon.sent, daemon.breaks_at = daemon.sent, [], 0
        stored = {cid for cid in before if daemon.folder.has(cid)}
        assert 5 < len(stored) < 28
        cid = KuboStore(url, attempts=1).add_bytes(data)
        assert not stored & set(daemon.sent) and len(stored | set(daemon.sent)) == 31
        assert KuboStore(url).read(cid, max_bytes=len(data)) == data


def test_an_addition_ends_at_once_when_told_to_stop() -> None:
    stop, over = threading.Event(), threading.Event()
    with serving(lambda request: (over.wait(10), None)[1]) as url:
        threading.Timer(0.1, stop.set).start()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"stopped.*run the same command again"):
            KuboStore(url, stop=stop).add_bytes(random.Random(1).randbytes(30 * CHUNK))
        assert time.monotonic() - started < 1.0
        over.set()
