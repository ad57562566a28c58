"""Long work for one job, apart from the games: fetching, runs and audits, and moves that have to be computed; and the
publication of log, checkpoints and model of a party's own run, as content of its store."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from roundlog import training as engine
from roundlog.arithmetic import MachineError
from roundlog.segment_audits import Publisher
from roundlog.storage import StorageError
from roundlog.training import StepEvent, checkpoint_path

from tiebreak.http_client import Pauses
from tiebreak.roles.background_jobs import BackgroundJob, Interrupted, Lane, Priority
from tiebreak.roles.fetched_content import Damaged, JobContent, Refused, read_files
from tiebreak.roles.notices import OUTAGES, Notice, What, sentence
from tiebreak.roles.policy import MeasuredPace, least_clock, too_short
from tiebreak.rpc.chain_errors import AccountError
from tiebreak.store.store_errors import causes

if TYPE_CHECKING:
    from tiebreak.contract.structs import JobView
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.engine import DisputeTrees

T = TypeVar("T")

FOR_GOOD = (Refused, MachineError, AccountError)
"""Errors that no second attempt would change."""

_SECONDS_TO_ANOTHER_ATTEMPT = 30.0
MEASURED_STEPS = 3
"""Steps that are timed before a job's clocks are judged."""


class FilesDamaged(Exception):
    """A job's files are not what they were when they were fetched."""


class LongWork:
    """The long work of a role in one job. A piece has a name, and is asked for at every look until it is done.

    Work tells by itself what it comes to, since nobody waits for it."""

    def __init__(
        self, context: RoleContext, job: int, *, role: str, tell: Callable[[What, str], None], stops: Callable[[], bool]
    ) -> None:
        """role: its name, for notices. tell: tells a notice about the job; any thread may. stops: whether the role was
        told to stop."""
        self.context = context
        self.job = job
        self.tell = tell
        self.stops = stops
        self._role = role
        self.spec_hash: bytes | None = None
        """Spec of the job that the results are about."""
        self._background_jobs: dict[str, BackgroundJob[object]] = {}
        self._pauses: dict[str, Pauses] = {}
        self._patience: dict[str, Pauses] = {}
        self._again: dict[str, float] = {}
        self._block_seconds = 0.0
        self._files: Path | None = None
        """Directory of the job's files, once it is known."""
        self._are_damaged = False

    def try_again(self) -> None:
        """Schedule refused work for another attempt after a pause."""
        for what, background_job in list(self._background_jobs.items()):
            if isinstance(background_job.error, Refused):
                self.forget(what)
                self._again[what] = self.context.clock() + _SECONDS_TO_ANOTHER_ATTEMPT

    def room(self, posted: JobView) -> Path:
        """Return directory of the job's files."""
        return self.context.room(self.job, posted)

    def result(
        self,
        lane: Lane,
        what: str,
        call: Callable[[BackgroundJob[T]], T],
        priority: Priority,
        doing: str,
        *,
        about: Hashable = None,
    ) -> T | None:
        """Return the result of `call`; None until it is done. `call` runs apart from the games. It runs again, after a
        pause, if it fails with an error that may pass, and it runs anew if `about` changes. Raises its error if that is
        in `FOR_GOOD`, and Interrupted."""
        if self._again.get(what, 0.0) > self.context.clock():
            return None
        background_job = self.begin(lane, what, call, priority, doing, about=about)
        if not background_job.done:
            return None
        try:
            return background_job.result()
        except FOR_GOOD:
            raise
        except Interrupted:
            self.forget(what)
            raise
        except Exception as error:
            # An error in long work must not end the games of this job or of others.
            self.forget(what)
            text = sentence(error) if isinstance(error, OUTAGES) else f"{type(error).__name__}: {error}"
            self.tell(What.WARNING, f"{doing} did not succeed: {text}")
            self._are_damaged = self._are_damaged or self._is_about_files(error)
            pauses = self._pauses.setdefault(what, Pauses(first=1.0, most=30.0 if lane is Lane.GAMES else 300.0))
            self._again[what] = self.context.clock() + pauses.next()
            return None

    def begin(
        self,
        lane: Lane,
        what: str,
        call: Callable[[BackgroundJob[T]], T],
        priority: Priority,
        doing: str,
        *,
        about: Hashable = None,
    ) -> BackgroundJob[T]:
        """Return the background job behind `result`."""
        key = (id(self), self.spec_hash, what, about)
        if what in self._background_jobs and self._background_jobs[what].key != key:
            self.forget(what)
        background_job = self.context.background_jobs.ask(lane, key, call, priority, doing)
        self._background_jobs[what] = background_job  # type: ignore[assignment]  # of whatever type
        return background_job

    def forget(self, what: str) -> None:
        """Drop a piece of work, done or not."""
        background_job = self._background_jobs.pop(what, None)
        if background_job is not None:
            self.context.background_jobs.forget(background_job.key)

    def is_begun(self, what: str) -> bool:
        """Return whether a piece of work was asked for."""
        return what in self._background_jobs

    def is_done(self, what: str) -> bool:
        """Return whether a piece of work has a result."""
        background_job = self._background_jobs.get(what)
        return background_job is not None and background_job.done and background_job.error is None

    def seconds_left(self, what: str) -> float | None:
        """Return seconds until a run is done here, with those before it without which a bond is lost; None if that is
        not measured."""
        if (background_job := self._background_jobs.get(what)) is None or not background_job.measured().seconds:
            return None
        return background_job.measured().seconds + self.context.background_jobs.promised(background_job.key)

    def drop(self) -> None:
        """Drop all work for the job."""
        for what in list(self._background_jobs):
            self.forget(what)
        self._again.clear()

    def doing(self) -> list[str]:
        """Work under way, one clause each."""
        found = []
        for background_job in self._background_jobs.values():
            if not background_job.done:
                steps = f" (step {background_job.steps} of {background_job.total})" if background_job.total else ""
                found.append(f"{background_job.doing} of job {self.job}{steps}")
        return found

    def files_are_here(self, posted: JobView, priority: Priority) -> bool:
        """Return whether the job's files are in its room and were checked. They are not kept in memory; `read_job`
        reads them again. Raises Refused."""
        self._block_seconds = self.context.queue.block_seconds()

        def fetch(background_job: BackgroundJob[bool]) -> bool:
            self.content(posted, priority, self.patience("files")).job()
            return True

        return self.result(Lane.FILES, "files", fetch, priority, "fetching the files") is not None

    def content(self, posted: JobView, priority: Priority, within: float) -> JobContent:
        """Return the job's content, each fetch of which may take `within` seconds."""
        room, told = self.room(posted), partial(self.tell, What.WARNING)
        return JobContent(
            context=self.context, posted=posted, room=room, within=within, bonded=priority.bonded, warn=told
        )

    def patience(self, what: str) -> float:
        """Return seconds for an attempt to fetch content of others; more with each attempt. What has come by then is
        kept. A store or peer that lets every block drip must not hold what waits behind it, or what can be had
        elsewhere."""
        return self._patience.setdefault(what, Pauses(first=60.0, most=3600.0)).next()

    def read_job(self, posted: JobView) -> engine.Job:
        """Return the job, read from the files in its room; for work that runs apart from the games. Raises Refused, and
        FilesDamaged, after which they are mended before the work is done again."""
        self._files = self.room(posted) / "job"
        try:
            return read_files(self.context, posted, self._files)
        except Damaged as error:
            raise FilesDamaged(str(error)) from error

    def _is_about_files(self, error: BaseException) -> bool:
        """Return whether an error is about the job's files, which stay on the disk while they are used."""
        return any(
            isinstance(cause, FilesDamaged) or (isinstance(cause, StorageError) and cause.path.parent == self._files)
            for cause in causes(error)
        )

    def mend_files(self) -> None:
        """Drop what holds the job's files if they are damaged, so that they are read again, and mended. What is
        executed is on disk."""
        if not self._are_damaged:
            return
        self._are_damaged = False
        for what, background_job in list(self._background_jobs.items()):
            if background_job.done if what == "files" else background_job.lane is not Lane.FILES:
                self.forget(what)

    def recalled(
        self, posted: JobView, priority: Priority, runs: Sequence[str], doing: str, *, root: bytes | None = None
    ) -> list[DisputeTrees] | None:
        """Return the dispute trees of a finished run, read without executing anything, as a list of one. The list is
        empty if there is no such run, or it came to another checkpoint root than `root`; None until that is known.
        runs: directories in the job's room, in the order in which they are tried."""

        def recall(background_job: BackgroundJob[list[DisputeTrees]]) -> list[DisputeTrees]:
            job, room = self.read_job(posted), self.room(posted)
            for run in runs:
                found = self.context.engine.recall(job, room / run) if (room / run).is_dir() else None
                if found is not None and root in (None, found.claim.root):
                    return [found]
            return []

        return self.result(Lane.GAMES, "recalling", recall, priority, doing, about=root)

    def on_step(
        self, background_job: BackgroundJob[T], posted: JobView, job: engine.Job, doing: str, *, bonded: bool
    ) -> Callable[[StepEvent], None]:
        """Return a callback for the engine: reports progress, gives way to more urgent work, and obeys `stop`. Before a
        bond is paid it checks the clocks of games against the measured time of a step."""
        spec, seen = job.spec, [float("inf")]

        def measured() -> float:
            # Games are played without the help of other ranks.
            engine = self.context.engine
            return min(seen) if engine.helpers is None else engine.step_seconds(job)

        def told(event: StepEvent) -> None:
            self.context.notify(
                Notice(
                    role=self._role,
                    what=What.STEP,
                    text=doing,
                    job=self.job,
                    done=event.step + 1,
                    total=spec.steps,
                    loss=event.loss,
                )
            )
            if self.stops():
                raise Interrupted
            # The first step may include the compilation of kernels.
            seen.append(event.seconds)
            if not bonded and len(seen) == MEASURED_STEPS + 1:
                self.require_time(posted, job, measured())
            elif not bonded and len(seen) <= MEASURED_STEPS and event.step + 1 == spec.steps:
                self.require_time(posted, job, min(measured(), self.context.engine.step_seconds(job)))
            # A pause at the first step of an interval loses only that step.
            background_job.taken(event.step, spec.steps, event.seconds, may_pause=event.step % spec.interval == 0)

        return told

    def require_time(
        self, posted: JobView, job: engine.Job, step_seconds: float, *, intervals_apart: int | None = None
    ) -> None:
        """Check a job's clocks against the time that its games take here. intervals_apart: most intervals between two
        states that are kept; None: as the engine keeps them. Raises Refused if the clocks are too short."""
        pace, apart = MeasuredPace(block=self._block_seconds, step=step_seconds), intervals_apart
        if apart is None:
            apart = self.context.engine.options.keep_every
        needed = least_clock(job.program, job.spec, pace, posted.terms.concurrent_games, apart)
        if self.context.policy.least_clock is None and (objection := too_short(posted, needed)) is not None:
            raise Refused(objection)


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
        """Return the addresses that they will have, computed without publishing anything; None until that is done.

        With a bond at stake that is not kept waiting by stores, which are slow or away when this is asked for."""

        def compute(background_job: BackgroundJob[PublishedAddresses]) -> PublishedAddresses:
            log_dir, model = self._files(posted)
            store = self._long_work.context.store
            self._list(posted, store.address_of_file)
            return PublishedAddresses(store.address_of_directory(log_dir), store.address_of_file(model))

        lane = Lane.GAMES if priority.bonded else Lane.FILES
        return self._long_work.result(lane, "addresses", compute, priority, "computing the addresses of log and model")

    def published(self, posted: JobView, priority: Priority) -> PublishedAddresses | None:
        """Return the addresses at which they are published; None until they are."""

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

    def finish(self, posted: JobView, stake: int, trees: Callable[[Priority], DisputeTrees | None]) -> bool:
        """Return whether log and model of an open claim or audit are published by this process; has it done if not: it
        may have been opened at the last moment without a store, or by a process that was killed. stake: wei. trees:
        gets the run ready; None until it is."""
        if not self.is_done:
            priority = Priority(deadline=posted.claim.challenge_deadline, stake=stake, bonded=True)
            if trees(priority) is not None:
                self.published(posted, priority)
        return self.is_done

    def publish_so_far(self, posted: JobView, priority: Priority) -> None:
        """Have the checkpoints published that a run under way has made since the last time, beside the run: nobody
        waits for it."""
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
        """List the checkpoints in the log's directory, at the addresses that `add` gives them."""
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
