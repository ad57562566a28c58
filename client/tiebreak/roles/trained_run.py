"""The run of a trainer: trained once, and read again, or trained again to the same bits, where a game needs it."""

from __future__ import annotations

from roundlog.execution import StoppedError

from tiebreak.contract.enums import JobStatus
from tiebreak.contract.structs import JobView
from tiebreak.roles.background_jobs import BackgroundJob, Lane, Priority
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.fetched_content import Refused
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import What

RUN = "run"
"""Name of the training's directory in the job's room."""


class TrainedRun:
    """The training of one job."""

    def __init__(self, long_work: LongWork) -> None:
        self._work = long_work

    def trained(self, posted: JobView, priority: Priority) -> DisputeTrees | None:
        """The dispute trees of the finished training; None until it is done."""
        return self._work.result(
            Lane.RUNS, "training", lambda background_job: self._train(posted, background_job), priority, "the training"
        )

    def _train(self, posted: JobView, background_job: BackgroundJob[DisputeTrees]) -> DisputeTrees:
        """Trains. Raises Refused for a run that stops, or for clocks that are too short for this machine."""
        room, job = self._work.room(posted), self._work.read_job(posted)
        bonded = posted.status is not JobStatus.OPEN
        on_step = self._work.on_step(background_job, posted, job, "training", bonded=bonded)
        try:
            result = self._work.context.engine.train(job, room / RUN, on_step)
        except StoppedError as error:
            raise Refused(str(error)) from error
        self._work.tell(What.COMPUTED, f"trained to checkpoint root 0x{result.checkpoint_root.hex()}")
        return self._work.context.engine.trees(job, room / RUN, result.state_roots)

    def trees(self, posted: JobView, priority: Priority) -> DisputeTrees | None:
        """The trees that games are played with; None until they are ready."""
        if not self._work.files_are_here(posted, priority):
            return None
        recalled = self._work.recalled(posted, priority, (RUN,), "reading the run again")
        if recalled is None:
            return None
        if recalled:
            self._work.forget("training")
            return recalled[0]
        # The run directory is lost, but training gives the same bits again.
        return self.trained(posted, priority)

    def rest(self) -> None:
        """Frees the memory of a run that nothing needs at present: what games need is on disk, and a role with many
        claims keeps none in memory."""
        self._work.forget("training")
        self._work.forget("recalling")
