"""Files on this machine that give operators and tensors their names: those of jobs, under fixed names only, in
directories that the user has named. They are read by a thread beside the pages: a page shows what is known, and is
made anew when more is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from tiebreak.contract.structs import JobView
from tiebreak.dashboard.chain_reader import Busy, Readings
from tiebreak.dashboard.showing import UNKNOWN, Names

_MOST_ENTRIES = 10_000


class LocalFiles:
    """Jobs in directories of the user, read by one thread. Used until `close`."""

    def __init__(self, files: Sequence[Path], *, done: Callable[[], None] = lambda: None) -> None:
        """files: directories of jobs, or of roles. done: is called when more is known."""
        self._readings = Readings(patience=0.0, threads=1, done=done)
        self._files = list(files)

    def close(self) -> None:
        """Let no further reading start."""
        self._readings.close()

    def jobs(self, job: JobView) -> tuple[Path, ...]:
        """Return the directories that could be a job's files."""
        found = []
        for directory in self._files:
            found += [room / "job" for room in _rooms(directory, job)]
            found += [directory, directory / "job", directory.parent / "job"]
        return tuple(path for path in found if (path / "program.json").is_file())

    def names(self, job: JobView) -> Names:
        """Return the names of a job's operators and slots, as far as they are known."""
        root, rooms = job.spec.training.program_root, self.jobs(job)
        with suppress(Busy):
            return self._readings.get(("names", root, rooms), (0, None), partial(_names, rooms, root)).value
        return UNKNOWN


def _rooms(directory: Path, job: JobView) -> list[Path]:
    """Return a role's rooms of jobs with this spec, which are named as by `RoleContext.room`. The same spec has the
    same run, whichever job it was posted as."""
    ending = f"-{job.spec_hash.hex()[:16]}"
    try:
        names = [entry.name for entry in islice(os.scandir(directory), _MOST_ENTRIES)]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if name.startswith("job-") and name.endswith(ending)]


def _names(rooms: Sequence[Path], root: bytes) -> Names:
    """Return the names in the files of a job, once they are shown to be the program that the chain commits to."""
    from roundlog.training import read_program

    for room in rooms:
        try:
            program, spec = read_program(room)
        except Exception:  # a damaged file, or another program's: the page says less
            continue
        if spec.program_root == root:
            return Names([(node.op, node.source) for node in program.nodes], list(program.state_names))
    return UNKNOWN
