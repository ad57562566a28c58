"""The initial state of a job that was read: left in its file, checked each time that it is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from roundlog.commitments import state_root, tensor_root
from roundlog.execution.batches import TensorsOf
from roundlog.program import DType, TensorType
from roundlog.storage import StorageError, StoredTensors, save_state, save_tensors
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job, StoredState

from tests.engine.kept_jobs import KEPT_JOBS
from tests.engine.microbatch.memory_taken import taken


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT_JOBS / "logistic_sgd", tmp_path / "job"))


def bent(path: Path) -> bytes:
    """A file's bytes, with one bit of its last number turned."""
    data = path.read_bytes()
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def test_a_job_runs_from_the_state_that_was_checked_though_another_file_takes_its_place(
    directory: Path, tmp_path: Path
) -> None:
    job = Job.read(directory)
    right = Auditor(job, tmp_path / "before").run().state_roots
    other = tmp_path / "other"
    other.write_bytes(bent(directory / "initial.safetensors"))
    other.replace(directory / "initial.safetensors")
    assert Auditor(job, tmp_path / "after").run().state_roots == right
    assert state_root(job.initial.values()) == job.spec.initial_state_root


def test_a_state_that_is_overwritten_after_it_was_checked_is_not_used(directory: Path, tmp_path: Path) -> None:
    job = Job.read(directory)
    path = directory / "initial.safetensors"
    changed = bent(path)
    with path.open("r+b") as file:
        file.write(changed)
    with pytest.raises(StorageError, match=r"initial\.safetensors: tensor '.*' has changed since .*: restore it$"):
        Auditor(job, tmp_path / "run").run()
    with path.open("r+b") as file:
        file.truncate(len(changed) - 1)
    with pytest.raises(StorageError, match=r"initial\.safetensors: was cut off while it was read: restore it$"):
        Auditor(job, tmp_path / "another run").run()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured by Linux's /proc")
def test_a_stored_state_takes_the_memory_of_one_tensor_at_a_time(tmp_path: Path) -> None:
    count, numel = 48, 1 << 20
    path, copy = tmp_path / "large", tmp_path / "copy"
    save_tensors(path, {f"{number}": torch.full((numel,), float(number)) for number in range(count)})
    kinds = {f"{number}": TensorType((numel,), DType.F32) for number in range(count)}

    def read_and_write() -> None:
        state = StoredState(StoredTensors(path, kinds))
        assert state_root(state.values()) == state.root
        save_state(copy, kinds, TensorsOf(state))

    tensor_root(torch.zeros(numel))  # compiles what is needed
    assert taken(read_and_write) < count // 4 * 4 * numel
    assert copy.read_bytes() == path.read_bytes()
