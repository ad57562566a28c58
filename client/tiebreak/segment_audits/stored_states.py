"""The source of jobs and states in content stores, for workers on any machine."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from roundlog.segment_audits import Directories, UnusableState
from roundlog.storage import StorageError, load_tensors
from roundlog.training import Job, JobLimits, most_state_bytes

from tiebreak.segment_audits.elsewhere import fetch_without_data, lies_elsewhere, read_elsewhere
from tiebreak.store import StoreError, open_stores
from tiebreak.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """A job and states by content address, in the stores at these locations. Implements
    `roundlog.segment_audits.StateSource`.

    A worker that does not see the job's directory fetches the job without its data, and of these the blocks it uses."""

    locations: tuple[str, ...]
    job_cid: str
    """Content address of the job's directory; empty if all workers see `job_dir`."""
    job_dir: Path
    """The job's directory, which is read where it is there."""
    limits: JobLimits
    job_bytes: int = 16 << 30
    within: float = 600.0
    """Most seconds for one state; a worker that waits for it does nothing else."""

    def job(self) -> Job:
        """The job. Raises JobError, StoreError."""
        if self.job_dir.is_dir() or not self.job_cid:
            return read_job(self.job_dir, self.limits, self.locations)
        # The cache of blocks stays open, and its space is freed when the process ends.
        with tempfile.TemporaryDirectory(prefix="job-") as room:
            directory = Path(room) / "job"
            store = _store(self.locations)
            fetch_without_data(store, self.job_cid, directory, warn=_untold, max_bytes=self.job_bytes)
            return read_job(directory, self.limits, self.locations)

    def state(self, job: Job, address: str) -> list[torch.Tensor]:
        try:
            with tempfile.TemporaryDirectory(prefix="state-") as directory:
                path = Path(directory) / "state"
                _store(self.locations).get_file(
                    address, path, max_bytes=most_state_bytes(job.program), within=self.within
                )
                return list(load_tensors(path, job.program.states).values())
        except StorageError as error:
            raise UnusableState(f"the file at {address} {error.reason}") from error
        except StoreError as error:
            raise UnusableState(f"the state at {address} cannot be had: {error}") from error


@dataclass(frozen=True, slots=True)
class LocalStates(Directories):
    """A job in a directory, whose data may lie in the stores at these locations, and states in files (implements
    `roundlog.segment_audits.StateSource`)."""

    locations: tuple[str, ...]

    def job(self) -> Job:
        """The job. Raises JobError, StoreError."""
        return read_job(self.job_dir, self.limits, self.locations)


def read_job(directory: Path, limits: JobLimits, locations: tuple[str, ...]) -> Job:
    """The job in a directory, whose data may lie in the stores at these locations. Raises JobError, StoreError."""
    if lies_elsewhere(directory):
        return read_elsewhere(directory, limits, _store(locations))
    return Job.read(directory, limits)


@lru_cache(maxsize=4)
def _store(locations: tuple[str, ...]) -> Store:
    return open_stores(locations, warn=_untold)


def _untold(text: str) -> None:
    """Drops a warning of a worker, which nobody reads."""
