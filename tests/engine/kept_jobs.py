"""Jobs that are kept in `conformance/jobs`: made once, and read by the tests that need any job."""

from pathlib import Path

from roundlog.training.job import Job

KEPT_JOBS = Path(__file__).resolve().parents[2] / "conformance" / "jobs"


def kept_job(name: str) -> Job:
    """A job by the name of its folder: logistic_sgd has 8 steps of 8 rows in intervals of 2, convolution 4 of 6."""
    return Job.read(KEPT_JOBS / name)
