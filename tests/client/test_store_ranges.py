"""Parts of files from stores: few bytes of a long file, from honest stores and from those that are not."""

from __future__ import annotations

import random
import re
import time
import urllib.parse
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tiebreak.store import FolderStore
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.dagpb import FILE, RAW, SYMLINK, Cid, Link, UnixFsNode
from tiebreak.store.gateway import GatewayStore
from tiebreak.store.kubo import KuboStore
from tiebreak.store.replicated_store import ReplicatedStore
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, MalformedContent, StoreError, StoreUnavailable

from tests.client.crafted_blocks import Blocks, everything
from tests.client.http_stand_in import Request, serving
from tests.client.test_store_gateway import answering

DATA = random.Random(5).randbytes(3 * CHUNK + 1000)
FIRST, SIZE = CHUNK - 100, 300
PART = DATA[FIRST : FIRST + SIZE]
"""A part that lies in two leaves."""


def with_ranges(folder: FolderStore, sent: list[tuple[str, int]]) -> Callable[[Request], None]:
    """A gateway to the blocks of a folder that gives parts of raw blocks (RFC 9110, section 14)."""

    def answer(request: Request) -> None:
        cid = Cid.parse(request.path.split("?")[0].removeprefix("/ipfs/"))
        block = folder.block(cid)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if wanted:
            block = block[int(wanted[1]) : int(wanted[2]) + 1]
        sent.append((str(cid), len(block)))
        request.send(206 if wanted else 200, block)

    return answer


def leaf_of(store: Blocks, data: bytes, kind: int) -> tuple[Cid, int]:
    return (store.put(data, RAW) if kind else store.file(data)), len(data)


def tree_of(store: Blocks, data: bytes, rng: random.Random, depth: int) -> tuple[Cid, int]:
    """A file of any shape: leaves raw or not, nodes of a few links."""
    if depth == 0 or len(data) < 4:
        return leaf_of(store, data, rng.randrange(2))
    cuts = [0, *sorted(rng.sample(range(1, len(data)), min(2, len(data) - 1))), len(data)]
    depths = (max(0, depth - rng.randint(1, 2)) for _ in cuts)
    below = [tree_of(store, data[a:b], rng, next(depths)) for a, b in pairwise(cuts)]
    links = tuple(Link(cid, "", size) for cid, size in below)
    node = UnixFsNode(FILE, None, len(data), tuple(size for _, size in below), links)
    return store.node(node), len(data)


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_a_file_of_any_shape_is_that_part(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    store, data = Blocks(tmp_path), rng.randbytes(rng.choice([1, 50, 3000]))
    cid = str(tree_of(store, data, rng, rng.randrange(4))[0])
    assert store.read(cid, max_bytes=3000) == data
    for _ in range(30):
        first = rng.randrange(len(data))
        size = rng.randint(1, len(data) - first)
        assert store.part(cid, first, size) == data[first : first + size]
    for first, size in ((0, len(data) + 1), (len(data), 1), (len(data) - 1, 2), (1 << 62, 5)):
        with pytest.raises(MalformedContent, match=r"has no [0-9]+ bytes: check"):
            store.part(cid, first, size)


def test_a_gateway_with_ranges_sends_no_more_than_is_asked_for(tmp_path: Path) -> None:
    folder, sent = FolderStore(tmp_path / "a"), list[tuple[str, int]]()
    cid = folder.add_bytes(DATA)
    with serving(with_ranges(folder, sent)) as url:
        store = GatewayStore(url)
        assert store.part(cid, FIRST, SIZE) == PART
        assert [size for _, size in sent if size < CHUNK] == [len(folder.block(Cid.parse(cid))), 100, 200]
        sent.clear()
        assert store.part(cid, 7, 16) == DATA[7:23]
        assert [size for _, size in sent] == [16], "the node above is known"


def test_a_gateway_without_ranges_sends_the_leaves_of_the_part(tmp_path: Path) -> None:
    folder, seen = FolderStore(tmp_path / "a"), list[Request]()
    cid = folder.add_bytes(DATA)
    with serving(answering(folder, seen)) as url:
        assert GatewayStore(url).part(cid, FIRST, SIZE) == PART
    assert len(seen) == 3


def test_a_part_of_a_file_in_kubo_comes_without_the_rest(kubo_url: str) -> None:
    store = KuboStore(kubo_url)
    cid = store.add_bytes(DATA)
    assert store.part(cid, FIRST, SIZE) == PART
    with pytest.raises(CorruptBlock, match=r"returned 0 bytes where 9 of"):
        KuboStore(kubo_url, attempts=1).part(cid, len(DATA), 9)
    with pytest.raises(ContentMissing):
        store.part(str(Cid.of(b"no such block", RAW)), 0, 1)


def sending(body: bytes, status: int = 206, **headers: str) -> Callable[[Request], None]:
    return lambda request: request.send(status, body, **headers)


def endless(request: Request) -> None:
    request.send_response(206)
    request.send_header("Connection", "close")
    request.end_headers()
    for _ in range(1 << 12):
        request.wfile.write(bytes(1 << 16))


def dripping(request: Request) -> None:
    request.send_response(206)
    request.send_header("Content-Length", str(SIZE))
    request.end_headers()
    for _ in range(SIZE):
        request.wfile.write(b"x")
        request.wfile.flush()
        time.sleep(0.05)


def cut_off(request: Request) -> None:
    request.send_response(206)
    request.send_header("Content-Length", str(SIZE))
    request.send_header("Connection", "close")
    request.end_headers()
    request.wfile.write(PART[:10])


HOSTILE: dict[str, tuple[Callable[[Request], None], type[StoreError]]] = {
    "wrong bytes": (sending(bytes(SIZE)), CorruptBlock),
    "a byte less": (sending(PART[:-1]), CorruptBlock),
    "a byte more": (sending(PART + b"x"), CorruptBlock),
    "nothing": (sending(b""), CorruptBlock),
    "without end": (endless, CorruptBlock),
    "drips": (dripping, StoreError),
    "cut off": (cut_off, StoreUnavailable),
    "another block": (sending(b"x" * CHUNK, 200), CorruptBlock),
    "redirects": (sending(b"", 302, Location="http://127.0.0.1:1/"), StoreUnavailable),
    "fails": (sending(b"", 503), StoreUnavailable),
    "lost": (sending(b"", 404), ContentMissing),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_gateway_fails_and_the_next_store_is_asked(name: str, tmp_path: Path) -> None:
    answer, error = HOSTILE[name]
    folder = FolderStore(tmp_path / "a")
    leaf = str(Cid.of(DATA[:CHUNK], RAW))
    folder.add_bytes(DATA[:CHUNK])
    part = DATA[:SIZE]
    with serving(answer) as url:
        liar = GatewayStore(url, attempts=1)
        with pytest.raises(error):
            liar.part(leaf, 0, SIZE, is_right=lambda data: data == part, seconds=0.4)
        both = ReplicatedStore([GatewayStore(url, attempts=1), folder], warn=pytest.fail)
        assert both.part(leaf, 0, SIZE, is_right=lambda data: data == part, seconds=0.8) == part


def test_a_whole_block_is_checked_by_its_hash_before_it_is_cut() -> None:
    with serving(sending(b"x" * CHUNK, 200)) as url, pytest.raises(CorruptBlock, match="do not have its hash"):
        GatewayStore(url, attempts=1).part(str(Cid.of(DATA[:CHUNK], RAW)), 0, SIZE)


@pytest.mark.parametrize("body", [bytes(SIZE), PART[:-1], PART + b"x", b"", bytes(1 << 22)])
def test_a_lying_kubo_fails_and_the_next_store_is_asked(body: bytes, tmp_path: Path) -> None:
    folder, asked = FolderStore(tmp_path / "a"), list[dict[str, list[str]]]()
    cid = folder.add_bytes(DATA)

    def lie(request: Request) -> None:
        asked.append(urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query))
        request.send(200, body)

    with serving(lie) as url:
        liar = KuboStore(url, attempts=1)
        with pytest.raises(CorruptBlock):
            liar.part(cid, FIRST, SIZE, is_right=lambda data: data == PART)
        both = ReplicatedStore([liar, folder], warn=pytest.fail)
        assert both.part(cid, FIRST, SIZE, is_right=lambda data: data == PART) == PART
    assert (asked[0]["arg"], asked[0]["offset"], asked[0]["length"]) == ([cid], [str(FIRST)], [str(SIZE)])


def test_all_stores_that_fail_are_named(tmp_path: Path) -> None:
    folder = FolderStore(tmp_path / "a")
    cid = folder.add_bytes(DATA)
    with serving(sending(bytes(SIZE), 200)) as url:
        both = ReplicatedStore([KuboStore(url, attempts=1), folder], warn=pytest.fail)
        for path in (tmp_path / "a" / "blocks").glob("*/*/*"):
            path.unlink()
        with pytest.raises(
            StoreUnavailable, match=r"no store has given 300 bytes from byte .*: Kubo .*; the content st"
        ):
            both.part(cid, FIRST, SIZE, is_right=lambda data: data == PART)


def test_a_damaged_leaf_of_a_folder_is_noticed(tmp_path: Path) -> None:
    folder = FolderStore(tmp_path / "a")
    cid = folder.add_bytes(DATA)
    for path in (tmp_path / "a" / "blocks").glob("*/*/*"):
        if path.stat().st_size == CHUNK:
            path.write_bytes(bytes(CHUNK))
    with pytest.raises(CorruptBlock, match="do not have its hash"):
        folder.part(cid, FIRST, SIZE)


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
            store.part(cid, 3, 9 if "no 12" in why else 5)


def test_a_file_in_tiny_pieces_is_not_followed_piece_by_piece(tmp_path: Path) -> None:
    store = Blocks(tmp_path)
    leaf = store.put(b"x", RAW)
    node = UnixFsNode(FILE, None, 200, (1,) * 200, (Link(leaf, "", 1),) * 200)
    cid = str(store.node(node))
    assert store.part(cid, 5, 60) == b"x" * 60
    with pytest.raises(MalformedContent, match="cut into absurdly small pieces"):
        store.part(cid, 5, 100)


def test_a_directory_is_fetched_without_some_of_its_entries(tmp_path: Path) -> None:
    folder, tree = FolderStore(tmp_path / "store"), tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(DATA)
    (tree / "small").write_bytes(b"x")
    cid = folder.add_directory(tree)
    assert folder.entries(cid) == {"big": folder.address_of_file(tree / "big"), "small": str(Cid.of(b"x", RAW))}
    for path in (tmp_path / "store" / "blocks").glob("*/*/*"):
        if path.stat().st_size == 1000:  # the last leaf
            path.unlink()
    with pytest.raises(ContentMissing):
        folder.get_directory(cid, tmp_path / "back", everything, max_bytes=len(DATA) + 1)
    assert list(tmp_path.glob(".back.*.partial/content/big")), "left for the next attempt"
    assert folder.get_directory(cid, tmp_path / "back", lambda path, names: [{"small": 1}], max_bytes=1) == ["big"]
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["small"]
    with pytest.raises(MalformedContent, match="is not a directory"):
        folder.entries(str(Cid.of(b"x", RAW)))
