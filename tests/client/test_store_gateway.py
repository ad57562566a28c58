"""Reading through trustless gateways: a real Kubo's blocks, and gateways that are not what they seem."""

from __future__ import annotations

import gzip
import random
import socket
import time
from pathlib import Path

import pytest
from tiebreak.store import FolderStore, open_store
from tiebreak.store.dagpb import MAX_BLOCK, RAW, Cid
from tiebreak.store.gateway import GatewayStore
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, StoreError, StoreUnavailable

from tests.client.crafted_blocks import everything
from tests.client.http_stand_in import Request, endless_body, giving_blocks, serving

X = str(Cid.of(b"x", RAW))


def test_a_tree_comes_whole_through_a_gateway(tmp_path: Path) -> None:
    folder, tree = FolderStore(tmp_path / "store"), tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(random.Random(3).randbytes(700_000))
    (tree / "a").write_bytes(b"x")
    cid, seen = folder.add_directory(tree), list[Request]()
    give = giving_blocks(folder)
    with serving(lambda request: (seen.append(request), give(request))[1]) as url:
        store = open_store(f"gateway+{url}")
        store.get_directory(cid, tmp_path / "back", everything, max_bytes=10**6)
        assert store.has(cid) and not store.has(str(Cid.of(b"absent", RAW)))
        with pytest.raises(ContentMissing, match="status 404"):
            store.read(str(Cid.of(b"absent", RAW)), max_bytes=10)
    assert (tmp_path / "back/big").read_bytes() == (tree / "big").read_bytes()
    assert (tmp_path / "back/a").read_bytes() == b"x"
    for request in seen:
        assert request.path.endswith("?format=raw") and request.headers["Accept"] == "application/vnd.ipld.raw"
        assert request.headers["Accept-Encoding"] == "identity" and "Authorization" not in request.headers


def test_other_bytes_are_refused() -> None:
    calls = []

    def lie(request: Request) -> None:
        calls.append(1)
        request.send(200, b"y")

    with serving(lie) as url, pytest.raises(CorruptBlock, match="do not have its hash"):
        GatewayStore(url, attempts=2).read(X, max_bytes=10)
    assert len(calls) == 2


def test_a_body_without_end_is_cut_off() -> None:
    sent, endless = endless_body()
    with serving(endless) as url, pytest.raises(CorruptBlock, match=f"more than {MAX_BLOCK}"):
        GatewayStore(url, attempts=1).read(X, max_bytes=10)
    assert sent[0] < 1 << 26


def test_a_compressed_body_is_never_unpacked() -> None:
    bomb = gzip.compress(bytes(20 << 20), 9)

    def pack(request: Request) -> None:
        request.send(200, bomb, Content_Encoding="gzip")

    with serving(pack) as url, pytest.raises(CorruptBlock):
        GatewayStore(url, attempts=1).read(X, max_bytes=10)


def test_content_that_a_gateway_does_not_have_is_missing() -> None:
    with serving(lambda request: request.send(451)) as url, pytest.raises(ContentMissing, match="451"):
        GatewayStore(url).read(X, max_bytes=10)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "/ipfs/other"])
def test_a_redirect_is_never_followed(place: str) -> None:
    calls = []

    def away(request: Request) -> None:
        calls.append(request.path)
        request.send(302, Location=place)

    with serving(away) as url, pytest.raises(StoreUnavailable, match="redirects to another place"):
        GatewayStore(url).read(X, max_bytes=10)
    assert len(calls) == 1


def test_a_gateway_that_asks_for_patience_is_asked_again() -> None:
    calls = []

    def busy(request: Request) -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            request.send(429, Retry_After="1")
        else:
            request.send(200, b"x")

    with serving(busy) as url:
        assert GatewayStore(url).read(X, max_bytes=10) == b"x"
    assert calls[1] - calls[0] >= 1.0


@pytest.mark.parametrize("header", ["999999999", "-1", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_gateway_cannot_make_us_wait_longer_than_we_have(header: str) -> None:
    with serving(lambda request: request.send(503, Retry_After=header)) as url:
        started = time.monotonic()
        with pytest.raises(StoreError):
            GatewayStore(url).read(X, max_bytes=10, within=0.3)
        assert time.monotonic() - started < 1.0


def test_a_server_that_serves_no_blocks_is_one_clear_error() -> None:
    with (
        serving(lambda request: request.send(400, b"\x1b[2Jevil")) as url,
        pytest.raises(StoreUnavailable, match="use a trustless gateway") as caught,
    ):
        GatewayStore(url).read(X, max_bytes=10)
    assert "\x1b" not in str(caught.value)


def test_nothing_is_added_to_a_gateway() -> None:
    store = GatewayStore("http://127.0.0.1:1")
    for action in (lambda: store.add_bytes(b"x"), lambda: store.pin(X), lambda: store.unpin(X)):
        with pytest.raises(StoreUnavailable, match="can only be read from"):
            action()


@pytest.mark.parametrize(
    "answer",
    [
        b"\x1b[2Jnot HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\ny",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
        b"HTTP/1.1 99999999 \x1b[31mred\r\n\r\n",
        b"",
    ],
)
def test_what_is_no_http_is_one_clear_error(answer: bytes) -> None:
    def say(request: Request) -> None:
        request.connection.sendall(answer)
        request.connection.shutdown(socket.SHUT_RDWR)

    with serving(say) as url, pytest.raises(StoreError) as caught:
        GatewayStore(url, attempts=1, timeout=2.0).read(X, max_bytes=10)
    assert len(str(caught.value)) < 600 and str(caught.value).isprintable()
