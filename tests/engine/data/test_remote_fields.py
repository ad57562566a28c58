"""Jobs whose data lie elsewhere: the blocks of a batch are fetched, and nothing is used that has another root."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from roundlog.adjudication.openings import Chunk, Material, Tree, prove
from roundlog.commitments import BLOCK_SIZE
from roundlog.data import (
    BlockCache,
    Field,
    RemoteDataError,
    RemoteFile,
    as_field,
    data_tree,
    fetched_bytes,
    read_block_roots,
    read_fields,
    remote_fields,
    windows,
    write_block_roots,
    write_fields,
)
from roundlog.storage import StorageError
from roundlog.training.auditor import Auditor
from roundlog.training.job import JOB_FILES, Job, JobError
from roundlog.training.trainer import Trainer

from tests.engine.data.remote_places import Place, copy_of, lost

ROWS = 3000


def data_set(rows: int = ROWS) -> dict[str, Field]:
    """Fields of several blocks, of less than one, of bools, and of windows that overlap; all of as many rows."""
    rng = np.random.default_rng(7)
    return {
        "x": as_field(torch.from_numpy(rng.standard_normal((rows, 40), np.float32))),
        "y": as_field(torch.from_numpy(rng.integers(0, 2, rows).astype(bool))),
        "t": windows(rng.integers(0, 99, 64 * (rows - 1) + 65, np.uint16), window=65, stride=64),
    }


class World:
    """A data set in a file, its block roots, and readers of it from elsewhere."""

    def __init__(self, room: Path, fields: dict[str, Field] | None = None) -> None:
        self.room, self.here = room, fields or data_set()
        self.path, self.roots = room / "data.safetensors", room / "data.blocks"
        write_fields(self.path, self.here)
        write_block_roots(self.roots, self.here)
        self.kinds = {name: field.kind for name, field in self.here.items()}
        self.rows = next(iter(self.here.values())).rows
        self.root = data_tree(self.here.values()).root

    def open(self, place: Place, cache: BlockCache | None = None) -> dict[str, Field]:
        trees = read_block_roots(self.roots, self.kinds, self.rows, self.root)
        return remote_fields(self.kinds, self.rows, trees, RemoteFile(self.path, place, cache))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_rows_from_elsewhere_are_the_rows(seed: int, world: World) -> None:
    rng = Random(seed)
    place = Place([copy_of(world.path)], width=rng.choice([1, 4]))
    cache = BlockCache(world.room / "cache", rng.choice([1, 5 * BLOCK_SIZE, 1 << 30])) if seed % 2 else None
    there = world.open(place, cache)
    for _ in range(4):
        rows = torch.tensor([rng.randrange(ROWS) for _ in range(rng.choice([1, 9, 400]))])
        for name, field in world.here.items():
            assert torch.equal(there[name].take(rows), field.take(rows))
    assert data_tree(there.values()).root == world.root


def test_only_the_blocks_of_the_rows_are_fetched(world: World) -> None:
    place = Place([copy_of(world.path)])
    there = world.open(place)
    row = 1000
    there["x"].take(torch.tensor([row]))
    assert fetched_bytes(there.values()) == BLOCK_SIZE == sum(size for _, size in place.asked)
    first = row * 160 // BLOCK_SIZE * BLOCK_SIZE
    header = world.path.stat().st_size - sum(field.nbytes for field in world.here.values())
    assert place.asked == [(header + first, BLOCK_SIZE)]
    there["x"][:]
    assert max(size for _, size in place.asked) <= 1 << 20, "no request for more than 1 MiB"


def test_a_block_is_fetched_once_where_there_is_a_cache(world: World) -> None:
    rows = torch.arange(0, ROWS, 37)
    first = world.open(Place([copy_of(world.path)]), BlockCache(world.room / "cache"))
    for name, field in world.here.items():
        assert torch.equal(first[name].take(rows), field.take(rows))
    # A run again, or another worker on the same disk.
    gone = Place([lost])
    again = world.open(gone, BlockCache(world.room / "cache"))
    for name, field in world.here.items():
        assert torch.equal(again[name].take(rows), field.take(rows))
    assert not gone.asked and fetched_bytes(again.values()) == 0 < fetched_bytes(first.values())


def wrong(start: int, size: int) -> bytes:
    return b"\1" * size


@pytest.mark.parametrize(
    "copy",
    [wrong, lambda start, size: b"", lambda start, size: b"\0" * (size - 1), lambda start, size: b"\0" * (size + 1)],
    ids=["other bytes", "nothing", "too few", "too many"],
)
def test_wrong_bytes_are_never_used(copy: Callable[[int, int], bytes], world: World) -> None:
    row = torch.tensor([2000])
    there = world.open(Place([copy, copy_of(world.path)]))
    assert torch.equal(there["x"].take(row), world.here["x"].take(row))
    there = world.open(Place([copy]), BlockCache(world.room / "cache"))
    with pytest.raises(
        RemoteDataError, match=r"block 19 of the field x cannot be used .*: name another store that has"
    ):
        there["x"].take(row)
    assert (world.room / "cache").stat().st_size == 0 and fetched_bytes(there.values()) == 0


def test_a_place_that_checks_nothing_is_checked(world: World) -> None:
    class Careless(Place):
        def part(self, start: int, size: int, is_right: Callable[[bytes], bool]) -> bytes:
            return wrong(start, size)

    with pytest.raises(RemoteDataError, match="its bytes are not those"):
        world.open(Careless([]))["x"].take(torch.tensor([3]))


def test_two_copies_that_lack_a_block_each_are_a_whole_one(world: World) -> None:
    data = world.path.read_bytes()
    begin = len(data) - sum(field.nbytes for field in world.here.values())

    def without(block: int) -> Callable[[int, int], bytes]:
        bad = bytearray(data)
        bad[begin + block * BLOCK_SIZE] ^= 1
        return lambda start, size: bytes(bad[start : start + size])

    there = world.open(Place([without(2), without(5)]))
    assert torch.equal(there["x"][:], world.here["x"][:])
    there = world.open(Place([without(2), without(2)]))
    with pytest.raises(RemoteDataError, match="block 2 of the field x"):
        there["x"][:]


def damaged(cache: Path) -> None:
    content = bytearray(cache.read_bytes())
    for place in range(0, len(content), 1000):
        content[place] ^= 1
    cache.write_bytes(content)


def of_another_job(cache: Path) -> None:
    cache.write_bytes(Random(1).randbytes(1 << 20))


def cut_off(cache: Path) -> None:
    os.truncate(cache, BLOCK_SIZE + 17)


@pytest.mark.parametrize("harm", [damaged, of_another_job, cut_off])
def test_a_cache_that_is_not_right_is_filled_again(harm: Callable[[Path], None], world: World) -> None:
    for before in (lambda path: None, harm):
        before(world.room / "cache")
        there = world.open(Place([copy_of(world.path)]), BlockCache(world.room / "cache"))
        assert torch.equal(there["x"][:], world.here["x"][:])
        assert fetched_bytes(there.values()) > 0
    assert torch.equal(world.open(Place([lost]), BlockCache(world.room / "cache"))["x"][:], world.here["x"][:])


def test_something_else_in_the_place_of_a_cache_is_refused(world: World) -> None:
    (world.room / "link").symlink_to(world.path)
    os.mkfifo(world.room / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(StorageError, match=r"is no cache of blocks \(.*\): remove it"):
            BlockCache(world.room / name)


@pytest.mark.parametrize(
    ("roots", "why"),
    [
        (lambda right: right[:-1], "has 1759 bytes where the roots of its data's blocks need 1760"),
        (lambda right: right + b"x", "has more bytes where the roots of its data's blocks need 1760"),
        (lambda right: right * 1000, "has more bytes"),
        (lambda right: b"", "has 0 bytes"),
        (lambda right: right[:-1] + bytes([right[-1] ^ 1]), "has roots of other data than the data root commits to"),
        (lambda right: right[32:64] + right[:32] + right[64:], "has roots of other data"),
    ],
    ids=["cut off", "longer", "huge", "empty", "a bit", "swapped"],
)
def test_wrong_block_roots_are_refused(roots: Callable[[bytes], bytes], why: str, world: World) -> None:
    right = world.roots.read_bytes()
    world.roots.write_bytes(roots(right))
    with pytest.raises(StorageError, match=f"data.blocks: {why}"):
        world.open(Place([]))
    world.roots.unlink()
    with pytest.raises(StorageError, match=r"data.blocks: does not exist"):
        world.open(Place([]))
    os.mkfifo(world.roots)
    with pytest.raises(StorageError, match=r"data.blocks: cannot be read"):
        world.open(Place([]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_nan_in_a_block_that_is_fetched_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    each = dtype.itemsize
    numbers = torch.zeros(40_000 // each, dtype=dtype)
    numbers[36_000 // each] = torch.nan
    world = World(tmp_path, {"x": as_field(numbers)})
    cache = BlockCache(tmp_path / "cache")
    there = world.open(Place([copy_of(world.path)]), cache)
    assert there["x"].take(torch.tensor([0, 100])).tolist() == [0, 0]
    cache.put(2, world.path.read_bytes()[-40_000:][2 * BLOCK_SIZE :])  # by whoever shares the disk
    for one in (there, world.open(Place([copy_of(world.path)]))):
        with pytest.raises(
            RemoteDataError, match=r"block 2 of the field x cannot be used \(it has a NaN\): no run can"
        ):
            one["x"].take(torch.tensor([36_004 // each]))


def test_a_chunk_of_a_disputed_row_is_opened_from_elsewhere(world: World) -> None:
    place = Place([copy_of(world.path)])
    there = list(world.open(place).values())
    here = list(world.here.values())
    for tensor, field in enumerate(here):
        for index in {0, (field.nbytes - 1) // 1024}:
            chunk = Chunk(Tree.FIELD, tensor, index)
            remote, local = (
                prove([chunk], Material(values={}, states=[], dataset=fields, schedule=torch.zeros(1, 1)))
                for fields in (there, here)
            )
            assert remote == local


@pytest.fixture
def job_dir(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "job")
    assert {path.name for path in (tmp_path / "job").iterdir()} == set(JOB_FILES)
    return tmp_path / "job"


@pytest.mark.slow
def test_a_run_on_data_elsewhere_is_the_run(job_dir: Path, tmp_path: Path) -> None:
    trained = Trainer(Job.read(job_dir), tmp_path / "here").run()
    copy = copy_of(job_dir / "data.safetensors")
    (job_dir / "data.safetensors").unlink()
    with pytest.raises(JobError, match=r"data.safetensors: does not exist"):
        Job.read(job_dir)
    job = Job.read(job_dir, elsewhere=Place([copy]))
    audited = Auditor(job, tmp_path / "there", log_dir=tmp_path / "here" / "log").run()
    assert audited.state_roots == trained.state_roots and not audited.findings
    assert fetched_bytes(job.dataset.values()) > 0 and (job_dir / "data.cache").exists()


def test_a_file_that_readers_elsewhere_would_misread_is_refused_by_all(world: World) -> None:
    content = world.path.read_bytes()
    header = int.from_bytes(content[:8], "little")
    padded = (header + 8).to_bytes(8, "little") + content[8 : 8 + header] + b" " * 8 + content[8 + header :]
    world.path.write_bytes(padded)
    with pytest.raises(StorageError, match="has its fields in other places than they are written to: make it again"):
        read_fields(world.path, world.kinds, world.rows)
    world.path.write_bytes(content)
    read_fields(world.path, world.kinds, world.rows)


def test_a_job_needs_its_block_roots_also_beside_its_data(job_dir: Path) -> None:
    blocks = job_dir / "data.blocks"
    content = blocks.read_bytes()
    blocks.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(JobError, match=r"data.blocks: has roots of other data than the data root commits to"):
        Job.read(job_dir)
    blocks.unlink()
    with pytest.raises(JobError, match=r"data.blocks: does not exist"):
        Job.read(job_dir)
