"""The rows that `Task.from_trainer` keeps: in a file, so that they may be larger than memory."""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from roundlog.capture import Task
from roundlog.data import DataError, FileField
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer

from tests.engine.capture.random_trainers import Plain
from tests.engine.capture.test_from_trainer import ROWS, data, trainer
from tests.engine.memory_limits import limit, more_memory

WIDE = 1 << 18
"""Elements of a wide row: 1 MiB."""


class Wide(Plain):
    """Looks at the first elements of its rows."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(x[:, : self.layers[0].in_features], labels)


class WideRows:
    """300 MB of rows, each made when it is asked for."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((WIDE,), row / 300), "labels": torch.tensor(row % 3)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_may_be_larger_than_memory(tmp_path: Path) -> None:
    made = trainer(tmp_path, rows=WideRows(), given={"model": Wide(0.0)}, max_steps=2)
    # A first one loads what is needed for a second.
    Job.from_task(lambda: Task.from_trainer(trainer(tmp_path, given={"model": Wide(0.0)}))).write(tmp_path / "small")
    with limit(resource.RLIMIT_DATA, more_memory(100 << 20)):
        task = Task.from_trainer(made)
        Job.from_task(lambda: task).write(tmp_path / "job")
    job = Job.read(tmp_path / "job")
    assert job.dataset["x"].nbytes == 300 * 4 * WIDE
    assert torch.equal(job.dataset["x"][299], WideRows()[299]["x"])
    assert Trainer(job, tmp_path / "run").run().final_state.exists()


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64, torch.float32, torch.bool])
def test_rows_are_what_the_collator_made(dtype: torch.dtype, tmp_path: Path) -> None:
    """A loss sees rows in the dtype in which `train()` gives them: those that no field keeps stay tensors."""
    rows = [row | {"more": torch.arange(-3, 3).reshape(2, 3).to(dtype)} for row in data()]
    found = Task.from_trainer(trainer(tmp_path, rows=rows, remove_unused_columns=False)).dataset
    assert isinstance(found["x"], FileField)
    assert isinstance(found["more"], FileField) == (dtype in (torch.int64, torch.float32, torch.bool))
    for name in rows[0]:
        assert torch.equal(found[name][:], torch.stack([row[name] for row in rows])), name
    assert found["more"].dtype == dtype and found["more"].shape == (ROWS, 2, 3)


def test_a_folder_without_room_is_named(tmp_path: Path) -> None:
    """A limit on files stands for a full disk."""
    made = trainer(tmp_path, rows=WideRows(), given={"model": Wide(0.0)})
    with limit(resource.RLIMIT_FSIZE, 10 << 20), pytest.raises(DataError) as caught:
        Task.from_trainer(made)
    assert f"kept in {tempfile.gettempdir()} (File too large): set TMPDIR" in str(caught.value)
