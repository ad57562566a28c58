"""Files on this machine that say more than the chain: jobs, for names and lines, and runs, for losses, drawn as a
picture of bounded size, and replays.

They are looked for under fixed names only, in directories that the user has named, and read beside the pages.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from roundlog.storage import open_regular

from tiebreak.contract.structs import JobView
from tiebreak.dashboard.background_work import BackgroundWork
from tiebreak.dashboard.showing import UNKNOWN, Names

if TYPE_CHECKING:
    from roundlog.training import Job

    from tiebreak.store.store import Store


POINTS = 240
"""Points of a curve; of more steps, the mean of as many neighbours as it takes is drawn."""

WIDTH, HEIGHT = 1000.0, 220.0
_MOST_LINES = 200_000
"""Lines of a history that are read, from its beginning."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve, drawn from left to right, with the numbers that belong to its ends."""

    points: str
    steps: int
    first: float
    last: float
    lowest: float
    highest: float
    total: int
    """Steps of the whole run, which the width stands for."""


def read_curve(run_dir: Path, total: int) -> Curve | None:
    """The losses in a run's history, of a run of `total` steps; None if there are none, or the file is damaged."""
    from roundlog.storage import StorageError
    from roundlog.training import read_history

    try:
        entries = islice(read_history(run_dir), _MOST_LINES)
        losses = [(one.step, one.loss) for one in entries if one.loss is not None and math.isfinite(one.loss)]
    except StorageError:
        return None
    return curve(losses, total)


def curve(losses: list[tuple[int, float]], total: int) -> Curve | None:
    """The curve through (step, loss); None if there are none."""
    if not losses:
        return None
    every = -(-len(losses) // POINTS)
    groups = [losses[i : i + every] for i in range(0, len(losses), every)]
    means = [(sum(s for s, _ in group) / len(group), sum(x for _, x in group) / len(group)) for group in groups]
    low, high = min(loss for _, loss in means), max(loss for _, loss in means)
    width, height = max(1, total - 1, losses[-1][0]), (high - low) or 1.0
    points = " ".join(
        f"{step / width * WIDTH:.1f},{4 + (HEIGHT - 8) * (1 - (loss - low) / height):.1f}" for step, loss in means
    )
    return Curve(
        points=points,
        steps=len(losses),
        first=losses[0][1],
        last=losses[-1][1],
        lowest=min(loss for _, loss in losses),
        highest=max(loss for _, loss in losses),
        total=total,
    )


MAX_NAMES_BYTES = 65 << 20
"""Most bytes of a job's program and spec, which are fetched from a store for their names."""

FETCH_SECONDS = 60.0

_MOST_RECORD = 4096
_MOST_ENTRIES = 10_000

RUNS = ("run", "alone", "blind")
"""Names of the runs in a role's room of one job: a trainer's, and an auditor's of open and of blind audits."""


class LocalFiles:
    """Jobs and runs in directories of the user, and jobs in a store."""

    def __init__(
        self,
        work: BackgroundWork,
        *,
        files: Sequence[Path] = (),
        follow: Sequence[Path] = (),
        store: Store | None = None,
    ) -> None:
        """files: directories of jobs, or of roles. follow: directories of runs, or of roles."""
        self._work = work
        self._files = [*files, *follow]
        self._follow = list(follow)
        self._store = store

    @property
    def follows(self) -> bool:
        """Whether own runs were named."""
        return bool(self._follow)

    def names(self, job: JobView) -> Names:
        """The names of a job's operators and slots, as far as they are known."""
        root = job.spec.training.program_root
        rooms = tuple(path for path in self.jobs(job) if (path / "program.json").is_file())
        found = self._work.result(("names", root, rooms), lambda: self._read_names(rooms, root)) if rooms else None
        if found is None and self._store is not None:
            cid, store = job.job_cid, self._store
            found = self._work.result(("names", root, cid), lambda: _fetch_names(store, cid, root))
        return found or UNKNOWN

    def jobs(self, job: JobView) -> list[Path]:
        """Directories where the files of a job could be."""
        found = []
        for directory in self._files:
            found += [room / "job" for room in _rooms(directory, job)]
            found += [directory, directory / "job", directory.parent / "job"]
        return found

    def read_job(self, directory: Path) -> Job:
        """The job in a directory, whose data may lie in the store. Raises JobError."""
        from roundlog.training import Job, JobLimits

        from tiebreak.segment_audits.stored_jobs import lies_elsewhere, read_elsewhere

        return read_elsewhere(directory, JobLimits(), self._store) if lies_elsewhere(directory) else Job.read(directory)

    def runs(self, job: JobView) -> list[Path]:
        """Directories of own runs of a job, as far as they are there."""
        found = []
        for directory in self._follow:
            found += [room / run for room in _rooms(directory, job) for run in RUNS] + [directory]
        run_id = job.spec.training.run_id.hex()
        return [path for path in found if _run_id(path) == run_id]

    def curve(self, job: JobView) -> Curve | None:
        """The losses of the first own run of a job that has any; of one that goes on, as far as it has come."""
        steps = job.spec.training.steps
        for run in self.runs(job):
            try:
                size = (run / "history.jsonl").stat().st_size
            except OSError:
                continue
            found = self._work.result(("curve", run), partial(read_curve, run, steps), version=size)
            if found is not None:
                return found
        return None

    @staticmethod
    def _read_names(rooms: Sequence[Path], root: bytes) -> Names | None:
        for room in rooms:
            if (found := _names(room, root)) is not None:
                return found
        return None


def _rooms(directory: Path, job: JobView) -> list[Path]:
    """A role's rooms of jobs with this spec, which are named as by `RoleContext.room`. The same spec has the same run,
    whichever job it was posted as."""
    ending = f"-{job.spec_hash.hex()[:16]}"
    try:
        names = [entry.name for entry in islice(os.scandir(directory), _MOST_ENTRIES)]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if name.startswith("job-") and name.endswith(ending)]


def _run_id(run: Path) -> str:
    """The id of the job whose run a directory is; empty if it is none."""
    try:
        with open_regular(run / "run.json") as file:
            record = json.loads(file.read(_MOST_RECORD))
        return str(record["run_id"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return ""


def _fetch_names(store: Store, cid: str, root: bytes) -> Names | None:
    from tiebreak.segment_audits.stored_jobs import program_plan

    with TemporaryDirectory(prefix="tiebreak-dashboard-") as name:
        room = Path(name) / "job"
        store.get_directory(cid, room, program_plan, max_bytes=MAX_NAMES_BYTES, within=FETCH_SECONDS)
        return _names(room, root)


def _names(room: Path, root: bytes) -> Names | None:
    """The names in the files of a job, once they are shown to be the program that the chain commits to."""
    from roundlog.training import JobError, read_program

    try:
        program, spec = read_program(room)
    except JobError:
        return None
    if spec.program_root != root:
        return None
    return Names([(node.op, node.source) for node in program.nodes], list(program.state_names))
