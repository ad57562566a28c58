"""Publishing: log, checkpoints and model of a party's own run, as content of its store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from roundlog.segment_audits import Publisher
from roundlog.training import checkpoint_path

from tiebreak.contract.structs import JobView
from tiebreak.roles.background_jobs import BackgroundJob, Lane, Priority
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import What


@dataclass(frozen=True, slots=True)
class PublishedAddresses:
    """Content addresses of a log and of a model."""

    log_cid: str
    model_cid: str


class Publishing:
    """Log and model of a run that a role has recorded, in the directory `run` of the job's room, and every
    `checkpoints`-th of its checkpoints (0: none), which the log's directory lists
    (`roundlog.segment_audits.segment`)."""

    def __init__(self, long_work: LongWork, run: str, checkpoints: int = 0) -> None:
        self._long_work = long_work
        self._run = run
        self._every = checkpoints
        self._listed: tuple[JobView, Publisher] | None = None
        self.is_done = False
        """Whether this process has published them."""

    def addresses(self, posted: JobView, priority: Priority) -> PublishedAddresses | None:
        """The addresses that they will have, computed without publishing anything; None until that is done.

        With a bond at stake that is not kept waiting by stores, which are slow or away when this is asked for."""

        def compute(background_job: BackgroundJob[PublishedAddresses]) -> PublishedAddresses:
            log_dir, model = self._files(posted)
            store = self._long_work.context.store
            self._list(posted, store.address_of_file)
            return PublishedAddresses(store.address_of_directory(log_dir), store.address_of_file(model))

        lane = Lane.GAMES if priority.bonded else Lane.FILES
        return self._long_work.result(lane, "addresses", compute, priority, "computing the addresses of log and model")

    def published(self, posted: JobView, priority: Priority) -> PublishedAddresses | None:
        """The addresses at which they are published; None until they are."""

        def publish(background_job: BackgroundJob[PublishedAddresses]) -> PublishedAddresses:
            log_dir, model = self._files(posted)
            store = self._long_work.context.store
            self._list(posted, store.add_file)
            found = PublishedAddresses(store.add_directory(log_dir), store.add_file(model))
            size = sum(path.stat().st_size for path in log_dir.iterdir())
            self._long_work.tell(What.PUBLISHED, f"published the log ({size} bytes) as {found.log_cid}")
            self._long_work.tell(What.PUBLISHED, f"published the final state as {found.model_cid}")
            return found

        found = self._long_work.result(Lane.FILES, "publishing", publish, priority, "publishing log and model")
        self.is_done = self.is_done or found is not None
        return found

    def publish_so_far(self, posted: JobView, priority: Priority) -> None:
        """Has the checkpoints published that a run under way has made since the last time, beside the run: nobody waits
        for it."""
        if not self._every or (self._long_work.is_begun("checkpoints") and not self._long_work.is_done("checkpoints")):
            return
        if self._listed is None or self._listed[0].spec_hash != posted.spec_hash:
            self._listed = posted, self._publisher(posted, self._long_work.context.store.add_file)
        publisher = self._listed[1]

        def publish(background_job: BackgroundJob[bool]) -> bool:
            publisher.publish()
            return True

        if (due := publisher.due()) > publisher.told:
            self._long_work.result(Lane.FILES, "checkpoints", publish, priority, "publishing checkpoints", about=due)

    def _list(self, posted: JobView, add: Callable[[Path], str]) -> None:
        """Lists the checkpoints in the log's directory, at the addresses that `add` gives them."""
        if self._every:
            count = len(self._publisher(posted, add).publish().states)
            if add == self._long_work.context.store.add_file:
                self._long_work.tell(What.PUBLISHED, f"published {count} checkpoints, which the log lists")

    def _publisher(self, posted: JobView, add: Callable[[Path], str]) -> Publisher:
        run = self._long_work.room(posted) / self._run
        return Publisher(posted.spec.training, run, self._every, add, posted.job_cid)

    def _files(self, posted: JobView) -> tuple[Path, Path]:
        run = self._long_work.room(posted) / self._run
        return run / "log", checkpoint_path(run, posted.spec.training.steps)
