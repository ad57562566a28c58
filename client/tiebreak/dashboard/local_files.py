"""Files on this machine that say more than the chain: jobs, for names and lines, and runs, for losses, drawn as a
picture of bounded size, and replays.

They are looked for under fixed names only, in directories that the user has named, and read beside the pages.

A replay executes parts of the followed run again, as a party would to answer, and is held against what both sides
claim, level by level: the disputed interval, then the disputed step. It reads the run and changes nothing in it.
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

from tiebreak.contract.enums import Level, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.dashboard.background_work import BackgroundWork
from tiebreak.dashboard.showing import LEVELS, SIDES, UNKNOWN, Names

if TYPE_CHECKING:
    from roundlog.training import Job

    from tiebreak.roles.engine import DisputeTrees
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


@dataclass(frozen=True, slots=True)
class RootComparison:
    """Our own root of one level beside the two sides'."""

    level: str
    ours: str
    agrees: tuple[bool, bool]
    """Whether each side has our root, by Side."""

    @property
    def words(self) -> str:
        """Sentence that names the sides with our root."""
        who = [SIDES[side] for side in Side if self.agrees[side]]
        if len(who) == 2:
            return "both sides have our root"
        return f"the {who[0]} has our root" if who else "neither side has our root"


@dataclass(frozen=True, slots=True)
class OwnReplay:
    """Comparison of a game with our own run."""

    levels: list[RootComparison]
    waiting: bool
    """Whether a level is being executed again."""
    trouble: str = ""
    """Why the next level could not be executed again, and what follows; empty if nothing is wrong."""

    @property
    def words(self) -> str:
        """The whole in one sentence."""
        if not self.levels and self.trouble:
            return "Our own run cannot be compared now."
        if not self.levels:
            return "Our own run is being read." if self.waiting else "Our own run has no root to compare yet."
        top = self.levels[0]
        sides = [side for side in Side if top.agrees[side]]
        if not sides:
            return "Our own replay agrees with neither side: each claims another root than ours."
        said = f"Our own replay agrees with the {SIDES[sides[0]]}"
        with_it = [one for one in self.levels if one.agrees[sides[0]]]
        if len(with_it) < len(self.levels):
            first = next(one for one in self.levels if not one.agrees[sides[0]])
            return f"{said} at first, but not at level {first.level}."
        return f"{said} at every level that was compared; the {SIDES[sides[0].other]} claims another root."


class Replays:
    """Replays of the runs that are followed."""

    def __init__(self, local: LocalFiles, work: BackgroundWork) -> None:
        self._local = local
        self._work = work
        self._trees: tuple[Path, DisputeTrees] | None = None
        """Trees of the run used last; only the thread of the background work touches them."""

    def claim(self, job: JobView) -> bool | None:
        """Whether the followed run of a job has the claimed root; None if there is none, or it is not done."""
        root = self._root(job, ())
        return None if root is None or not job.claim.committed_at else root == job.claim.checkpoint_root

    def trouble(self, job: JobView) -> str:
        """Why the followed run of a job cannot be held against its claim; empty if nothing is wrong."""
        return self._work.trouble(_key(job, (), None)) if self._local.runs(job) else ""

    def game(self, game: GameView, job: JobView) -> OwnReplay | None:
        """Comparison of a game with the followed run; None if none is followed."""
        if not self._local.runs(job):
            return None
        found: list[RootComparison] = []
        place: tuple[int, ...] = ()
        sum_of: tuple[int, int] | None = None
        for level in game.levels:
            sum_of = (game.disputed.element, game.disputed.claimed) if level.level is Level.PARTIAL else None
            if level.level is Level.PARTIAL:
                place = place[:3]
            root = self._root(job, place, sum_of)
            if root is None:
                break
            agrees = level.roots[Side.TRAINER] == root, level.roots[Side.CHALLENGER] == root
            found.append(RootComparison(LEVELS[level.level][0], "0x" + root.hex(), agrees))
            if agrees == (False, False):
                break  # what lies below is of neither side's tree
            place = (*place, level.index)
            if level is game.current or not self._has_tree(level.level, level.index, job):
                break
        key = _key(job, place, sum_of)
        return OwnReplay(found, self._work.is_waiting(key), self._work.trouble(key))

    @staticmethod
    def _has_tree(level: Level, index: int, job: JobView) -> bool:
        """Whether a leaf has a tree of its own below it: a slot of the state has none."""
        return level is not Level.OPERATOR or index < job.spec.training.operator_count

    def _root(self, job: JobView, place: tuple[int, ...], sum_of: tuple[int, int] | None = None) -> bytes | None:
        whole = 32 * job.spec.training.intervals
        runs = tuple(run for run in self._local.runs(job) if _size(run / "roots") >= whole)
        if not runs:
            return None
        rooms = tuple(self._local.jobs(job))
        replayed = partial(self._replayed, rooms, runs, job, place, sum_of)
        return self._work.result(_key(job, place, sum_of), replayed, version=runs)

    def _replayed(
        self,
        rooms: tuple[Path, ...],
        runs: tuple[Path, ...],
        job: JobView,
        place: tuple[int, ...],
        sum_of: tuple[int, int] | None,
    ) -> bytes | None:
        for run in runs:
            trees = self._trees_of(rooms, run, job)
            if trees is None:
                continue
            tree = trees.tree(place)
            if sum_of is not None:
                return tree.running(*sum_of).tree.root  # type: ignore[union-attr]
            return tree.tree.root
        return None

    def _trees_of(self, rooms: tuple[Path, ...], run: Path, job: JobView) -> DisputeTrees | None:
        """The trees of a run that has ended; None if its record is damaged or its job's files are not at hand. Raises
        JobError for files that are damaged, unless others are at hand."""
        from roundlog.training import JobError, Run

        from tiebreak.roles.engine import DisputeTrees

        if self._trees is not None and self._trees[0] == run:
            return self._trees[1]
        damaged: JobError | None = None
        for room in rooms:
            if not (room / "program.json").is_file():
                continue
            try:
                read = self._local.read_job(room)
            except JobError as error:
                damaged = error
                continue
            if read.spec != job.spec.training:
                continue
            roots = Run(read, run).recorded_roots()
            if len(roots) < read.spec.intervals:
                return None
            self._trees = run, DisputeTrees(read, run, roots, cache_bytes=1 << 28)
            return self._trees[1]
        if damaged is not None:
            raise damaged
        return None


def _key(job: JobView, place: tuple[int, ...], sum_of: tuple[int, int] | None) -> tuple[object, ...]:
    """The name of the replay of a place of a job's run."""
    return "replay", job.spec_hash, place, sum_of


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
