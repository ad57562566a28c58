"""The follower: one process for many jobs. It looks for new jobs and gives each a role; no job waits for another."""

from __future__ import annotations

from collections.abc import Callable

from roundlog.arithmetic import MachineError

from tiebreak.contract.structs import JobView
from tiebreak.roles.background_jobs import Interrupted
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Progress, What, together
from tiebreak.roles.role import OUTAGES, Role, sentence
from tiebreak.rpc.chain_errors import AccountError

Make = Callable[[int, JobView], JobRole | None]
"""Makes the role of a job, in the follower's context; None for a job to be left alone for good."""


class JobFollower(Role):
    """A role that runs one role for each job on the chain. It never finishes by itself: set `stop`."""

    def __init__(self, context: RoleContext, name: str, make: Make) -> None:
        super().__init__(context)
        self.name = name
        self._make = make
        self._seen = 0
        self._roles: dict[int, JobRole] = {}

    def look(self) -> Progress:
        self._look_for_jobs()
        found = []
        for number, role in list(self._roles.items()):
            progress = self._guarded(role)
            found.append(progress)
            if progress.finished:
                self._roles.pop(number).close()
                self.tell(What.COMPUTED, progress.state, job=number)
        count = len(self._roles)
        return together(found, f"follows {count} {'job' if count == 1 else 'jobs'}")

    def doing(self) -> list[str]:
        return [clause for role in self._roles.values() for clause in role.doing()]

    def repeated_warnings(self) -> str:
        return "; ".join(
            filter(None, [super().repeated_warnings(), *(r.repeated_warnings() for r in self._roles.values())])
        )

    def _look_for_jobs(self) -> None:
        queue = self.context.queue
        for number, posted in queue.jobs_after(self._seen):
            role = self._make(number, posted)
            if role is None:
                queue.watch.unfollow(number)
            else:
                role.stop = self.stop
                self._roles[number] = role
            self._seen = number

    def _guarded(self, role: JobRole) -> Progress:
        try:
            return role.look()
        except (Interrupted, MachineError, AccountError):
            raise  # not the job's fault, so that it says nothing about the job
        except OUTAGES as error:
            role.notify_job(What.WARNING, sentence(error))
            return Progress(state=sentence(error))
        except Exception as error:
            # An error in one job must not end the others; this job is looked at again.
            role.notify_job(What.WARNING, f"could not look after job {role.job} ({type(error).__name__}: {error})")
            return Progress(state=str(error))
