"""Directories fetched by the names of their files: kills at every block, and planted files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.dag_reader import Plan
from tiebreak.store.dagpb import Cid
from tiebreak.store.staging import set_back
from tiebreak.store.store_errors import ContentTooLarge, NoSpace, StoreError

from tests.client.crafted_blocks import Blocks

FIRST, SECOND = "program.json", "data.safetensors"
CONTENT = {FIRST: b"{}", SECOND: random.Random(3).randbytes(3 * CHUNK + 5)}
OTHER = "torch.py"


def plan(path: Path, sizes: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Two turns, the second of which needs the file of the first."""
    yield {FIRST: 100}
    assert (path / FIRST).read_bytes() == CONTENT[FIRST]
    yield {SECOND: len(CONTENT[SECOND])}


@pytest.fixture
def store(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path / "store")


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
    """Nor does what an older version has left in a directory that is set back."""
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
