"""Files of data that change after they were committed to: nothing of them is used that is not what it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from roundlog.adjudication.openings import Chunk, Material, Tree, prove
from roundlog.commitments import BLOCK_SIZE, CHUNK_SIZE, BlockTree
from roundlog.data import FileField, StoredField, field_of, files, summarised, windows
from roundlog.storage import StorageError
from roundlog.training.job import Job, JobError
from roundlog.training.trainer import Trainer

from tests.engine.data.test_jobs_of_files import SIGNED, STRIDE, TOKENS, WEIGHTS, WINDOW, file_of, task_of


def in_a_file(path: Path, array: np.ndarray) -> StoredField:
    field = field_of("x", np.memmap(path, array.dtype, "r", 0, array.shape))
    assert isinstance(field, FileField)
    return field


@pytest.mark.parametrize("seed", range(3))
def test_rows_whose_blocks_have_changed_are_refused_and_others_are_read(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    dtype = rng.choice([np.uint16, np.float32, np.int64])
    stream = np.random.default_rng(seed).integers(0, 99, rng.choice([3, 9000, 40_000, 70_001])).astype(dtype)
    window = rng.choice([1, 3, len(stream) // 3, len(stream)])
    stride = rng.choice([1, 7, window, 2 * window])
    path = tmp_path / "x"
    stream.tofile(path)
    field = windows(in_a_file(path, stream), window=window, stride=stride)
    assert isinstance(field, StoredField)
    expected = windows(stream, window=window, stride=stride)
    summarised(field)
    # Groups of one row, of a few, of many.
    monkeypatch.setattr(files, "_CHECKED_BYTES", rng.choice([1, 3 * BLOCK_SIZE, 512 * BLOCK_SIZE]))
    rows = torch.tensor([rng.randrange(field.rows) for _ in range(20)])
    assert torch.equal(field.take(rows), expected.take(rows))
    place = rng.randrange(field.nbytes)
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << rng.randrange(8)
    with path.open("rb+") as file:
        file.write(content)
    step, size = stride * stream.itemsize, window * stream.itemsize
    for row in {*rows.tolist(), min(place // step, field.rows - 1), 0, field.rows - 1}:
        touched = row * step // BLOCK_SIZE <= place // BLOCK_SIZE <= (row * step + size - 1) // BLOCK_SIZE
        if touched:
            start = place // BLOCK_SIZE * BLOCK_SIZE
            with pytest.raises(StorageError, match=rf"x: has changed, at byte {start} or soon after, since its root"):
                field[row]
        else:
            assert torch.equal(field[row], expected[row])


def test_few_bytes_beside_a_row_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = np.random.default_rng(1).integers(0, 99, 3_000_000).astype(np.uint16)
    stream.tofile(tmp_path / "x")
    field = windows(in_a_file(tmp_path / "x", stream), window=1025, stride=1024)
    summarised(field)
    seen: list[int] = []
    monkeypatch.setattr(
        FileField, "read", lambda self, start, size: seen.append(size) or stream.view("u1")[start:][:size].data
    )
    rows = torch.randperm(field.rows)[:64]
    assert torch.equal(field.take(rows), windows(stream, window=1025, stride=1024).take(rows))
    assert 64 * 2050 / 2 < sum(seen) <= 64 * 2 * BLOCK_SIZE and max(seen) < 64 * BLOCK_SIZE


def test_a_run_stops_where_its_data_have_changed_and_carries_on_where_they_are_mended(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "HELD_BYTES", 0)
    job = Job.read(shutil.copytree(written, tmp_path / "job"))
    whole = Trainer(job, tmp_path / "whole").run()
    data = tmp_path / "job" / "data.safetensors"
    content = data.read_bytes()
    with data.open("rb+") as file:
        file.write(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StorageError, match=r"data\.safetensors: has changed"):
        Trainer(job, tmp_path / "run").run()
    with data.open("rb+") as file:
        file.write(content)
    assert Trainer(job, tmp_path / "run").run().state_roots == whole.state_roots


def test_nothing_is_opened_of_data_that_have_changed(tmp_path: Path) -> None:
    """A party would send a proof that no contract takes, and be told of a tensor without a name."""
    numbers = np.arange(9000, dtype=np.int64)
    numbers.tofile(tmp_path / "x")
    field = in_a_file(tmp_path / "x", numbers)
    material = Material(values={}, states=[], dataset=[field], schedule=torch.zeros(1, 1))
    changed, other = Chunk(Tree.FIELD, 0, 20), Chunk(Tree.FIELD, 0, 40)
    right = prove([changed, other], material)
    with (tmp_path / "x").open("rb+") as file:
        file.seek(20 * CHUNK_SIZE + 7)
        file.write(b"\1")
    for opened in (lambda: material.payload(changed), lambda: prove([changed], material)):
        with pytest.raises(StorageError, match=r"x: has changed, at byte 16384 or soon after, since its root"):
            opened()
    assert prove([other], material) == right[1:]


@pytest.mark.slow
def test_no_job_is_written_of_data_that_have_changed_since_capture(tmp_path: Path) -> None:
    """It would be a job that nobody can read, and its author would learn of it last."""
    tokens = file_of(tmp_path / "t", TOKENS)
    job = Job.from_task(lambda: task_of(windows(tokens, window=WINDOW, stride=STRIDE), WEIGHTS, SIGNED))
    job.write(tmp_path / "before")
    content = (tmp_path / "t").read_bytes()
    with (tmp_path / "t").open("rb+") as file:
        file.write(bytes([content[0] ^ 1]))
    with pytest.raises(StorageError, match=r"t: has changed, at byte 0 or soon after, since its root was taken"):
        job.write(tmp_path / "job")
    assert not (tmp_path / "job" / "data.safetensors").exists()
    with (tmp_path / "t").open("rb+") as file:
        file.write(content[:1])
    job.write(tmp_path / "job")
    assert Job.read(tmp_path / "job").spec == Job.read(tmp_path / "before").spec


@pytest.mark.slow_but("True")
@pytest.mark.parametrize("in_torch", [True, False])
def test_data_in_memory_that_have_changed_since_capture_are_not_followed(in_torch: bool, tmp_path: Path) -> None:
    """Tensors of a task are not copied: a run would follow other data than its spec commits to."""
    weights = WEIGHTS.copy()
    job = Job.from_task(
        lambda: task_of(
            windows(TOKENS, window=WINDOW, stride=STRIDE), torch.from_numpy(weights) if in_torch else weights, SIGNED
        )
    )
    weights[-1, -1] += 1
    for use in (lambda: job.write(tmp_path / "job"), lambda: Trainer(job, tmp_path / "run")):
        with pytest.raises(JobError, match="the data field weights has changed in memory since the job was made of it"):
            use()
    weights[:] = WEIGHTS
    job.write(tmp_path / "job")
    assert (
        Trainer(job, tmp_path / "run").run().state_roots
        == Trainer(Job.read(tmp_path / "job"), tmp_path / "again").run().state_roots
    )


def test_the_first_wrong_block_is_found() -> None:
    tree = BlockTree.over(3 * BLOCK_SIZE + 5, [bytes(3 * BLOCK_SIZE + 5)])
    assert tree.first_wrong([0, 3], bytes(BLOCK_SIZE + 5)) is None
    assert tree.first_wrong([0, 1, 2, 3], bytes(2 * BLOCK_SIZE - 1) + b"\1" + bytes(BLOCK_SIZE + 5)) == 1
