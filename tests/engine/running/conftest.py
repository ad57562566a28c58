"""The honest run whose log the tests of this room bend, thin and forge."""

import pytest
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer, TrainingResult

from tests.engine.tasks import halfway_task


@pytest.fixture(scope="session")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, TrainingResult]:
    """A job of four steps, as it is read from its files, and what its trainer published."""
    directory = tmp_path_factory.mktemp("halfway")
    Job.from_task(lambda: halfway_task(steps=4), compare=False).write(directory / "job")
    job = Job.read(directory / "job")
    return job, Trainer(job, directory / "run").run()
