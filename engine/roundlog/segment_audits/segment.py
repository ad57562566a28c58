"""The audit of a segment: consecutive intervals of a run, executed from a published state that is checked first.

A worker is told where to start, by the root of a state, and not what should come out: what it answers, it has computed.

A listing is what a trainer has published of a run, state roots and the addresses of some states, as a file beside its
logs; or the same of a run directory.

    checkpoints.json    format, version, run id, address of the job (or null), claimed state roots of the first
                        intervals, and for every m-th of them the address of the state after it

A reader believes none of it: roots are held against the commitment, states against the roots.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Protocol

import torch

from roundlog.commitments import CommitmentError, state_root
from roundlog.data import fetched_bytes
from roundlog.execution import StoppedError
from roundlog.spec import TrainingSpec
from roundlog.storage import StorageError, read_hashes, read_record, write_record
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.run import Run
from roundlog.training.run_files import checkpoint_path, load_kept, save_checkpoint

MakeWorker = Callable[[int], Executor]
"""Makes the worker of a number (from 0): an executor of one call at a time. Its calls raise BrokenExecutor once the
worker is lost, and `shutdown(wait=False, cancel_futures=True)` ends it at once, whatever it does."""


class UnusableState(Exception):
    """A published state cannot be had, or is not the one with the given root. The message is one clause."""


class StateSource(Protocol):
    """Where a worker gets the job and the published states from. It is sent to workers, so it can be pickled, hashed
    and compared. Nothing that it brings is trusted."""

    def __hash__(self) -> int: ...

    def job(self) -> Job:
        """The job, checked. Raises JobError, OSError, and what the source's own errors are."""

    def state(self, job: Job, address: str) -> list[torch.Tensor]:
        """The state at an address, with the types of the job's state; its root is checked by the caller.

        Raises UnusableState."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """Consecutive intervals: from `first` up to, and without, `stop`."""

    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The state that a segment starts from: its root, and the address that it is published at (None: the job's initial
    state, which every reader of the job has)."""

    root: bytes
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOrder:
    """Order to a worker: the steps to execute."""

    source: StateSource
    segment: Segment
    start: Start
    device: str = "cpu"
    micro_batches: int = 1
    scratch: str | None = None
    """Directory for temporary files; None for the system's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """Answer of a worker to an order."""

    worker: str
    """Host and process, for people."""
    roots: tuple[bytes, ...] = ()
    """State root after each interval that was executed, from the first on."""
    seconds: float = 0.0
    """Time that it took, fetching included."""
    unusable: str | None = None
    """Why the state to start from could not be used, in one clause; nothing was executed then."""
    fetched: int = 0
    """Bytes of data that were fetched for it, where the job's data lie elsewhere."""
    stopped: str | None = None
    """Why the run stopped in the interval after the last of `roots`; None if it did not."""


def audit_segment(order: SegmentOrder) -> WorkerAnswer:
    """Execute a segment in this process. Raises JobError, ProgramError, RunError, MachineError, OSError,
    StorageError."""
    started = time.perf_counter()
    run, temporary = _run(order.source, order.device, order.micro_batches, order.scratch)
    assert temporary is not None, "kept as long as the run"
    try:
        states = starting_state(run.job, order.source, order.segment.first, order.start)
        ends = execute(run, order.segment, states)
        del states
    except UnusableState as error:
        return WorkerAnswer(worker=name(), seconds=time.perf_counter() - started, unusable=str(error))
    roots: list[bytes] = []
    stopped, data = None, run.job.dataset.values()
    before = fetched_bytes(data)
    try:
        for after in ends:
            roots.append(state_root(after))
            del after
    except StoppedError as error:
        stopped = str(error)
    return WorkerAnswer(
        worker=name(),
        roots=tuple(roots),
        seconds=time.perf_counter() - started,
        fetched=fetched_bytes(data) - before,
        stopped=stopped,
    )


def execute(run: Run, segment: Segment, states: list[torch.Tensor]) -> Generator[list[torch.Tensor], None, None]:
    """Execute the intervals of a segment; yield the state after each. States that the caller keeps are in memory beside
    those before and after a step. Raises as `Run.step`."""
    length = run.job.spec.interval
    steps = run.replay(segment.first * length, states)
    del states
    for _ in range(len(segment)):
        yield next(islice(steps, length - 1, None))[1]


def starting_state(job: Job, source: StateSource, first: int, start: Start) -> list[torch.Tensor]:
    """The state before interval `first`, which has the root of `start`. Raises UnusableState."""
    if start.address is None:
        return list(job.initial.values())
    try:
        states = source.state(job, start.address)
        found = state_root(states)
    except CommitmentError as error:
        raise UnusableState(f"the state before interval {first + 1} has no root: {error}") from error
    if found != start.root:
        raise UnusableState(
            f"the state before interval {first + 1} has the root 0x{found.hex()}, not 0x{start.root.hex()}"
        )
    return states


def name() -> str:
    """This process, as it is named to people."""
    return f"{platform.node() or 'this host'}/{os.getpid()}"


@lru_cache(maxsize=1)
def _run(
    source: StateSource, device: str, micro_batches: int, scratch: str | None
) -> tuple[Run, tempfile.TemporaryDirectory[str]]:
    """The job in a temporary directory, read once by each process; the directory lives as long as the pair is kept."""
    job = source.job()
    temporary = tempfile.TemporaryDirectory(prefix="audit-", dir=scratch, ignore_cleanup_errors=True)
    return Run(job, Path(temporary.name), RunOptions(device=device, micro_batches=micro_batches)), temporary


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Claimed state roots of the first intervals, and addresses of states.

    Right or wrong is said about these roots. Whether they are those that were committed to is for the caller to check:
    their Merkle root is the checkpoint root."""

    roots: tuple[bytes, ...]
    """State root after each interval that is published."""
    states: Mapping[int, str] = field(default_factory=dict)
    """Number of intervals done -> address of the state after them."""
    complete: bool = True
    """Whether nothing will be added: the run has ended."""
    job: str | None = None
    """Address of the job's directory, if it is published beside."""

    def starts(self) -> list[int]:
        """Numbers of intervals after which a state is published that another interval starts from, with 0 for the
        initial state; ascending."""
        return [0, *sorted(done for done in self.states if 0 < done < len(self.roots))]

    def start(self, done: int, initial_root: bytes) -> Start:
        """The state after `done` intervals as a start."""
        if done == 0:
            return Start(root=initial_root, address=None)
        return Start(root=self.roots[done - 1], address=self.states[done])


CHECKPOINTS_FILE = "checkpoints.json"
"""Name of the list in a directory of logs."""

_FORMAT, _VERSION = "tiebreak checkpoints", 2
_BYTES_AN_INTERVAL = 400
MAX_LIST_BYTES = 1 << 26
"""Most bytes of a list, whatever its spec says: 800,000 intervals. Its text takes many times as much memory."""
_ROOT = re.compile("[0-9a-f]{64}")
_ADDRESS = re.compile("[!-~]{1,200}")


class ListingError(ValueError):
    """A list of published checkpoints that cannot be used. The message is one clause."""


def write_listing(directory: Path, spec: TrainingSpec, listing: Listing) -> None:
    """Replace the list in a directory. Raises OSError."""
    write_record(
        directory / CHECKPOINTS_FILE,
        {
            "format": _FORMAT,
            "version": _VERSION,
            "run_id": spec.run_id.hex(),
            "job": listing.job,
            "state_roots": [root.hex() for root in listing.roots],
            "states": {str(done): address for done, address in sorted(listing.states.items())},
        },
    )


def most_list_bytes(spec: TrainingSpec) -> int:
    """Most bytes of the list of a run of this spec that a reader takes."""
    return min(4096 + _BYTES_AN_INTERVAL * spec.intervals, MAX_LIST_BYTES)


def read_listing(path: Path, spec: TrainingSpec) -> Listing:
    """The list at a path, of a run of this spec. Raises ListingError."""
    try:
        record = read_record(path, max_bytes=most_list_bytes(spec))
    except StorageError as error:
        raise ListingError(f"the list of checkpoints {error.reason}") from error
    job = _job_of(record)
    if record["run_id"] != spec.run_id.hex():
        raise ListingError("the list of checkpoints is of another run")
    roots, states = record["state_roots"], record["states"]
    if not isinstance(roots, list) or not all(isinstance(root, str) and _ROOT.fullmatch(root) for root in roots):
        raise ListingError("the list of checkpoints has something in it that is no root")
    if len(roots) > spec.intervals:
        raise ListingError(f"the list of checkpoints has {len(roots)} roots of {spec.intervals} intervals")
    if not isinstance(states, dict) or not all(_is_place(done, len(roots)) for done in states):
        raise ListingError("the list of checkpoints has states of intervals that it does not have")
    if not all(isinstance(address, str) and _ADDRESS.fullmatch(address) for address in states.values()):
        raise ListingError("the list of checkpoints has something in it that is no address")
    return Listing(
        roots=tuple(map(bytes.fromhex, roots)),
        states={int(done): address for done, address in states.items()},
        complete=len(roots) == spec.intervals,
        job=job,
    )


def read_address_of_job(path: Path) -> str | None:
    """The address of the job in the list at a path; None if it names none. Nothing else of the list is checked. Raises
    ListingError."""
    try:
        return _job_of(read_record(path, max_bytes=MAX_LIST_BYTES))
    except StorageError as error:
        raise ListingError(f"the list of checkpoints {error.reason}") from error


def _job_of(record: object) -> str | None:
    keys = {"format", "version", "run_id", "job", "state_roots", "states"}
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise ListingError("the list of checkpoints has another format")
    if type(record.get("version")) is not int or record["version"] != _VERSION:
        raise ListingError(f"the list of checkpoints has another version than {_VERSION}")
    job = record.get("job")
    if record.keys() != keys or not (job is None or (isinstance(job, str) and _ADDRESS.fullmatch(job))):
        raise ListingError("the list of checkpoints has another format")
    return job


def _is_place(text: str, most: int) -> bool:
    return re.fullmatch("[1-9][0-9]{0,18}", text) is not None and int(text) <= most


def recorded(run_dir: Path, spec: TrainingSpec) -> list[bytes]:
    """The state roots that a run has recorded so far. A record of another's run is not trusted. Raises OSError,
    StorageError."""
    return read_hashes(run_dir / "roots", spec.intervals)


class Publisher:
    """Publisher of every m-th checkpoint of an own run, each once, which keeps the list beside the run's logs."""

    def __init__(
        self, spec: TrainingSpec, run_dir: Path, every: int, add: Callable[[Path], str], job: str | None = None
    ) -> None:
        """every: m. add: publishes a file and returns its address. job: address of the published job."""
        self._spec, self._run_dir, self._every, self._add, self._job = spec, run_dir, every, add, job
        self._states: dict[int, str] = {}
        self.told = 0
        """Number of intervals that the last list tells of."""

    def due(self) -> int:
        """Number of intervals that the next list will tell of: all, or as many as end with an m-th checkpoint."""
        done = len(recorded(self._run_dir, self._spec))
        return done if done == self._spec.intervals else done // self._every * self._every

    def publish(self, mended: Iterable[int] = ()) -> Listing:
        """Publish what the run has kept so far. A checkpoint that it did not keep is left out. mended: intervals at
        whose end a checkpoint was damaged and is right now, which is published again. Raises OSError, StorageError, and
        what `add` raises."""
        for interval in mended:
            self._states.pop(interval + 1, None)
        done = self.due()
        roots = recorded(self._run_dir, self._spec)[:done]
        for number in range(self._every, min(done + 1, self._spec.intervals), self._every):
            path = checkpoint_path(self._run_dir, number * self._spec.interval)
            if number not in self._states and path.exists():
                self._states[number] = self._add(path)
        listing = Listing(
            roots=tuple(roots),
            states=dict(self._states),
            complete=done == self._spec.intervals,
            job=self._job,
        )
        (self._run_dir / "log").mkdir(exist_ok=True)
        write_listing(self._run_dir / "log", self._spec, listing)
        self.told = done
        return listing


def keep_state(run: Run, done: int, states: Sequence[torch.Tensor]) -> None:
    """Leave the state after `done` intervals as a checkpoint of the run. Raises OSError, StorageError."""
    save_checkpoint(run.directory, run.job, done * run.job.spec.interval, states)


def keep_published(run: Run, listing: Listing, source: StateSource) -> int:
    """Leave every published state as a checkpoint of the run, as far as it can be had and has its claimed root: what a
    game in defence of the run starts from, whether it is still published then or not. Returns the most intervals that
    lie between two of them then. Raises OSError, StorageError."""
    spec, kept = run.job.spec, [0]
    for done in listing.starts()[1:]:
        if load_kept(run.directory, run.job, done * spec.interval, listing.roots[done - 1])[2]:
            try:
                states = starting_state(run.job, source, done, listing.start(done, spec.initial_state_root))
            except UnusableState:
                continue
            keep_state(run, done, states)
        kept.append(done)
    return max(after - before for before, after in pairwise([*kept, spec.intervals]))
