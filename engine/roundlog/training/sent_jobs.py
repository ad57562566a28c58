"""Jobs that one process sends to others as the bytes of their files. A receiver believes none of them: sizes are
checked before anything is written, and all else by `Job.read`.

A sent job is a *manifest* (JSON: the run, and the size of every file), and the files' bytes, one file behind another,
in pieces of at most `PIECE` bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from roundlog.data import file_bytes, file_pieces
from roundlog.storage import open_regular
from roundlog.training.job import Job, JobLimits
from roundlog.training.run_files import BLOCKS, DATA, INITIAL, PROGRAM, SCHEDULE, SPEC

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
        found = json.loads(manifest[: MAX_MANIFEST_BYTES + 1])
    except (ValueError, RecursionError) as error:
        raise SentJobError("its manifest is not JSON of the size allowed") from error
    sizes = found.get("sizes") if isinstance(found, dict) else None
    if not isinstance(sizes, dict) or set(sizes) != set(NAMES):
        raise SentJobError("its manifest does not name the files of a job")
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        raise SentJobError("its manifest gives a file no size")
    if found.get("run") != run:
        raise SentJobError("its manifest names another run than was announced")
    return {name: sizes[name] for name in NAMES}
