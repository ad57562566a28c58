"""Runs by ranks: rank 0 trains or audits as a process alone does, and the others help it with every step.

Only rank 0 has a run directory. A state that it resumes from is sent to the others with the first step.

Jobs are sent to ranks as the bytes of their files. A receiver believes none of them: sizes are checked before anything
is written, and all else by `Job.read`. A sent job is a *manifest* (JSON: the run, and the size of every file), and the
files' bytes, one file behind another, in pieces of at most `PIECE` bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import torch

from roundlog.arithmetic import MachineError, check_machine, right_float_mode
from roundlog.data import file_bytes, file_pieces
from roundlog.execution import Batches
from roundlog.execution.ranks import LaunchError, Ranks, RanksExecutor, serve
from roundlog.json_text import parse_json
from roundlog.kernels.threads import own_threads
from roundlog.operators import StepInputs
from roundlog.operators.job_arithmetic import tensor_core_products
from roundlog.storage import open_regular
from roundlog.training.job import BLOCKS, DATA, INITIAL, PROGRAM, SCHEDULE, SPEC, Job, JobLimits
from roundlog.training.options import Execution, RunOptions
from roundlog.training.run import RunError, usable


class RankMismatchError(RuntimeError):
    """Ranks were started with different jobs or versions, or one of them cannot compute. The message names it."""


def can_share(job: Job) -> bool:
    """Whether ranks can execute a job at all."""
    return not job.spec.log_decides


def agree(ranks: Ranks, job: Job, device: str = "cpu") -> None:
    """Returns on every rank if all of them have the same job and software, and compute as IEEE 754 says, and the job's
    products as its arithmetic of tensor cores does, each on its device (another one, if it likes).

    All ranks call it. Raises RankMismatchError, on every rank the same, and LaunchError for a job that ranks cannot
    execute."""
    if not can_share(job):
        raise LaunchError(
            f"this job rounds by the policy `{job.spec.policy_name}`, under which a sum depends on how it is cut: run "
            "it in one process, without ranks"
        )
    _agree(ranks, device, {"job": job.spec.run_id.hex()}, machine_fault(device, tensor_core_products(job.program)))


def agree_without_job(ranks: Ranks, device: str = "cpu") -> None:
    """Returns on every rank if all of them have the same software, and compute as IEEE 754 says, each on its device.
    Products of tensor cores are tried when a job has come that has some.

    All ranks call it. Raises RankMismatchError, on every rank the same."""
    _agree(ranks, device, {}, machine_fault(device, ()))


def _agree(ranks: Ranks, device: str, own: Mapping[str, str], fault: str) -> None:
    mine = {**own, **_versions(), "machine": fault}
    said = []
    for rank, one in enumerate(ranks.gather_bytes(json.dumps(mine).encode())):
        try:
            told = json.loads(one)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or set(told) != set(mine) or not all(isinstance(x, str) for x in told.values()):
            raise ranks.membership.foreign(rank, "no facts about itself")
        said.append(told)
    problem = difference(said, ranks.membership.name)
    if problem is not None:
        raise RankMismatchError(problem)
    ranks.use(torch.device(device))


def machine_fault(device: torch.device | str, products: Collection[tuple[str, str]]) -> str:
    """Why this rank cannot compute on a device, as a sentence; empty if it can. products: arithmetics of tensor cores
    and the formats of their operands that a job has."""
    try:
        # As every step is executed: what can be put right is.
        with own_threads(), right_float_mode("the check of this machine"):
            check_machine(usable(device), products)
    except (MachineError, RunError) as error:
        return str(error)
    return ""


def _versions() -> dict[str, str]:
    return {
        "version of tiebreak": version("tiebreak"),
        # PyTorch for CUDA and for the CPU alone are builds of one version.
        "version of PyTorch": str(torch.__version__).partition("+")[0],
    }


def difference(said: Sequence[Mapping[str, str]], name: Callable[[int], str]) -> str | None:
    """The first rank that cannot compute, or differs from rank 0, as a sentence; None if there is none. said: what
    every rank says of itself. name: of a rank, for people."""
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
    """The options of rank 0's run, by which every step is executed by all ranks, on the device that this one has agreed
    on."""

    def execution(job: Job, micro_batches: int, run_dir: Path) -> Execution:
        return Execution(executor_of(job, ranks, micro_batches, run_dir), Batches(job.dataset, job.spec))

    return replace(options, device=ranks.device, execution=execution)


def executor_of(job: Job, ranks: Ranks, micro_batches: int, run_dir: Path) -> RanksExecutor:
    """The executor of a job by all ranks, on rank 0. run_dir: directory for slices that micro-batches keep on disk.
    Raises as `RanksExecutor`."""
    return RanksExecutor(job.program, ranks, job.spec.f32_format, job.spec.interval, micro_batches, run_dir)


def help_rank_0(ranks: Ranks, job: Job) -> int:
    """Executes, on another rank, every step of a job that rank 0 executes, until it has no more. Returns how many had a
    result. Raises LostRankError, DisagreementError, ProgramError if a batch has fewer samples than there are ranks,
    MachineError."""
    batches = Batches(job.dataset, job.spec)

    def inputs_of(step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        return job.inputs(batches, step, states, ranks.device)

    return serve(job.program, ranks, inputs_of, job.spec.f32_format, job.spec.interval)


NAMES = (PROGRAM, SPEC, INITIAL, SCHEDULE, BLOCKS, DATA)
"""Files of a job, in the order in which they are sent."""

PIECE = 16 << 20

MAX_JOB_BYTES = 16 << 30
"""Most bytes of a job that a receiver writes to its disk, if it is not told otherwise."""

MAX_MANIFEST_BYTES = 4096


class SentJobError(ValueError):
    """A sent job that cannot be taken. The message is one clause."""


class Outgoing:
    """A job on its way to others."""

    def __init__(self, job: Job, directory: Path) -> None:
        """directory: for files that are made to be sent; the data are read where they are. Raises OSError,
        StorageError."""
        self._job, self._directory = job, directory
        job.write_all_but_data(directory)
        self._sizes = {name: (directory / name).stat().st_size for name in NAMES if name != DATA}
        self._sizes[DATA] = file_bytes(job.dataset)

    @property
    def manifest(self) -> bytes:
        return json.dumps({"run": self._job.spec.run_id.hex(), "sizes": self._sizes}).encode()

    def pieces(self) -> Iterator[bytes]:
        """All pieces, none of them empty. Raises OSError, StorageError if a file cannot be read."""
        for name in NAMES:
            if name == DATA:
                yield from map(bytes, file_pieces(self._job.dataset))
                continue
            with open_regular(self._directory / name) as file:
                while piece := file.read(PIECE):
                    yield piece


class Incoming:
    """A job that arrives in a directory."""

    def __init__(self, manifest: bytes, run: str, directory: Path, most_bytes: int = MAX_JOB_BYTES) -> None:
        """run: ID of the run that was announced, in hex. Raises SentJobError, OSError."""
        self._run, self._directory = run, directory
        self._sizes = _sizes(manifest, run)
        total = sum(self._sizes.values())
        if total > most_bytes:
            raise SentJobError(f"the job has {total} bytes, more than the {most_bytes} allowed")
        directory.mkdir(parents=True, exist_ok=True)
        if total > (free := shutil.disk_usage(directory).free):
            raise SentJobError(
                f"the job has {total} bytes, more than the {free} that {directory} has room for: make room there, or "
                "name another directory by TMPDIR"
            )
        self._left = iter(self._sizes.items())
        self._file: BinaryIO | None = None
        self._missing = 0
        """Bytes that the open file still lacks."""

    def take(self, piece: bytes) -> None:
        """Writes the next piece. Raises SentJobError for bytes that were not announced, OSError."""
        rest = memoryview(piece)
        while rest:
            while not self._missing:
                self._open_next()
            assert self._file is not None
            part = rest[: self._missing]
            self._file.write(part)
            self._missing -= len(part)
            rest = rest[len(part) :]

    def _open_next(self) -> None:
        self.close()
        name, size = next(self._left, (None, 0))
        if name is None:
            raise SentJobError("more bytes have come than were announced")
        self._file, self._missing = (self._directory / name).open("wb"), size

    def close(self) -> None:
        """Closes the open file. Raises OSError."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def job(self, limits: JobLimits) -> Job:
        """The job, read from what has come. Raises SentJobError if that is not all of it, or another job, and
        JobError."""
        self.close()
        if self._missing or any(size for _, size in self._left):
            raise SentJobError("the job has not come as a whole")
        found = Job.read(self._directory, limits)
        if found.spec.run_id.hex() != self._run:
            raise SentJobError(f"another job has come ({found.spec.run_id.hex()[:16]}) than {self._run[:16]}")
        return found


def _sizes(manifest: bytes, run: str) -> dict[str, int]:
    """Sizes of the files of an announced run, in the order in which they are sent. Raises SentJobError."""
    try:
        found = parse_json(manifest[: MAX_MANIFEST_BYTES + 1])
    except ValueError as error:
        raise SentJobError("its manifest is not JSON of the size allowed") from error
    sizes = found.get("sizes") if isinstance(found, dict) else None
    if not isinstance(sizes, dict) or set(sizes) != set(NAMES):
        raise SentJobError("its manifest does not name the files of a job")
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        raise SentJobError("its manifest gives a file no size")
    if found.get("run") != run:
        raise SentJobError("its manifest names another run than was announced")
    return {name: sizes[name] for name in NAMES}
