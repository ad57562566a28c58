"""Helpers: ranks that execute runs of one job after another with rank 0, which alone knows why.

Rank 0 *orders* a run: it names it, sends the job to ranks that lack it, and all execute its steps together. What the
helpers cannot execute, rank 0 executes alone, since it has more to lose by standing still than by being slow. A run
that loses them carries on from its last checkpoint, about whose state all ranks had agreed.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from roundlog.execution import Batches
from roundlog.execution.microbatch import samples_of
from roundlog.execution.ranks import (
    DisagreementError,
    LostRankError,
    Ranks,
    RanksExecutor,
    await_dismissal,
    dismiss,
)
from roundlog.execution.ranks.membership import RankWait
from roundlog.operators.job_arithmetic import tensor_core_products
from roundlog.storage import StorageError
from roundlog.training.job import Job, JobError, JobLimits
from roundlog.training.options import Execution
from roundlog.training.rank_runs import (
    MAX_JOB_BYTES,
    Incoming,
    Outgoing,
    SentJobError,
    can_share,
    executor_of,
    help_rank_0,
    machine_fault,
)

T = TypeVar("T")

MakeExecution = Callable[[Job, int, Path], Execution]

_HAS, _LACKS = b"has", b"lacks"

_ALONE = "until all ranks are started again, rank 0 goes on alone"

_SECONDS_TO_END = 2.0
"""Time for which a role that ends waits for a run to come to the end of a step with the helpers."""


class Helpers:
    """The helpers, as rank 0 uses them. Any thread may: a run that comes while another one has them is executed by this
    rank alone."""

    def __init__(self, ranks: Ranks) -> None:
        """ranks: at least two. This process is number 0; the others are in `help_with_runs`."""
        self._ranks = ranks
        self._in_use = threading.Lock()
        self._gone = False

    @property
    def problem(self) -> str | None:
        """The sentence about ranks that keep others waiting in the midst of a step, for longer than honest ranks do;
        None if there are none."""
        return None if self._gone else self._ranks.membership.stragglers.problem

    def execute(
        self, job: Job, run: Callable[[MakeExecution], T], alone: MakeExecution, warn: Callable[[str], None]
    ) -> T:
        """The result of `run`, which executes a job in a directory by what it is given, and carries on there if it is
        called again: by all ranks, or `alone`. warn: is told, in one sentence, why this rank executes it alone.

        Raises as `run`; DisagreementError if rank 0 is the rank whose values are wrong."""
        if self._gone or not self._in_use.acquire(blocking=False):
            return run(alone)
        try:
            order = _Order(self._ranks, job, alone, warn)
            try:
                return run(order.execution)
            except DisagreementError as error:
                if error.rank_0_differs:
                    raise
                why = str(error)
            except LostRankError as error:
                if self._ranks.membership.is_leaving:
                    raise
                why = self._ranks.membership.lost or str(error)
            finally:
                self._end(order, warn)
            self._dismiss()
            warn(f"{_ALONE}, from the last checkpoint: {why}")
            return run(alone)
        finally:
            self._in_use.release()

    def dismiss(self) -> None:
        """Lets the helpers end: there will be no more runs."""
        if self._in_use.acquire(timeout=_SECONDS_TO_END):
            self._dismiss()
            self._in_use.release()
        else:
            self._give_up("it has ended in the midst of a run")
            self.leave()

    def leave(self) -> None:
        """Ends what any thread does with the helpers, which are not told: the process is about to end."""
        self._ranks.membership.is_leaving = self._gone = True
        if self._in_use.acquire(timeout=_SECONDS_TO_END):
            self._in_use.release()

    def _end(self, order: _Order, warn: Callable[[str], None]) -> None:
        """Brings the helpers back to where they wait for orders, from wherever the run has left them."""
        if not order.is_told:
            return
        if not order.is_between_steps:
            # An error of this rank alone has ended a step which the others are still in.
            if self._ranks.membership.lost is None:
                warn(f"{_ALONE}: it could not end a step that all ranks execute")
            self._give_up("it could not end a step that all ranks execute")
            return
        try:
            dismiss(self._ranks)
        except LostRankError as error:
            warn(f"{_ALONE}: {self._ranks.membership.lost or error}")
            self._gone = True

    def _give_up(self, reason: str) -> None:
        if not self._gone:
            self._ranks.give_up(reason)
        self._gone = True

    def _dismiss(self) -> None:
        if not self._gone:
            with suppress(LostRankError):
                self._ranks.broadcast_bytes(b"")
        self._gone = True


class _Order:
    """The order of one run."""

    def __init__(self, ranks: Ranks, job: Job, alone: MakeExecution, warn: Callable[[str], None]) -> None:
        self._ranks, self._job, self._alone, self._warn = ranks, job, alone, warn
        self._executors: list[RanksExecutor] = []
        self._refused = False
        self._is_telling = False

    @property
    def is_told(self) -> bool:
        """Whether the helpers were told of the run, and have not refused it."""
        return bool(self._executors) or self._is_telling

    @property
    def is_between_steps(self) -> bool:
        return not self._is_telling and all(one.is_between_steps for one in self._executors)

    def execution(self, job: Job, micro_batches: int, run_dir: Path) -> Execution:
        """The execution of the ordered job (an `execution` of `RunOptions`). Raises LostRankError."""
        why = self._problem()
        if why is None:
            executor = executor_of(job, self._ranks, micro_batches, run_dir)
            if not self._executors:
                why = self._tell(run_dir)
        if why is not None:
            if not self._refused:
                self._warn(f"rank 0 executes this job alone: {why}")
            self._refused = True
            return self._alone(job, micro_batches, run_dir)
        self._executors.append(executor)
        return Execution(executor, Batches(job.dataset, job.spec))

    def _problem(self) -> str | None:
        if self._refused:
            return "it was refused before"
        samples = samples_of(self._job.program)
        if samples < self._ranks.size:
            return f"{samples} samples of a batch cannot be shared out among {self._ranks.size} ranks"
        if can_share(self._job):
            return None
        return f"it rounds by the policy `{self._job.spec.policy_name}`, which ranks do not follow"

    def _tell(self, run_dir: Path) -> str | None:
        """Tells the helpers of the run, and sends the job if one lacks it. Returns why one cannot take part, if so."""
        self._is_telling = True
        self._ranks.broadcast_bytes(self._job.spec.run_id.hex().encode())
        why = None
        if _LACKS in self._ranks.gather_bytes(_HAS):
            with _emptied(run_dir / "sent") as room:
                why = self._send(room)
        self._is_telling = False
        return why

    def _send(self, room: Path) -> str | None:
        try:
            outgoing = Outgoing(self._job, room)
        except (OSError, StorageError) as error:
            # All refuse a job without a manifest.
            self._ranks.broadcast_bytes(b"")
            self._refusal()
            return _not_sent(error)
        self._ranks.broadcast_bytes(outgoing.manifest)
        if (refusal := self._refusal()) is not None:
            return refusal
        unread = None
        try:
            for piece in outgoing.pieces():
                self._ranks.broadcast_bytes(piece)
        except (OSError, StorageError) as error:
            unread = _not_sent(error)
        self._ranks.broadcast_bytes(b"")
        refusal = self._refusal()
        return unread or refusal

    def _refusal(self) -> str | None:
        said = self._ranks.gather_bytes(b"")
        refusing = next((rank for rank, one in enumerate(said) if one), None)
        if refusing is None:
            return None
        return f"{self._ranks.membership.name(refusing)} cannot take part: {said[refusing].decode(errors='replace')}"


def _not_sent(error: Exception) -> str:
    return f"it cannot be sent to the other ranks ({error})"


@contextmanager
def _emptied(directory: Path) -> Iterator[Path]:
    """A directory for a while. A process that was killed may have left it behind."""
    shutil.rmtree(directory, ignore_errors=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def help_with_runs(ranks: Ranks, limits: JobLimits, most_bytes: int = MAX_JOB_BYTES) -> int:
    """Executes, on another rank, the steps of all runs that rank 0 orders, until it has no more. Returns how many had a
    result.

    limits, most_bytes: most memory and disk for a job. Raises LostRankError, MachineError."""
    done, receiver = 0, _Receiver(ranks, limits, most_bytes)
    try:
        while run := _next_run(ranks):
            job = receiver.job(run)
            if job is None:
                continue
            try:
                done += help_rank_0(ranks, job)
            except DisagreementError:
                # Rank 0 says what becomes of it.
                await_dismissal(ranks)
    finally:
        receiver.close()
    return done


def _next_run(ranks: Ranks) -> str:
    """The next run that rank 0 orders, by its name; "" if there are no more."""
    with ranks.membership.stragglers.expecting(RankWait.RUN):
        return ranks.broadcast_bytes(None).decode()


class _Receiver:
    """The job that a helper has; a run that gives way to another one and carries on is not sent again."""

    def __init__(self, ranks: Ranks, limits: JobLimits, most_bytes: int) -> None:
        self._ranks, self._limits, self._most = ranks, limits, most_bytes
        self._job: Job | None = None
        self._room: tempfile.TemporaryDirectory[str] | None = None

    def job(self, run: str) -> Job | None:
        """The job of a run that rank 0 has named; None if a rank cannot take part in it."""
        has = self._job is not None and self._job.spec.run_id.hex() == run
        if _LACKS not in self._ranks.gather_bytes(_HAS if has else _LACKS):
            return self._job
        self.close()
        manifest = self._ranks.broadcast_bytes(None)
        incoming = None
        try:
            self._room = tempfile.TemporaryDirectory(prefix="tiebreak-job-")
            incoming = Incoming(manifest, run, Path(self._room.name), self._most)
            why = ""
        except (SentJobError, OSError) as error:
            why = str(error)
        if any(self._ranks.gather_bytes(why.encode())):
            return None
        assert incoming is not None
        while piece := self._ranks.broadcast_bytes(None):
            try:
                if not why:
                    incoming.take(piece)
            except (SentJobError, OSError) as error:
                why = str(error)
        try:
            self._job = None if why else incoming.job(self._limits)
            if self._job is not None:
                # Which products it has, nobody knew when the ranks agreed.
                why = machine_fault(self._ranks.device, tensor_core_products(self._job.program))
        except (SentJobError, JobError, OSError) as error:
            why = str(error)
        if any(self._ranks.gather_bytes(why.encode())):
            self._job = None
        return self._job

    def close(self) -> None:
        """Lets go of the job, and of its files."""
        self._job = None
        if self._room is not None:
            self._room.cleanup()
            self._room = None
