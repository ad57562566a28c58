"""Sources of jobs and states in directories, which this machine's workers, and those with a common disk, can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from roundlog.parallel.segment import UnusableState
from roundlog.storage import StorageError, load_tensors
from roundlog.training.job import Job, JobLimits


@dataclass(frozen=True, slots=True)
class Directories:
    """A job in a directory, and states in files, whose paths are their addresses (implements `Source`)."""

    job_dir: Path
    limits: JobLimits

    def job(self) -> Job:
        return Job.read(self.job_dir, self.limits)

    def state(self, job: Job, address: str) -> list[torch.Tensor]:
        try:
            return list(load_tensors(Path(address), job.program.states).values())
        except StorageError as error:
            raise UnusableState(f"{address} {error.reason}") from error
