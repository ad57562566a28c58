"""The embedded content store and hostile content: limits, names, links, sizes, depth, arbitrary bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiebreak.store.dag_reader import DagReader
from tiebreak.store.dagpb import DIRECTORY, FILE, MAX_ENTRIES, SHARDED_DIRECTORY, SYMLINK, Cid, Link, UnixFsNode, encode
from tiebreak.store.store_errors import ContentTooLarge, MalformedContent, UnsafeName, UnsupportedFile

from tests.client.crafted_blocks import Blocks, everything


@pytest.fixture
def store(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path / "store")


def test_a_file_one_byte_above_the_limit_is_refused_before_its_content_is_read(store: Blocks, tmp_path: Path) -> None:
    data = bytes(300_000)
    cid = store.add_bytes(data)
    next(path for path in store._blocks.glob("*/*/*") if path.stat().st_size > 262_000).unlink()
    with pytest.raises(ContentTooLarge, match="300000"):
        store.read(cid, max_bytes=299_999)
    with pytest.raises(ContentTooLarge):
        store.get_file(cid, tmp_path / "x", max_bytes=299_999)
    assert not (tmp_path / "x").exists()


def test_the_limit_of_a_directory_is_the_sum_of_its_files(store: Blocks, tmp_path: Path) -> None:
    cid = store.directory(("a", store.file(bytes(60))), ("b", store.file(bytes(60))))
    store.get_directory(str(cid), tmp_path / "fits", everything, max_bytes=120)
    with pytest.raises(ContentTooLarge):
        store.get_directory(str(cid), tmp_path / "does not", everything, max_bytes=119)
    assert [path.name for path in tmp_path.iterdir() if "does not" in path.name] == []


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "/etc/passwd", "../escape", "a\\b", "nul\0", "line\nfeed", "C:", "é" * 128, "\x7f",
    ],
)  # fmt: skip
def test_names_that_could_escape_or_mislead_are_refused(store: Blocks, tmp_path: Path, name: str) -> None:
    cid = store.directory((name, store.file(b"x")))
    with pytest.raises(UnsafeName):
        store.get_directory(str(cid), tmp_path / "out", everything, max_bytes=10)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_repeated_and_unsorted_names_are_refused(store: Blocks, tmp_path: Path) -> None:
    x = store.file(b"x")
    for names in (("a", "a"), ("b", "a")):
        cid = store.directory(*((name, x) for name in names))
        with pytest.raises(UnsafeName, match="repeated or unsorted names: ask its publisher"):
            store.get_directory(str(cid), tmp_path / "out", everything, max_bytes=10)


def test_a_name_that_is_not_utf8_is_refused(store: Blocks, tmp_path: Path) -> None:
    block = encode(UnixFsNode(DIRECTORY, None, None, (), (Link(store.file(b"x"), "NAME", 1),))).replace(
        b"NAME", b"\xff\xfe\xfd\xfc"
    )
    with pytest.raises(UnsafeName, match="not UTF-8: ask its publisher"):
        store.get_directory(str(store.put(block)), tmp_path / "out", everything, max_bytes=10)


def test_symbolic_links_are_refused_in_both_directions(store: Blocks, tmp_path: Path) -> None:
    link = store.node(UnixFsNode(SYMLINK, b"/etc/passwd", None))
    cid = store.directory(("innocent", link))
    with pytest.raises(MalformedContent, match="symbolic link, which is never followed: ask its publisher"):
        store.get_directory(str(cid), tmp_path / "out", everything, max_bytes=100)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("/etc/passwd")
    with pytest.raises(UnsupportedFile, match="link"):
        store.add_directory(tmp_path / "tree")
    with pytest.raises(UnsupportedFile):
        store.add_file(tmp_path / "tree" / "link")


def test_a_file_is_no_directory_and_the_other_way_round(store: Blocks, tmp_path: Path) -> None:
    file, directory = store.file(b"x"), store.directory()
    with pytest.raises(MalformedContent, match="not a directory"):
        store.get_directory(str(file), tmp_path / "out", everything, max_bytes=10)
    with pytest.raises(MalformedContent, match="is a directory"):
        store.get_file(str(directory), tmp_path / "out", max_bytes=10)
    with pytest.raises(MalformedContent, match="sharded"):
        sharded = store.node(UnixFsNode(SHARDED_DIRECTORY, b"\x01", None))
        store.get_directory(str(sharded), tmp_path / "out", everything, max_bytes=10)


def test_sizes_that_lie_are_refused(store: Blocks) -> None:
    leaf = store.file(b"12345")
    link = Link(leaf, "", 5)
    for lie in (
        UnixFsNode(FILE, b"12345", 4),
        UnixFsNode(FILE, b"12345", None),
        UnixFsNode(FILE, None, 7, (5,), (link,)),
        UnixFsNode(FILE, None, 6, (6,), (link,)),
        UnixFsNode(FILE, None, 4, (4,), (link,)),
        UnixFsNode(FILE, None, 5, (5, 0), (link, Link(store.file(b""), "", 0))),
        UnixFsNode(FILE, None, 5, (5, 5), (link,)),
        UnixFsNode(FILE, None, 5, (5,), (link, link)),
        UnixFsNode(FILE, b"x", 6, (5,), (link,)),
        UnixFsNode(FILE, None, 5, (5,), (Link(leaf, "name", 5),)),
        UnixFsNode(9, b"12345", 5),
    ):
        with pytest.raises(MalformedContent, match=r"ask its publisher to add it again\.$"):
            store.read(str(store.node(lie)), max_bytes=100)


def test_a_graph_that_explodes_is_refused_after_a_bounded_number_of_blocks(store: Blocks, tmp_path: Path) -> None:
    fetched = 0

    def fetch(cid: Cid) -> bytes:
        nonlocal fetched
        fetched += 1
        return store.block(cid)

    at, size = store.file(b"x"), 1
    for _ in range(7):
        at, size = store.node(UnixFsNode(FILE, None, 8 * size, (size,) * 8, (Link(at, "", 1),) * 8)), 8 * size
    with pytest.raises(MalformedContent, match="small pieces: ask its publisher"):
        DagReader(fetch, at, size).read()
    assert fetched <= 64 + size // 4096 + 1

    fetched, leaf = 0, store.file(b"")
    wide = store.directory(*((f"{i:05}", leaf) for i in range(MAX_ENTRIES + 1)))
    with pytest.raises(ContentTooLarge, match=f"{MAX_ENTRIES + 1} entries"):
        DagReader(fetch, wide, 10).write_directory(tmp_path / "out", everything)
    assert fetched == 1
    assert not (tmp_path / "out").exists()


def test_depth_is_bounded(store: Blocks) -> None:
    file = store.file(b"x")
    for _ in range(40):
        file = store.node(UnixFsNode(FILE, None, 1, (1,), (Link(file, "", 1),)))
    with pytest.raises(MalformedContent, match="deeper"):
        store.read(str(file), max_bytes=1)
