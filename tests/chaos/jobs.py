"""Small jobs for the campaign, of which one trains in a fraction of a second."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from roundlog.training.job import Job
from roundlog.training.trainer import Trainer

from tests.e2e.world import small_job, wide_task

KINDS = ("logistic_sgd", "convolution", "rows that fit no transaction")
STEPS, INTERVAL = 12, 3


def job_of(kind: int) -> Job:
    """A job of one of the kinds."""
    if kind == 2:
        return Job.from_task(lambda: wide_task(STEPS, INTERVAL))
    return small_job(STEPS, INTERVAL, kept_as=KINDS[kind])


def write_jobs(directory: Path) -> None:
    """Write all kinds below `directory`, as `job-0` and so on, and the checkpoint roots of honest runs."""
    roots = []
    for kind in range(len(KINDS)):
        job = job_of(kind)
        job.write(directory / f"job-{kind}")
        with tempfile.TemporaryDirectory() as name:
            roots.append(Trainer(job, Path(name) / "run").run().checkpoint_root.hex())
    (directory / "roots.json").write_text(json.dumps(roots))


def read_roots(directory: Path) -> list[bytes]:
    """The checkpoint roots that `write_jobs` has found."""
    return [bytes.fromhex(root) for root in json.loads((directory / "roots.json").read_text())]
