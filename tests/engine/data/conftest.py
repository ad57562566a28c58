"""The job whose data the tests of this room leave in files, take from elsewhere, and change."""

from pathlib import Path

import pytest
from roundlog.data import FileField, windows
from roundlog.training.job import Job

from tests.engine.data.test_jobs_of_files import SIGNED, STRIDE, TOKENS, WEIGHTS, WINDOW, file_of, task_of


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a job of memory maps, whose files are gone."""
    room = tmp_path_factory.mktemp("written")
    stream = windows(file_of(room / "tokens", TOKENS), window=WINDOW, stride=STRIDE)
    weights, signed = (file_of(room / name, array) for name, array in (("w", WEIGHTS), ("s", SIGNED)))
    made = Job.from_task(lambda: task_of(stream, weights, signed), compare=False)
    assert all(isinstance(field, FileField) for field in made.dataset.values())
    made.write(room / "job")
    for name in ("tokens", "w", "s"):
        (room / name).unlink()
    assert Job.read(room / "job").spec == made.spec
    return room / "job"
