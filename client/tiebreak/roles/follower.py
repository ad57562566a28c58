"""One process for many jobs: looks for new ones, gives each a role, and lets none of them wait for another."""

from __future__ import annotations

from collections.abc import Callable

from roundlog.arithmetic import MachineError

from tiebreak.chain.errors import ChainError
from tiebreak.chain.records import Job
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.role import Interrupted, JobRole, Role
from tiebreak.roles.station import Station
from tiebreak.store import StoreError

Make = Callable[[int, Job], JobRole | None]
"""Gives a job's role; None for a job to be left alone for ever."""


class Follower(Role):
    """Follows the chain. Never finishes by itself: set `stop`."""

    def __init__(self, station: Station, name: str, make: Make) -> None:
        super().__init__(station)
        self.name = name
        self._make = make
        self._seen = 0
        self._roles: list[JobRole] = []
        self._working: JobRole | None = None
        self._broken: set[int] = set()

    def step(self) -> Progress:
        self._look_for_jobs()
        acted = False
        for role in list(self._roles):
            self._working = role
            progress = self._guarded(role, role.attend if role.job in self._broken else role.step)
            self._working = None
            acted |= progress.acted
            if progress.finished:
                self._roles.remove(role)
                self.tell(What.COMPUTED, progress.state, job=role.job)
        return Progress(acted=acted, state=f"following {len(self._roles)} jobs")

    def _look_for_jobs(self) -> None:
        count = self.station.contract.job_count()
        for job_id in range(self._seen + 1, count + 1):
            posted = self.station.contract.job(job_id)
            role = self._make(job_id, posted)
            if role is not None:
                role.stop = self.stop
                role.patience = self.patience
                role.meanwhile = self._attend
                self._roles.append(role)
            self._seen = job_id

    def _attend(self) -> None:
        """While one job is trained or audited, the others' moves and deadlines go on."""
        for role in self._roles:
            if role is not self._working:
                self._guarded(role, role.attend)

    def _guarded(self, role: JobRole, call: Callable[[], Progress]) -> Progress:
        try:
            return call()
        except (ChainError, StoreError) as error:
            self.tell(What.WARNING, str(error), job=role.job)
            return Progress(state=str(error))
        except (Interrupted, MachineError):
            raise  # not the job's fault, so that it says nothing about the job
        except Exception as error:
            # Whatever a stranger's job has broken here, the other jobs go on, and so do the games of this one.
            self._broken.add(role.job)
            self.tell(
                What.WARNING, f"gave up the work on job {role.job} ({type(error).__name__}: {error})", job=role.job
            )
            return Progress(state=str(error))
