"""Fetches that are interrupted: what has come stays, is checked, and only the rest is fetched; and fetches by names."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.dag_reader import Plan
from tiebreak.store.dagpb import FILE, RAW, Cid, UnixFsNode
from tiebreak.store.staging import set_back
from tiebreak.store.store_errors import ContentTooLarge, MalformedContent, NoSpace, StoreError, StoreUnavailable

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


def test_a_file_carries_on_where_it_was_cut_off(store: Counting, tmp_path: Path) -> None:
    cid = store.add_bytes(DATA)
    interrupt(store, cid, tmp_path / "out")
    store.get_file(cid, tmp_path / "out", max_bytes=len(DATA))
    assert (tmp_path / "out").read_bytes() == DATA
    assert store.read_blocks == 1 + 11 - 5
    assert left_over(tmp_path) == []


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


# Directories fetched by the names of their files.


FIRST, SECOND = "program.json", "data.safetensors"
CONTENT = {FIRST: b"{}", SECOND: random.Random(3).randbytes(3 * CHUNK + 5)}
OTHER = "torch.py"


def plan(path: Path, sizes: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Two turns, the second of which needs the file of the first."""
    yield {FIRST: 100}
    assert (path / FIRST).read_bytes() == CONTENT[FIRST]
    yield {SECOND: len(CONTENT[SECOND])}


@pytest.fixture
def cid(store: Blocks, tmp_path: Path) -> str:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name, data in {**CONTENT, OTHER: b"raise SystemExit"}.items():
        (tree / name).write_bytes(data)
    return store.add_directory(tree)


def fetch(store: Blocks, cid: str, tmp_path: Path, chosen: Plan = plan) -> list[str]:
    return store.get_directory(cid, tmp_path / "out", chosen, max_bytes=1 << 30)


def is_right(out: Path) -> bool:
    """Whether all that is wanted is there, whole, and nothing else."""
    return {path.name: path.read_bytes() for path in out.iterdir()} == CONTENT


def staged(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob(".out.*"))


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("after", [0, 1, 3, 6])
def test_a_fetch_that_is_killed_at_any_block_is_ended_by_the_next_one(
    store: Blocks, cid: str, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = store.block, list[Cid]()

    def killed(cid: Cid, seconds: float | None = None) -> bytes:
        if len(asked) == after:
            raise Killed
        asked.append(cid)
        return read(cid, seconds)

    with monkeypatch.context() as patched:
        patched.setattr(store, "block", killed)
        with pytest.raises(Killed):
            fetch(store, cid, tmp_path)
    assert not (tmp_path / "out").exists()
    assert fetch(store, cid, tmp_path) == [OTHER]
    assert is_right(tmp_path / "out") and not staged(tmp_path)


def make_a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def make_a_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path / "deep").mkdir(parents=True)


def make_a_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.parents[2] / "victim")


def make_it_long(path: Path) -> None:
    path.write_bytes(bytes(1 << 20))


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        *((SECOND, plant) for plant in (make_a_pipe, make_a_directory, make_a_link, make_it_long)),
        *((name, make_a_link) for name in (FIRST, OTHER)),
        (".git", make_a_directory),
    ],
)
def test_nothing_that_was_planted_in_an_unfinished_fetch_comes_with_it(
    store: Blocks, cid: str, tmp_path: Path, name: str, plant: Callable[[Path], None]
) -> None:
    """Neither does a file that an older version left in a directory that is set back."""
    (tmp_path / "victim").write_bytes(b"mine")
    fetch(store, cid, tmp_path)
    set_back(tmp_path / "out", cid)
    (room,) = staged(tmp_path)
    plant(room / "content" / name)
    for attempt in range(2):
        try:
            fetch(store, cid, tmp_path)
            break
        except StoreError:
            assert attempt == 0 and not staged(tmp_path)
    assert is_right(tmp_path / "out") and not staged(tmp_path)
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_what_the_plan_raises_ends_the_fetch_and_leaves_nothing(store: Blocks, cid: str, tmp_path: Path) -> None:
    def refusing(path: Path, sizes: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
        yield {FIRST: 100}
        raise ContentTooLarge("not acceptable.")

    with pytest.raises(ContentTooLarge, match="not acceptable"):
        fetch(store, cid, tmp_path, refusing)
    assert not staged(tmp_path) and not (tmp_path / "out").exists()


def test_a_disk_that_fills_meanwhile_is_left_its_last_bytes(
    store: Blocks, cid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several fetches at a time may each have found room."""
    import shutil

    real, asked = shutil.disk_usage, list[object]()

    def usage(place: object) -> object:
        asked.append(place)
        free = (1 << 40) if len(asked) <= 4 else 0
        return real("/")._replace(total=1 << 41, used=0, free=free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(NoSpace, match="make room there"):
        fetch(store, cid, tmp_path)
    assert len(asked) == 5 and not staged(tmp_path)
