"""Reading through trustless gateways: blocks and parts of files, and gateways that are not what they seem."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tiebreak.store import FolderStore, open_store
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.dagpb import FILE, MAX_BLOCK, RAW, SYMLINK, Cid, Link, UnixFsNode
from tiebreak.store.gateway import GatewayStore
from tiebreak.store.kubo import KuboStore
from tiebreak.store.replicated_store import ReplicatedStore
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, MalformedContent, StoreError, StoreUnavailable

from tests.client.crafted_blocks import Blocks, everything
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


@pytest.mark.parametrize(
    "answer",
    [
        b"\x1b[2Jnot HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n",
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


# Parts of files: few bytes of a long one, from honest stores and from those that are not.


DATA = random.Random(5).randbytes(3 * CHUNK + 1000)
FIRST, SIZE = CHUNK - 100, 300
PART = DATA[FIRST : FIRST + SIZE]
"""A part that lies in two leaves."""


def is_part(data: bytes) -> bool:
    return data == PART


def tree_of(store: Blocks, data: bytes, rng: random.Random, depth: int) -> tuple[Cid, int]:
    """A file of any shape: leaves raw or not, nodes of a few links."""
    if depth == 0 or len(data) < 4:
        return (store.put(data, RAW) if rng.randrange(2) else store.file(data)), len(data)
    cuts = [0, *sorted(rng.sample(range(1, len(data)), min(2, len(data) - 1))), len(data)]
    below = [tree_of(store, data[a:b], rng, max(0, depth - rng.randint(1, 2))) for a, b in pairwise(cuts)]
    links = tuple(Link(cid, "", size) for cid, size in below)
    return store.node(UnixFsNode(FILE, None, len(data), tuple(size for _, size in below), links)), len(data)


@pytest.mark.parametrize("seed", range(4))
def test_a_part_of_a_file_of_any_shape_is_that_part(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    store, data = Blocks(tmp_path), rng.randbytes(rng.choice([1, 50, 3000]))
    cid = str(tree_of(store, data, rng, rng.randrange(4))[0])
    assert store.read(cid, max_bytes=3000) == data
    for _ in range(30):
        first = rng.randrange(len(data))
        size = rng.randint(1, len(data) - first)
        assert store.part(cid, first, size, is_right=bool) == data[first : first + size]
    for first, size in ((0, len(data) + 1), (len(data), 1), (len(data) - 1, 2), (1 << 62, 5)):
        with pytest.raises(MalformedContent, match=r"has no [0-9]+ bytes: check"):
            store.part(cid, first, size, is_right=bool)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_gateway_sends_the_leaves_of_a_part_or_no_more_than_is_asked_for(tmp_path: Path, ranges: bool) -> None:
    folder, sent = FolderStore(tmp_path / "a"), list[int]()
    cid = folder.add_bytes(DATA)
    with serving(giving_blocks(folder, ranges=ranges, sent=sent)) as url:
        store = GatewayStore(url)
        assert store.part(cid, FIRST, SIZE, is_right=is_part) == PART
        assert sent[1:] == ([100, 200] if ranges else [CHUNK, CHUNK])
        sent.clear()
        assert store.part(cid, 7, 16, is_right=bool) == DATA[7:23]
        assert sent == [16 if ranges else CHUNK], "the node above is known"


def test_a_part_of_a_file_in_kubo_comes_without_the_rest(kubo_url: str) -> None:
    store = KuboStore(kubo_url)
    cid = store.add_bytes(DATA)
    assert store.part(cid, FIRST, SIZE, is_right=is_part) == PART
    with pytest.raises(MalformedContent, match=r"has no [0-9]+ bytes"):
        store.part(cid, len(DATA), 9, is_right=bool)
    with pytest.raises(ContentMissing):
        store.part(str(Cid.of(b"no such block", RAW)), 0, 1, is_right=bool)


def sending(body: bytes, status: int = 206, **headers: str) -> Callable[[Request], None]:
    return lambda request: request.send(status, body, **headers)


HOSTILE: dict[str, tuple[Callable[[Request], None], type[StoreError]]] = {
    "wrong bytes": (sending(bytes(SIZE)), StoreError),
    "a byte less": (sending(PART[:-1]), CorruptBlock),
    "another block": (sending(b"x" * CHUNK, 200), CorruptBlock),
    "redirects": (sending(b"", 302, Location="http://127.0.0.1:1/"), StoreUnavailable),
    "lost": (sending(b"", 404), ContentMissing),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_gateway_fails_and_the_next_store_is_asked(name: str, tmp_path: Path) -> None:
    answer, error = HOSTILE[name]
    folder = FolderStore(tmp_path / "a")
    leaf, part = folder.add_bytes(DATA[:CHUNK]), DATA[:SIZE]
    with serving(answer) as url:
        with pytest.raises(error):
            GatewayStore(url, attempts=1).part(leaf, 0, SIZE, is_right=lambda data: data == part, within=0.4)
        both = ReplicatedStore([GatewayStore(url, attempts=1), folder], warn=pytest.fail)
        assert both.part(leaf, 0, SIZE, is_right=lambda data: data == part, within=0.8) == part


class Short(FolderStore):
    """A store whose parts of blocks lack their last byte."""

    def _leaf(self, cid: Cid, first: int, size: int, seconds: float | None) -> bytes:
        return super()._leaf(cid, first, size, seconds)[:-1]


def test_a_part_that_is_not_right_comes_from_whole_blocks_or_is_refused(tmp_path: Path) -> None:
    folder = FolderStore(tmp_path / "a")
    assert Short(tmp_path / "a").part(folder.add_bytes(DATA), FIRST, SIZE, is_right=is_part) == PART
    with pytest.raises(CorruptBlock, match=f"returned other bytes than those from byte {FIRST} of"):
        folder.part(folder.add_bytes(DATA[::-1]), FIRST, SIZE, is_right=is_part)


def test_blocks_that_form_no_file_are_refused(tmp_path: Path) -> None:
    store = Blocks(tmp_path)
    ten = store.file(bytes(10))

    def node(*children: tuple[Cid, int], size: int | None = None) -> str:
        sizes = tuple(count for _, count in children)
        links = tuple(Link(cid, "", count) for cid, count in children)
        return str(store.node(UnixFsNode(FILE, None, sum(sizes) if size is None else size, sizes, links)))

    deep = ten
    for _ in range(20):
        deep = Cid.parse(node((deep, 10)))
    for cid, why in (
        (node((ten, 11)), "another size than its parent promises"),
        (node((store.put(bytes(10), RAW), 12)), "has no 12 bytes"),
        (node((ten, 10), size=99), "promises 99 bytes but holds 10"),
        (str(deep), "nests deeper than"),
        (str(store.directory(("a", ten))), "is a directory"),
        (str(store.node(UnixFsNode(SYMLINK, b"/etc/passwd", None))), "is a symbolic link"),
    ):
        with pytest.raises(StoreError, match=why):
            store.part(cid, 3, 9 if "no 12" in why else 5, is_right=bool)
    leaf = store.put(b"x", RAW)
    tiny = str(store.node(UnixFsNode(FILE, None, 200, (1,) * 200, (Link(leaf, "", 1),) * 200)))
    assert store.part(tiny, 5, 60, is_right=bool) == b"x" * 60
    with pytest.raises(MalformedContent, match="cut into absurdly small pieces"):
        store.part(tiny, 5, 100, is_right=bool)


def test_the_entries_of_a_directory_have_the_addresses_of_their_files(tmp_path: Path) -> None:
    folder, tree = FolderStore(tmp_path / "store"), tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(DATA)
    (tree / "small").write_bytes(b"x")
    cid = folder.add_directory(tree)
    assert folder.entries(cid) == {"big": folder.address_of_file(tree / "big"), "small": str(Cid.of(b"x", RAW))}
    with pytest.raises(MalformedContent, match="is not a directory"):
        folder.entries(str(Cid.of(b"x", RAW)))


@pytest.mark.parametrize(
    "address",
    [
        "http://user:hunter2@127.0.0.1:5001",
        "gateway+http://user:hunter2@127.0.0.1:1/x?key=hunter2",
        "/dns4/u:hunter2@x/tcp/5001",
    ],
)
def test_secrets_in_the_address_of_a_store_are_not_shown(address: str) -> None:
    with pytest.raises(StoreUnavailable, match="address") as caught:
        open_store(address)
    assert "hunter2" not in str(caught.value)
