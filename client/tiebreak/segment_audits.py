"""Jobs, states and runs in content stores, for audits by segments: directories that strangers publish, fetched by the
names of the files that they are for; jobs in directories without their data, which lie in the stores; the source of
both for workers on any machine; and a published run, from one content address to the job and the claimed roots.

    elsewhere.json    beside a job's files in place of its data: content addresses of the job and of its data's file

Nothing is believed. An address names its bytes; states are held against the listed roots by those that start from them,
and the roots are what is audited. Each file is bounded by what the spec and the program say
(`roundlog.training.run_files`), and nothing else comes to the disk: a file that is no job's can be a module that Python
imports, or a setting that a program runs. Only the blocks of the data that a run uses are fetched, and each is checked
under the job's data root. So the writer of that record, and the stores that serve the data, can only have a run end
with an error."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from roundlog.commitments import MerkleTree
from roundlog.data import Unavailable
from roundlog.program import Program
from roundlog.segment_audits import (
    CHECKPOINTS_FILE,
    MAX_LIST_BYTES,
    Listing,
    ListingError,
    UnusableState,
    most_list_bytes,
    read_address_of_job,
    read_listing,
)
from roundlog.spec import TrainingSpec
from roundlog.storage import StorageError, read_record, write_record
from roundlog.training import (
    BEFORE_THE_PROGRAM,
    DATA,
    JOB_FILES,
    Job,
    JobError,
    JobLimits,
    ReceiptError,
    load_moved,
    log_path,
    most_interval_bytes,
    most_job_bytes,
    most_state_bytes,
    read_program,
    read_receipt,
    require_memory,
)

from tiebreak.rpc.chain_errors import printable
from tiebreak.store import Store, open_stores
from tiebreak.store.dagpb import MAX_ENTRIES, Cid
from tiebreak.store.store_errors import DestinationExists, InvalidCid, MalformedContent, StoreError

if TYPE_CHECKING:
    from tiebreak.store.dag_reader import Plan


_MOST_NAMED = 5

Accept = Callable[[Program, TrainingSpec], None]
"""Looks at a job's program and spec before the other files are fetched; raises what ends the fetch."""


def fetch_named(
    store: Store,
    cid: str,
    dest: Path,
    plan: Plan,
    *,
    warn: Callable[[str], None],
    max_bytes: int,
    within: float | None = None,
    unwanted: Collection[str] = (),
    claim: Callable[[int], None] = lambda need: None,
) -> None:
    """Fetch the files that a plan names of the directory `cid` into `dest`, which must not exist and appears whole.

    warn: is told, in one sentence, what was left out. max_bytes: of all files together. within: as of `Store`.
    unwanted: names that are left out without a word. claim: is asked before each turn of the plan for the most bytes
    that its files take. Raises StoreError, OSError, and what the plan and `claim` raise."""

    def claiming(path: Path, sizes: Mapping[str, int]) -> Iterable[Mapping[str, int]]:
        for most in plan(path, sizes):
            claim(sum(min(sizes[name], bound) for name, bound in most.items() if name in sizes))
            yield most

    others = store.get_directory(cid, dest, claiming, max_bytes=max_bytes, within=within)
    if left_out := [name for name in others if name not in unwanted]:
        names = ", ".join(printable(repr(name), 60) for name in left_out[:_MOST_NAMED])
        more = f" and {len(left_out) - _MOST_NAMED} more" if len(left_out) > _MOST_NAMED else ""
        warn(f"{cid} has {names}{more} besides what it is fetched for, left out")


def job_plan(accept: Accept = lambda program, spec: None, *, data: bool = True) -> Plan:
    """Return the plan of the six files of a job, the others only once the program and the spec are checked against each
    other, and accepted. data: whether its data are among them. The plan raises MalformedContent for a directory that is
    no job."""

    def plan(path: Path, sizes: Mapping[str, int]) -> Iterable[Mapping[str, int]]:
        if lacking := [name for name in JOB_FILES if name not in sizes]:
            raise MalformedContent(f"the directory is no job, since it has no {lacking[0]}: check the identifier.")
        yield BEFORE_THE_PROGRAM
        try:
            program, spec = read_program(path)
        except JobError as error:
            why = f"its program and spec cannot be followed ({str(error).replace(str(path), 'the directory')})"
            raise MalformedContent(f"{why}: do not rely on that job.") from error
        accept(program, spec)
        most = most_job_bytes(program, spec)
        yield {name: most[name] for name in most if data or name != DATA}

    return plan


def log_plan(program: Program, spec: TrainingSpec) -> Plan:
    """Return the plan of the logs of a run's intervals, and the list of its published states, as far as they are
    there."""

    def plan(path: Path, sizes: Mapping[str, int]) -> Iterable[Mapping[str, int]]:
        # No directory has more, whatever the spec says.
        intervals = range(min(spec.intervals, MAX_ENTRIES))
        most = most_interval_bytes(program, spec)
        return [
            dict.fromkeys((log_path(path, interval).name for interval in intervals), most)
            | {CHECKPOINTS_FILE: most_list_bytes(spec)}
        ]

    return plan


NAME = "elsewhere.json"

_FORMAT, _VERSION = "tiebreak data elsewhere", 1
_MOST_BYTES = 4096
_REMEDY = "fetch the job again with `tiebreak job fetch --without-data`"
_PATIENCE = 120.0
"""Most seconds for one part of the data."""


class UnknownPlace(JobError):
    """A record that does not say where a job's data lie. The message is one sentence with a remedy."""


class StoredData:
    """The file of a data set in content stores, or one that cannot be read (implements `roundlog.data.Elsewhere`)."""

    def __init__(self, store: Store | None, cid: str) -> None:
        self._store, self._cid = store, cid
        self.width = 1 if store is None else store.width

    def part(self, start: int, size: int, is_right: Callable[[bytes], bool]) -> bytes:
        if self._store is None:
            raise Unavailable("this command reads no data from elsewhere")
        try:
            return self._store.part(self._cid, start, size, is_right=is_right, within=_PATIENCE)
        except StoreError as error:
            raise Unavailable(str(error).rstrip(".")) from error


def lies_elsewhere(directory: Path) -> bool:
    """Return whether a directory has a job without its data, and a record of where these lie."""
    return (directory / NAME).is_file() and not (directory / DATA).exists()


def addresses_of(directory: Path) -> dict[str, str]:
    """Return the content addresses, by the names `job` and `data`, of the directory and of the file of data of a job
    whose data lie elsewhere. Raises UnknownPlace."""
    try:
        record = read_record(directory / NAME, max_bytes=_MOST_BYTES)
    except StorageError as error:
        raise UnknownPlace(f"{error}; {_REMEDY}") from error
    try:
        if not isinstance(record, dict) or (record.pop("format"), record.pop("version")) != (_FORMAT, _VERSION):
            raise ValueError(f"no record of the format {_FORMAT!r}, version {_VERSION}")
        if record.keys() != {"job", "data"}:
            raise ValueError("other fields than job and data")
        for cid in record.values():
            Cid.parse(cid)
    except (KeyError, TypeError, ValueError, StoreError) as error:
        raise UnknownPlace(f"{directory / NAME} does not say where the data lie ({error}); {_REMEDY}") from error
    return dict(record)


def read_job(directory: Path, limits: JobLimits, open_store: Callable[[], Store | None]) -> Job:
    """Return the job in a directory, or without its data there. open_store: is called for the store where these lie;
    None for a job whose data are not used. Raises as `Job.read`, and StoreError."""
    if not lies_elsewhere(directory):
        return Job.read(directory, limits)
    store = open_store()
    cid = "" if store is None else addresses_of(directory)["data"]
    return Job.read(directory, limits, elsewhere=StoredData(store, cid))


def fetch_without_data(
    store: Store,
    cid: str,
    directory: Path,
    accept: Accept = lambda program, spec: None,
    *,
    warn: Callable[[str], None],
    max_bytes: int,
) -> None:
    """Fetch the files of the job at a content address but for its data, into a directory that is not there yet and
    appears whole. accept, warn, max_bytes: as of `fetch_named`. Raises StoreError, OSError, and what `accept`
    raises."""
    if directory.exists():
        raise DestinationExists(f"{directory} exists already: choose another place or remove it.")
    room = directory.with_name(f".{directory.name}.fetched")
    shutil.rmtree(room, ignore_errors=True)  # of a process that was killed
    fetch_named(store, cid, room, job_plan(accept, data=False), warn=warn, max_bytes=max_bytes, unwanted=(DATA,))
    addresses = {"job": cid, "data": store.entries(cid)[DATA]}
    write_record(room / NAME, {"format": _FORMAT, "version": _VERSION} | addresses)
    room.rename(directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """A job and states by content address, in the stores at these locations. Implements
    `roundlog.segment_audits.StateSource`.

    A worker that does not see the job's directory fetches the job without its data, and of these the blocks it uses."""

    locations: tuple[str, ...]
    job_cid: str
    """Content address of the job's directory; empty if all workers see `job_dir`."""
    job_dir: Path
    """The job's directory, which is read where it is there."""
    limits: JobLimits
    job_bytes: int = 16 << 30
    within: float = 600.0
    """Most seconds for one state; a worker that waits for it does nothing else."""

    def job(self) -> Job:
        """Return the job. Raises JobError, StoreError."""
        if self.job_dir.is_dir() or not self.job_cid:
            return read_job(self.job_dir, self.limits, partial(_store, self.locations))
        # The cache of blocks stays open, and its space is freed when the process ends.
        with tempfile.TemporaryDirectory(prefix="job-") as room:
            directory = Path(room) / "job"
            store = _store(self.locations)
            fetch_without_data(store, self.job_cid, directory, warn=lambda text: None, max_bytes=self.job_bytes)
            return read_job(directory, self.limits, lambda: store)

    def state(self, job: Job, address: str) -> list[torch.Tensor]:
        try:
            with tempfile.TemporaryDirectory(prefix="state-") as directory:
                path = Path(directory) / "state"
                _store(self.locations).get_file(
                    address, path, max_bytes=most_state_bytes(job.program.moved_states), within=self.within
                )
                return load_moved(path, job)
        except StorageError as error:
            raise UnusableState(f"the file at {address} {error.reason}") from error
        except StoreError as error:
            raise UnusableState(f"the state at {address} cannot be had: {error}") from error


@lru_cache(maxsize=4)
def _store(locations: tuple[str, ...]) -> Store:
    return open_stores(locations, warn=lambda text: None)


class NotAuditable(Exception):
    """An address, or what lies there, that brings no claim to be audited. The message is one sentence with a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a job and what is claimed of it lie."""

    job: str
    """Content address of the job's directory."""
    claim: str
    """Content address of the published log that the roots are from."""
    root: bytes | None = None
    """The checkpoint root that the claimed roots have to make; None for any."""
    spec: TrainingSpec | None = None
    """The spec that the job has to have; None for any."""


def is_address(text: str) -> bool:
    """Return whether a text is a content address."""
    try:
        Cid.parse(text)
    except InvalidCid:
        return False
    return True


def find_run(store: Store, address: str, room: Path) -> Whereabouts:
    """Return where job and claim lie, from the content address of a published log, or from a file with the result of an
    audit. room: for small files.

    Raises NotAuditable, StoreError."""
    if is_address(address):
        try:
            job = read_address_of_job(_fetched_list(store, address, room))
        except ListingError as error:
            raise NotAuditable(f"{address} is no log that can be audited ({error}): check the address.") from error
        if job is None or not is_address(job):
            raise NotAuditable(f"the log {address} does not say where its job lies: do not rely on it.")
        return Whereabouts(job=job, claim=address)
    try:
        receipt = read_receipt(Path(address))
    except ReceiptError as error:
        raise NotAuditable(
            f"{printable(address, 100)} is no result of an audit ({printable(str(error), 200)})."
        ) from error
    if receipt.audit is None or not is_address(receipt.audit.claim):
        raise NotAuditable(
            f"{printable(address, 100)} does not say where a job and its log lie: give the content address of the log."
        )
    audit, root = receipt.audit, receipt.checkpoint_root
    return Whereabouts(job=audit.job, claim=audit.claim, root=root, spec=receipt.spec)


def fetch_run(
    store: Store, where: Whereabouts, room: Path, limits: JobLimits, *, warn: Callable[[str], None], max_bytes: int
) -> tuple[Path, Listing]:
    """Return the directory of the job without its data, fetched unless it is there, and the claimed roots of a whole
    run, with where states lie. The job's spec and its need of memory are looked at before its other files are fetched.
    Raises NotAuditable, JobError, StoreError, OSError."""

    def accept(program: Program, spec: TrainingSpec) -> None:
        if where.spec not in (None, spec):
            raise NotAuditable(f"the files at {where.job} are those of another job than the claim is about.")
        if spec.log_decides:
            raise NotAuditable(
                f"this job rounds by the policy {spec.policy_name}, under which nobody can repeat a part of a run."
            )
        require_memory(program, spec, limits)

    directory = room / "job"
    if directory.is_dir() and addresses_of(directory)["job"] != where.job:
        raise NotAuditable(f"{room} is the directory of another job's audit: choose another.")
    try:
        if not directory.is_dir():
            fetch_without_data(store, where.job, directory, accept, warn=warn, max_bytes=max_bytes)
    except MalformedContent as error:
        raise NotAuditable(f"{where.job} is no job ({str(error).rstrip('.')}).") from error
    program, spec = read_program(directory)
    accept(program, spec)
    try:
        listing = read_listing(_fetched_list(store, where.claim, room), spec)
    except ListingError as error:
        raise NotAuditable(f"{where.claim} claims nothing about this job ({error}): check both addresses.") from error
    if not listing.complete:
        raise NotAuditable(f"{where.claim} is the log of a run that had not ended: ask for the whole one.")
    if where.root is not None and MerkleTree(listing.roots).root != where.root:
        raise NotAuditable(
            f"the roots at {where.claim} do not make the claimed checkpoint root 0x{where.root.hex()}: other roots are "
            "published there than are claimed, so do not rely on either."
        )
    return directory, listing


def _fetched_list(store: Store, log: str, room: Path) -> Path:
    """Return the list of checkpoints in a published log. Raises NotAuditable, StoreError."""
    try:
        names = store.entries(log)
    except MalformedContent:
        names = {}
    if CHECKPOINTS_FILE not in names:
        raise NotAuditable(f"{log} lists no checkpoints: it takes a log that was published with --publish-every.")
    path = room / CHECKPOINTS_FILE
    path.unlink(missing_ok=True)
    store.get_file(names[CHECKPOINTS_FILE], path, max_bytes=MAX_LIST_BYTES)
    return path
