"""The history that `train` and `audit` leave and speak of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from roundlog.storage import save_tensors
from roundlog.training.job import Job
from roundlog.training.run_files import HISTORY_FILE, read_history

from tests.client.cli.cli_world import Run, Trained, refused


@pytest.fixture
def rows(trained: Trained, tmp_path: Path) -> Path:
    """15 rows of the job's data: three batches of 4, and 3 more."""
    job = Job.read(trained.job)
    path = tmp_path / "rows.safetensors"
    save_tensors(path, {name: field[:15].clone() for name, field in job.dataset.items()})
    return path


def test_a_training_with_validation_comes_to_the_same_root(
    run: Run, trained: Trained, rows: Path, tmp_path: Path
) -> None:
    words = ("train", trained.job, "--run", tmp_path / "t", "--validate", rows, "--validate-every", "3")
    result = run(*words, "--json")
    found = json.loads(result.stdout)
    assert found["checkpoint_root"] == "0x" + trained.root.hex() and found["resumed_from"] == 0
    assert found["history"] == str(tmp_path / "t" / HISTORY_FILE) and found["history_problem"] is None
    assert "12 of the 15 rows" in result.stderr
    entries = [entry for entry in read_history(tmp_path / "t") if entry.validation is not None]
    assert [entry.step for entry in entries] == [0, 3, 4]
    assert found["validation_loss"] == pytest.approx(entries[-1].validation, rel=1e-6)


def test_what_cannot_be_validated_on_is_refused(run: Run, trained: Trained, rows: Path, tmp_path: Path) -> None:
    words = ("train", trained.job, "--run", tmp_path / "t")
    refused(run(*words, "--validate-every", "3"), "name the rows with --validate", code=2)
    refused(run(*words, "--validate", tmp_path / "no"), f"{tmp_path / 'no'}: does not exist")
    job = Job.read(trained.job)
    save_tensors(rows, {name: field[:3].clone() for name, field in job.dataset.items()})
    refused(run(*words, "--validate", rows), "less than one batch of 4 rows")
    shutil.copy(trained.job / "initial.safetensors", rows)
    refused(run(*words, "--validate", rows), str(rows))
    rows.write_bytes(b"\xff" * 100)
    refused(run(*words, "--validate", rows), str(rows))
    field = next(name for name, one in job.dataset.items() if not one.dtype.is_floating_point)
    fitting = {name: one[:4].clone() for name, one in job.dataset.items()}
    fitting[field].view(-1)[3] = 10**6
    save_tensors(rows, fitting)
    refused(run(*words, "--validate", rows), "the validation set does not fit the job's program")


@pytest.mark.parametrize("command", ["train", "audit"])
def test_a_resumed_run_says_from_where(run: Run, trained: Trained, tmp_path: Path, command: str) -> None:
    words = (command, trained.job, "--run", tmp_path / "r")
    first = run(*words, "--json")
    assert json.loads(first.stdout)["resumed_from"] == 0 and "carries on" not in first.stderr
    again = run(*words, "--json")
    assert json.loads(again.stdout)["resumed_from"] == 4 and "all 4 steps were done already" in again.stderr
    for name in ("roots", "roots.sums"):
        path = tmp_path / "r" / name
        path.write_bytes(path.read_bytes()[:32])
    resumed = run(*words, "--json")
    assert json.loads(resumed.stdout)["resumed_from"] == 2 and "carries on from step 2 of 4" in resumed.stderr


def test_a_history_that_cannot_be_written_is_spoken_of(run: Run, trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "t" / HISTORY_FILE).mkdir(parents=True)
    words = ("train", trained.job, "--run", tmp_path / "t")
    shown = run(*words)
    assert shown.exit_code == 0 and "INCOMPLETE" in shown.stdout and "the run itself is whole" in shown.stdout
    assert "0x" + trained.root.hex() in shown.stdout
