"""Jobs in directories without their data, which lie in content stores.

    elsewhere.json    beside a job's files in place of its data: content addresses of the job and of its data's file

Only the blocks of the data that a run uses are fetched, and each is checked under the job's data root. So the writer of
this record, and the stores that serve the data, can only have a run end with an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from roundlog.data import Unavailable
from roundlog.storage import StorageError, read_record, write_record
from roundlog.training import DATA, Job, JobError, JobLimits

from tiebreak.segment_audits.fetching import Accept, fetch_named, job_plan
from tiebreak.store.cid import Cid
from tiebreak.store.store import Store
from tiebreak.store.store_errors import DestinationExists, StoreError

NAME = "elsewhere.json"

_FORMAT, _VERSION = "tiebreak data elsewhere", 1
_MOST_BYTES = 4096
_REMEDY = "fetch the job again with `tiebreak job fetch --without-data`"
_PATIENCE = 120.0
"""Most seconds for one part of the data."""


class UnknownPlace(JobError):
    """A record that does not say where a job's data lie. The message is one sentence with a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAddresses:
    """Content addresses of a job's directory and of the file of its data."""

    job: str
    data: str


class StoredData:
    """The file of a data set in content stores (implements `roundlog.data.Elsewhere`)."""

    def __init__(self, store: Store, cid: str) -> None:
        self._store, self._cid = store, cid
        self.width = store.width

    def part(self, start: int, size: int, is_right: Callable[[bytes], bool]) -> bytes:
        try:
            return self._store.part(self._cid, start, size, is_right=is_right, seconds=_PATIENCE)
        except StoreError as error:
            raise Unavailable(str(error).rstrip(".")) from error


class Nowhere:
    """The file of a data set that cannot be read (implements `roundlog.data.Elsewhere`)."""

    width = 1

    def part(self, start: int, size: int, is_right: Callable[[bytes], bool]) -> bytes:
        raise Unavailable("this command reads no data from elsewhere")


def lies_elsewhere(directory: Path) -> bool:
    """Whether a directory has a job without its data, and a record of where these lie."""
    return (directory / NAME).is_file() and not (directory / DATA).exists()


def addresses_of(directory: Path) -> JobAddresses:
    """The record of a job whose data lie elsewhere. Raises UnknownPlace."""
    try:
        record = read_record(directory / NAME, max_bytes=_MOST_BYTES)
    except StorageError as error:
        raise UnknownPlace(f"{error}; {_REMEDY}") from error
    try:
        if not isinstance(record, dict) or (record.pop("format"), record.pop("version")) != (_FORMAT, _VERSION):
            raise ValueError(f"no record of the format {_FORMAT!r}, version {_VERSION}")
        found = JobAddresses(**record)
        for cid in (found.job, found.data):
            Cid.parse(cid)
    except (KeyError, TypeError, ValueError, StoreError) as error:
        raise UnknownPlace(f"{directory / NAME} does not say where the data lie ({error}); {_REMEDY}") from error
    return found


def read_elsewhere(directory: Path, limits: JobLimits, store: Store | None) -> Job:
    """The job in a directory without its data. store: where they lie; None for a job whose data are not used. Raises as
    `Job.read`."""
    place = Nowhere() if store is None else StoredData(store, addresses_of(directory).data)
    return Job.read(directory, limits, elsewhere=place)


def fetch_without_data(
    store: Store,
    cid: str,
    directory: Path,
    accept: Accept = lambda program, spec: None,
    *,
    warn: Callable[[str], None],
    max_bytes: int,
) -> None:
    """Fetches the files of the job at a content address but for its data, into a directory that is not there yet and
    appears whole. accept, warn, max_bytes: as of `fetching`. Raises StoreError, OSError, and what `accept` raises."""
    if directory.exists():
        raise DestinationExists(f"{directory} exists already: choose another place or remove it.")
    room = directory.with_name(f".{directory.name}.fetched")
    shutil.rmtree(room, ignore_errors=True)  # of a process that was killed
    fetch_named(store, cid, room, job_plan(accept, data=False), warn=warn, max_bytes=max_bytes, unwanted=(DATA,))
    addresses = asdict(JobAddresses(job=cid, data=store.entries(cid)[DATA]))
    write_record(room / NAME, {"format": _FORMAT, "version": _VERSION} | addresses)
    room.rename(directory)
