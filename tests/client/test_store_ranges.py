"""Parts of files from stores: few bytes of a long file, from honest stores and from those that are not."""

from __future__ import annotations

import random
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

from tests.client.crafted_blocks import Blocks
from tests.client.http_stand_in import Request, giving_blocks, serving

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
