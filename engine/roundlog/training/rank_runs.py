"""Runs by ranks: rank 0 trains or audits as a process alone does, and the others execute every step with it.

Only rank 0 has a run directory. A state that it resumes from is sent to the others with the first step.

The ranks of a role are *helpers*: they execute runs of one job after another with rank 0, which alone knows why. Rank 0
orders a run: it names it, sends the job's files to ranks that lack it, and all execute its steps together. What the
helpers cannot execute, rank 0 executes alone. A run that loses them carries on from its last checkpoint, about whose
state all ranks had agreed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import torch

from roundlog.arithmetic import MachineError, check_machine, right_float_mode
from roundlog.data import file_pieces
from roundlog.execution import Batches
from roundlog.execution.microbatch import samples_of
from roundlog.execution.ranks import (
    DisagreementError,
    LaunchError,
    LostRankError,
    Ranks,
    RanksExecutor,
    await_dismissal,
    dismiss,
    serve,
)
from roundlog.kernels.threads import own_threads
from roundlog.operators import StepInputs
from roundlog.operators.job_arithmetic import tensor_core_products
from roundlog.storage import StorageError
from roundlog.training.job import DATA, JOB_FILES, Job, JobError, JobLimits
from roundlog.training.options import Execution, RunOptions
from roundlog.training.run import RunError, usable

T = TypeVar("T")

MakeExecution = Callable[[Job, int, Path], Execution]

PIECE = 16 << 20
"""Most bytes of a file that are sent at once."""

_HAS, _LACKS = b"has", b"lacks"

_ALONE = "until all ranks are started again, rank 0 goes on alone"

_SECONDS_TO_END = 2.0
"""Time for which a role that ends waits for a run to come to the end of a step with the helpers."""


class RankMismatchError(RuntimeError):
    """Ranks were started with different jobs or versions, or one of them cannot compute. The message names it."""


def can_share(job: Job) -> bool:
    """Return whether ranks can execute a job at all."""
    return not job.spec.log_decides


def agree(ranks: Ranks, job: Job | None, device: str = "cpu") -> None:
    """Return on every rank if all of them have the same job and software, and compute as IEEE 754 says, and the job's
    products as its arithmetic of tensor cores does, each on its device (another one, if it likes). job: None where
    jobs come later.

    All ranks call it. Raises RankMismatchError, on every rank the same, and LaunchError for a job that ranks cannot
    execute."""
    if job is not None and not can_share(job):
        raise LaunchError(
            f"this job rounds by the policy `{job.spec.policy_name}`, under which a sum depends on how it is cut: run "
            "it in one process, without ranks"
        )
    mine = {
        "job": "" if job is None else job.spec.run_id.hex(),
        "version of tiebreak": version("tiebreak"),
        # PyTorch for CUDA and for the CPU alone are builds of one version.
        "version of PyTorch": str(torch.__version__).partition("+")[0],
        "machine": machine_fault(device, () if job is None else tensor_core_products(job.program)),
    }
    said = [json.loads(one) for one in ranks.gather_bytes(json.dumps(mine).encode())]
    problem = difference(said, ranks.membership.name)
    if problem is not None:
        raise RankMismatchError(problem)
    ranks.use(torch.device(device))


def machine_fault(device: torch.device | str, products: Collection[tuple[str, str]]) -> str:
    """Return why this rank cannot compute on a device, as a sentence; "" if it can. products: arithmetics of tensor
    cores and the formats of their operands that a job has."""
    try:
        # As every step is executed: what can be put right is.
        with own_threads(), right_float_mode("the check of this machine"):
            check_machine(usable(device), products)
    except (MachineError, RunError) as error:
        return str(error)
    return ""


def difference(said: Sequence[Mapping[str, str]], name: Callable[[int], str]) -> str | None:
    """Return a sentence about the first rank that cannot compute, or differs from rank 0; None if there is none. said:
    what every rank says of itself. name: of a rank, for people."""
    for rank, one in enumerate(said):
        if one["machine"]:
            return f"{name(rank)} cannot take part: {one['machine']}"
        for key, value in one.items():
            first = said[0][key]
            if value != first:
                remedy = "give every rank the same job" if key == "job" else "install the same version on every machine"
                return f"{name(rank)} has another {key} ({value[:64]}) than rank 0 ({first[:64]}): {remedy}"
    return None


def by_ranks(options: RunOptions, ranks: Ranks) -> RunOptions:
    """Return the options of rank 0's run, by which every step is executed by all ranks, on the device that this one has
    agreed on."""

    def execution(job: Job, micro_batches: int, run_dir: Path) -> Execution:
        return Execution(executor_of(job, ranks, micro_batches, run_dir), Batches(job.dataset, job.spec))

    return replace(options, device=ranks.device, execution=execution)


def executor_of(job: Job, ranks: Ranks, micro_batches: int, run_dir: Path) -> RanksExecutor:
    """Return the executor of a job by all ranks, on rank 0. run_dir: directory for slices that micro-batches keep on
    disk. Raises as `RanksExecutor`."""
    return RanksExecutor(job.program, ranks, job.spec.f32_format, job.spec.interval, micro_batches, run_dir)


def help_rank_0(ranks: Ranks, job: Job) -> int:
    """Execute, on another rank, every step of a job that rank 0 executes, until it has no more. Return how many had a
    result. Raises LostRankError, DisagreementError, ProgramError if a batch has fewer samples than there are ranks,
    MachineError."""
    batches = Batches(job.dataset, job.spec)

    def inputs_of(step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        return job.inputs(batches, step, states, ranks.device)

    return serve(job.program, ranks, inputs_of, job.spec.f32_format, job.spec.interval)


class Helpers:
    """The helpers, as rank 0 uses them. Any thread may: a run that comes while another one has them is executed by this
    rank alone."""

    def __init__(self, ranks: Ranks) -> None:
        """ranks: at least two. This process is number 0; the others are in `help_with_runs`."""
        self._ranks = ranks
        self._in_use = threading.Lock()
        self._gone = False

    def execute(
        self, job: Job, run: Callable[[MakeExecution], T], alone: MakeExecution, warn: Callable[[str], None]
    ) -> T:
        """Return the result of `run`, which executes a job in a directory by what it is given, and carries on there if
        it is called again: by all ranks, or `alone`. warn: called with one sentence about why this rank executes it
        alone.

        Raises as `run`; DisagreementError if rank 0 is the rank whose values are wrong."""
        if self._gone or not self._in_use.acquire(blocking=False):
            return run(alone)
        try:
            order = _RunOrder(self._ranks, job, alone, warn)
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
        """Let the helpers end: there will be no more runs."""
        if self._in_use.acquire(timeout=_SECONDS_TO_END):
            self._dismiss()
            self._in_use.release()
        else:
            self._give_up("it has ended in the midst of a run")
            self.leave()

    def leave(self) -> None:
        """End what any thread does with the helpers, which are not told: the process is about to end."""
        self._ranks.membership.is_leaving = self._gone = True
        if self._in_use.acquire(timeout=_SECONDS_TO_END):
            self._in_use.release()

    def _end(self, order: _RunOrder, warn: Callable[[str], None]) -> None:
        """Bring the helpers back to where they wait for runs, from wherever the run has left them."""
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


class _RunOrder:
    """Rank 0's order of one run."""

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
        """Whether the helpers wait for an order of a step."""
        return not self._is_telling and all(one.is_between_steps for one in self._executors)

    def execution(self, job: Job, micro_batches: int, run_dir: Path) -> Execution:
        """Return the execution of the ordered job (an `execution` of `RunOptions`). Raises LostRankError."""
        if self._refused:
            return self._alone(job, micro_batches, run_dir)
        why = self._problem()
        if why is None:
            executor = executor_of(job, self._ranks, micro_batches, run_dir)
            if not self._executors:
                why = self._tell(run_dir)
        if why is not None:
            self._warn(f"rank 0 executes this job alone: {why}")
            self._refused = True
            return self._alone(job, micro_batches, run_dir)
        self._executors.append(executor)
        return Execution(executor, Batches(job.dataset, job.spec))

    def _problem(self) -> str | None:
        samples = samples_of(self._job.program)
        if samples < self._ranks.size:
            return f"{samples} samples of a batch cannot be shared out among {self._ranks.size} ranks"
        if can_share(self._job):
            return None
        return f"it rounds by the policy `{self._job.spec.policy_name}`, which ranks do not follow"

    def _tell(self, run_dir: Path) -> str | None:
        """Tell the helpers of the run, and send the job if one lacks it. Return why one cannot take part, if so."""
        self._is_telling = True
        self._ranks.broadcast_bytes(self._job.spec.run_id.hex().encode())
        why = None
        if _LACKS in self._ranks.gather_bytes(_HAS):
            with _emptied(run_dir / "sent") as room:
                why = self._send(room)
        self._is_telling = False
        return why

    def _send(self, room: Path) -> str | None:
        """Send every file in pieces, and an empty one after the last. room: for files that are made to be sent; data
        are read where they are."""
        why: Exception | None = None
        try:
            self._job.write_all_but_data(room)
        except (OSError, StorageError) as error:
            why = error
        for name in JOB_FILES:
            try:
                for piece in () if why else self._pieces(room, name):
                    self._ranks.broadcast_bytes(piece)
            except (OSError, StorageError) as error:
                why = error
            self._ranks.broadcast_bytes(b"")
        said = self._ranks.gather_bytes(b"")
        if why is not None:
            return f"it cannot be sent to the other ranks ({why})"
        refusing = next((rank for rank, one in enumerate(said) if one), None)
        if refusing is None:
            return None
        return f"{self._ranks.membership.name(refusing)} cannot take part: {said[refusing].decode()}"

    def _pieces(self, room: Path, name: str) -> Iterator[bytes]:
        if name == DATA:
            yield from map(bytes, file_pieces(self._job.dataset))
            return
        with (room / name).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece


@contextmanager
def _emptied(directory: Path) -> Iterator[Path]:
    """A directory that exists within the block. A process that was killed may have left it behind."""
    shutil.rmtree(directory, ignore_errors=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def help_with_runs(ranks: Ranks, limits: JobLimits) -> int:
    """Execute, on another rank, the steps of all runs that rank 0 orders, until it has no more. Return how many had a
    result.

    limits: most memory for a job. Raises LostRankError, MachineError."""
    done, receiver = 0, _Receiver(ranks, limits)
    try:
        while run := ranks.broadcast_bytes(None).decode():  # the name of the next one; empty if there are no more
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


class _Receiver:
    """The job that a helper has; a run that gives way to another one and carries on is not sent again."""

    def __init__(self, ranks: Ranks, limits: JobLimits) -> None:
        self._ranks, self._limits = ranks, limits
        self._job: Job | None = None
        self._room: tempfile.TemporaryDirectory[str] | None = None

    def job(self, run: str) -> Job | None:
        """Return the job of a run that rank 0 has named; None if a rank cannot take part in it."""
        has = self._job is not None and self._job.spec.run_id.hex() == run
        if _LACKS not in self._ranks.gather_bytes(_HAS if has else _LACKS):
            return self._job
        self.close()
        self._room = tempfile.TemporaryDirectory(prefix="tiebreak-job-")
        room = Path(self._room.name)
        why = self._receive(room)
        if not why:
            try:
                self._job = Job.read(room, self._limits)
                # Which products it has was not known when the ranks agreed.
                why = machine_fault(self._ranks.device, tensor_core_products(self._job.program))
            except (JobError, OSError) as error:
                why = str(error)
        if any(self._ranks.gather_bytes(why.encode())):
            self._job = None
        return self._job

    def _receive(self, room: Path) -> str:
        """Write a job's files. Return why that was not possible; "" if it was. All pieces are taken in any case."""
        why = ""
        for name in JOB_FILES:
            pieces = iter(lambda: self._ranks.broadcast_bytes(None), b"")
            try:
                with (room / name).open("wb") as file:
                    file.writelines(pieces)
            except OSError as error:
                why = f"it cannot keep the job below {room.parent} ({error}): make room, or name a directory by TMPDIR"
                deque(pieces, maxlen=0)
        return why

    def close(self) -> None:
        """Let go of the job, and of its files."""
        self._job = None
        if self._room is not None:
            self._room.cleanup()
            self._room = None
