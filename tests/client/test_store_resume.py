"""Fetches that are interrupted: what has come stays, is checked, and only the rest is fetched."""

from __future__ import annotations

import fcntl
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.dagpb import FILE, RAW, Cid, Link, UnixFsNode
from tiebreak.store.staging import set_back
from tiebreak.store.store_errors import ContentTooLarge, MalformedContent, StoreUnavailable

from tests.client.crafted_blocks import Blocks, everything

DATA = random.Random(11).randbytes(10 * CHUNK + 5)


class Counting(Blocks):
    """A store that counts the blocks that are read, and fails as told."""

    fails_after: int | None = None
    read_blocks = 0

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        if self.fails_after is not None and self.read_blocks >= self.fails_after:
            raise StoreUnavailable("the line is cut.")
        self.read_blocks += 1
        return super().block(cid, seconds)

    def cut(self, after: int | None) -> None:
        self.fails_after, self.read_blocks = after, 0


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "store")


def left_over(tmp_path: Path) -> list[Path]:
    return sorted(path for path in tmp_path.iterdir() if path.name.endswith(".partial") or ".partial-" in path.name)


def interrupt(store: Counting, cid: str, dest: Path, after: int = 6) -> Path:
    """A fetch that is cut off; returns what it has left."""
    store.cut(after)
    with pytest.raises(StoreUnavailable, match="line is cut"):
        store.get_file(cid, dest, max_bytes=len(DATA))
    store.cut(None)
    (left,) = left_over(dest.parent)
    assert not dest.exists() and (left / "content").stat().st_size == (after - 1) * CHUNK
    return left


@pytest.mark.parametrize("older", [False, True])
def test_a_file_carries_on_where_it_was_cut_off(store: Counting, tmp_path: Path, older: bool) -> None:
    cid = with_older_leaves(store) if older else store.add_bytes(DATA)
    interrupt(store, cid, tmp_path / "out")
    store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    assert (tmp_path / "out").read_bytes() == DATA
    assert store.read_blocks == 1 + 11 - 5
    assert left_over(tmp_path) == []


def with_older_leaves(store: Counting) -> str:
    """The file as Kubo adds it without raw leaves."""
    links, sizes = [], []
    for at in range(0, len(DATA), CHUNK):
        piece = DATA[at : at + CHUNK]
        cid = store.file(piece)
        links.append(Link(Cid(cid.codec, cid.digest, 0), "", len(piece)))
        sizes.append(len(piece))
    return str(store.node(UnixFsNode(FILE, None, len(DATA), tuple(sizes), tuple(links))))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: CHUNK + 7],
        lambda data: data[:100] + b"?" + data[101:],
        lambda data: data + bytes(20 * CHUNK),
    ],
)
def test_what_was_damaged_meanwhile_is_fetched_again(
    store: Counting, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    cid = store.add_bytes(DATA)
    left = interrupt(store, cid, tmp_path / "out")
    (left / "content").write_bytes(damage((left / "content").read_bytes()))
    store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    assert (tmp_path / "out").read_bytes() == DATA


def test_content_that_is_refused_leaves_nothing(store: Counting, tmp_path: Path) -> None:
    good, bad = store.put(b"x" * 1000, RAW), store.node(UnixFsNode(FILE, b"1234", 5))
    root = store.directory(("a", good), ("b", bad))
    with pytest.raises(MalformedContent):
        store.get_directory(str(root), tmp_path / "out", everything, max_bytes=10**6)
    with pytest.raises(ContentTooLarge):
        store.get_file(store.add_bytes(DATA), tmp_path / "out", max_bytes=10)
    assert left_over(tmp_path) == []


def test_a_link_in_the_part_is_not_followed(store: Counting, tmp_path: Path) -> None:
    cid = store.add_bytes(DATA)
    left = interrupt(store, cid, tmp_path / "out")
    (tmp_path / "victim").write_bytes(b"mine")
    (left / "content").unlink()
    (left / "content").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreUnavailable):
        store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    assert (tmp_path / "victim").read_bytes() == b"mine"
    store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    assert (tmp_path / "out").read_bytes() == DATA and not (tmp_path / "out").is_symlink()


def test_a_place_that_others_work_on_or_could_have_made_is_not_used(store: Counting, tmp_path: Path) -> None:
    cid = store.add_bytes(DATA)
    left = interrupt(store, cid, tmp_path / "out")
    with (left / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="another process fetches to"):
            store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    left.chmod(0o777)
    with pytest.raises(StoreUnavailable, match="may be somebody else's: remove it"):
        store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    elsewhere = left.rename(tmp_path / "elsewhere")
    elsewhere.chmod(0o700)
    left.symlink_to(elsewhere)
    with pytest.raises(StoreUnavailable, match="may be somebody else's: remove it"):
        store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    assert not (tmp_path / "out").exists() and (elsewhere / "content").exists()


def test_a_part_that_was_published_already_is_not_written_through(store: Counting, tmp_path: Path) -> None:
    cid = store.add_bytes(DATA)
    left = interrupt(store, cid, tmp_path / "out")
    # As if the process had been killed right after the file got its name, and its user had changed it since.
    (left / "content").write_bytes(b"changed by its user")
    (tmp_path / "mine").hardlink_to(left / "content")
    store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    assert (tmp_path / "out").read_bytes() == DATA
    assert (tmp_path / "mine").read_bytes() == b"changed by its user"


def test_of_a_damaged_directory_only_the_wrong_parts_are_fetched_again(store: Counting, tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    for name in ("a", "sub-b"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(random.Random(name).randbytes(5 * CHUNK))
    cid = store.add_directory(tree)
    store.get_directory(cid, out, everything, max_bytes=10**8)
    with (out / "sub-b").open("r+b") as file:
        file.seek(2 * CHUNK + 7)
        file.write(b"damaged")
    set_back(out, cid)
    assert not out.exists()
    store.cut(None)
    store.get_directory(cid, out, everything, max_bytes=10**8)
    assert store.read_blocks == 1 + 2 + 1, "a directory, two nodes of files, and one leaf"
    assert all((out / name).read_bytes() == (tree / name).read_bytes() for name in ("a", "sub-b"))
    assert left_over(tmp_path) == []
