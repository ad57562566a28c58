"""Publishing: log and model of a party's own finished run, as content of its store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roundlog.training.checkpoints import checkpoint_path

from tiebreak.chain.records import JobView
from tiebreak.roles.agenda import Duty
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import What
from tiebreak.roles.workshop import Errand, Lane


@dataclass(frozen=True, slots=True)
class Addresses:
    """Content addresses of a log and of a model."""

    log_cid: str
    model_cid: str


class Publishing:
    """Log and model of a run that a role has recorded, in the directory `run` of the job's room."""

    def __init__(self, role: JobRole, run: str) -> None:
        self._role = role
        self._run = run
        self.is_done = False
        """Whether this process has published them."""

    def addresses(self, posted: JobView, duty: Duty) -> Addresses | None:
        """The addresses that they will have, computed without publishing anything; None until that is done.

        With a bond at stake that is not kept waiting by stores, which are slow or away when this is asked for."""

        def compute(errand: Errand[Addresses]) -> Addresses:
            log_dir, model = self._files(posted)
            store = self._role.context.store
            return Addresses(store.address_of_directory(log_dir), store.address_of_file(model))

        lane = Lane.GAMES if duty.bonded else Lane.FILES
        return self._role.work(lane, "addresses", compute, duty, "computing the addresses of log and model")

    def published(self, posted: JobView, duty: Duty) -> Addresses | None:
        """The addresses at which they are published; None until they are."""

        def publish(errand: Errand[Addresses]) -> Addresses:
            log_dir, model = self._files(posted)
            store = self._role.context.store
            found = Addresses(store.add_directory(log_dir), store.add_file(model))
            size = sum(path.stat().st_size for path in log_dir.iterdir())
            self._role.notify_job(What.PUBLISHED, f"published the log ({size} bytes) as {found.log_cid}")
            self._role.notify_job(What.PUBLISHED, f"published the final state as {found.model_cid}")
            return found

        found = self._role.work(Lane.FILES, "publishing", publish, duty, "publishing log and model")
        self.is_done = self.is_done or found is not None
        return found

    def _files(self, posted: JobView) -> tuple[Path, Path]:
        run = self._role.context.room(self._role.job, posted) / self._run
        return run / "log", checkpoint_path(run, posted.spec.training.steps)
