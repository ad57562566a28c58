"""Files on this machine that say more than the chain: jobs, for names and lines, and runs, for losses and replays.

They are looked for under fixed names only, in directories that the user has named, and read by a thread beside the
pages: a page shows what is known, and is made anew when more is.

A replay executes parts of the followed run again, as a party would to answer, and compares their roots with what both
sides claim, level by level: the disputed interval, then the disputed step. It reads the run and changes nothing in it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from roundlog.storage import open_regular

from tiebreak.contract.enums import Level, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.dashboard.chain_reader import Busy, Readings
from tiebreak.dashboard.showing import LEVELS, SIDES, UNKNOWN, Names, bounded

if TYPE_CHECKING:
    from roundlog.training import Job

    from tiebreak.roles.engine import DisputeTrees

T = TypeVar("T")
Place = tuple[int, ...]
"""Indices of the leaves that a dispute has found, from the checkpoint down."""

POINTS = 240
"""Points of a curve; of more steps, the mean of as many neighbours as it takes is drawn."""

WIDTH, HEIGHT = 1000.0, 220.0
_MOST_LINES = 200_000
"""Lines of a history that are read, from its beginning."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve, drawn from left to right, with the numbers that belong to its ends. `total`: steps of the whole run,
    which the width stands for."""

    points: str
    steps: int
    first: float
    last: float
    lowest: float
    highest: float
    total: int


def read_curve(run_dir: Path, total: int) -> Curve | None:
    """Return the losses in a run's history, of a run of `total` steps; None if there are none, or the file is
    damaged."""
    from roundlog.storage import StorageError
    from roundlog.training import read_history

    try:
        entries = islice(read_history(run_dir), _MOST_LINES)
        losses = [(one.step, one.loss) for one in entries if one.loss is not None and math.isfinite(one.loss)]
    except StorageError:
        return None
    return curve(losses, total)


def curve(losses: list[tuple[int, float]], total: int) -> Curve | None:
    """Return the curve through (step, loss); None if there are none."""
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
    values = [loss for _, loss in losses]
    return Curve(points, len(losses), values[0], values[-1], min(values), max(values), total)


_MOST_RECORD = 4096
_MOST_ENTRIES = 10_000

RUNS = ("run", "alone", "blind")
"""Names of the runs in a role's room of one job: a trainer's, and an auditor's of open and of blind audits."""


class LocalFiles:
    """Jobs and runs in directories of the user, read by one thread. Used until `close`."""

    def __init__(
        self,
        *,
        files: Sequence[Path] = (),
        follow: Sequence[Path] = (),
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """files: directories of jobs, or of roles. follow: directories of runs, or of roles. done: is called when more
        is known."""
        self._readings = Readings(patience=0.0, threads=1, done=done)
        self._files, self._follow = [*files, *follow], list(follow)
        self._trees: tuple[Path, DisputeTrees] | None = None
        """Trees of the run used last; only the thread that reads touches them."""

    def close(self) -> None:
        """Let no further reading start."""
        self._readings.close()

    def _read(self, key: object, read: Callable[[], T], version: object = None) -> tuple[T | None, str] | None:
        """Return what has been read, or why it could not be, in one sentence; None as long as it is being read. It is
        read again for every new `version`."""

        def guarded() -> tuple[T | None, str]:
            try:
                return read(), ""
            except Exception as error:  # a damaged file, or another program's: the page says less
                return None, f"{bounded(str(error), 400).rstrip('.') or type(error).__name__}."

        with suppress(Busy):
            return self._readings.get(key, (0, version), guarded).value
        return None

    @property
    def follows(self) -> bool:
        """Whether own runs were named."""
        return bool(self._follow)

    def jobs(self, job: JobView) -> tuple[Path, ...]:
        """Return the directories that could be a job's files."""
        found = []
        for directory in self._files:
            found += [room / "job" for room in _rooms(directory, job)]
            found += [directory, directory / "job", directory.parent / "job"]
        return tuple(path for path in found if (path / "program.json").is_file())

    def runs(self, job: JobView) -> list[Path]:
        """Return the directories of own runs of a job."""
        found = []
        for directory in self._follow:
            found += [room / run for room in _rooms(directory, job) for run in RUNS] + [directory]
        run_id = job.spec.training.run_id.hex()
        return [path for path in found if _run_id(path) == run_id]

    def names(self, job: JobView) -> Names:
        """Return the names of a job's operators and slots, as far as they are known."""
        root, rooms = job.spec.training.program_root, self.jobs(job)
        found = self._read(("names", root, rooms), partial(_names, rooms, root))
        return UNKNOWN if found is None or found[0] is None else found[0]

    def curve(self, job: JobView) -> Curve | None:
        """Return the losses of the first own run of a job that has any; of one that goes on, as far as it has come."""
        steps = job.spec.training.steps
        for run in self.runs(job):
            if size := _size(run / "history.jsonl"):
                found = self._read(("curve", run), partial(read_curve, run, steps), size)
                if found is not None and found[0] is not None:
                    return found[0]
        return None

    def root(
        self, job: JobView, place: Place = (), sum_of: tuple[int, int] | None = None
    ) -> tuple[bytes | None, str] | None:
        """Return the root of an own run's tree at a place, or None and why it could not be executed; None while it is
        being executed. sum_of: element of a sum, and its claimed bits, for the tree of its segments."""
        whole = 32 * job.spec.training.intervals
        runs = tuple(run for run in self.runs(job) if _size(run / "roots") >= whole)
        if not runs:
            return None, ""
        replay = partial(self._replay, self.jobs(job), runs, job, place, sum_of)
        return self._read(("replay", job.spec_hash, place, sum_of), replay, runs)

    def _replay(
        self,
        rooms: Sequence[Path],
        runs: Sequence[Path],
        job: JobView,
        place: Place,
        sum_of: tuple[int, int] | None,
    ) -> bytes | None:
        trees = next((trees for run in runs if (trees := self._trees_of(rooms, run, job)) is not None), None)
        if trees is None:
            return None
        tree = trees.tree(place)
        return (tree if sum_of is None else tree.running(*sum_of)).tree.root  # type: ignore[union-attr]

    def _trees_of(self, rooms: Sequence[Path], run: Path, job: JobView) -> DisputeTrees | None:
        """Return the trees of a run that has ended; None if its record is damaged or its job's files are not at hand.
        Raises JobError for files that are damaged, unless others are at hand."""
        from roundlog.training import JobError, Run

        from tiebreak.roles.engine import DisputeTrees

        if self._trees is not None and self._trees[0] == run:
            return self._trees[1]
        damaged: JobError | None = None
        for room in rooms:
            try:
                read = _read_job(room)
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


def _rooms(directory: Path, job: JobView) -> list[Path]:
    """Return a role's rooms of jobs with this spec, which are named as by `RoleContext.room`. The same spec has the
    same run, whichever job it was posted as."""
    ending = f"-{job.spec_hash.hex()[:16]}"
    try:
        names = [entry.name for entry in islice(os.scandir(directory), _MOST_ENTRIES)]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if name.startswith("job-") and name.endswith(ending)]


def _run_id(run: Path) -> str:
    """Return the id of the job whose run a directory is; empty if it is none."""
    try:
        with open_regular(run / "run.json") as file:
            record = json.loads(file.read(_MOST_RECORD))
        return str(record["run_id"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return ""


def _names(rooms: Sequence[Path], root: bytes) -> Names | None:
    """Return the names in the files of a job, once they are shown to be the program that the chain commits to."""
    from roundlog.training import JobError, read_program

    for room in rooms:
        try:
            program, spec = read_program(room)
        except JobError:
            continue
        if spec.program_root == root:
            return Names([(node.op, node.source) for node in program.nodes], list(program.state_names))
    return None


def _read_job(directory: Path) -> Job:
    """Return the job in a directory; one whose data lies in a store is enough for what needs no data. Raises
    JobError."""
    from roundlog.training import Job, JobLimits

    from tiebreak.segment_audits.stored_jobs import lies_elsewhere, read_elsewhere

    return read_elsewhere(directory, JobLimits(), None) if lies_elsewhere(directory) else Job.read(directory)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class RootComparison:
    """Our own root of one level beside the two sides'. `agrees`: whether each side has it, by Side."""

    level: str
    ours: str
    agrees: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class OwnReplay:
    """Comparison of a game with our own run. `waiting`: whether a level is being executed again; `trouble`: why the
    next level could not be, in one sentence, or empty."""

    levels: list[RootComparison]
    waiting: bool
    trouble: str = ""

    @property
    def words(self) -> str:
        """The whole in one sentence."""
        if not self.levels and self.trouble:
            return "Our own run cannot be compared now."
        if not self.levels:
            return "Our own run is being read." if self.waiting else "Our own run has no root to compare yet."
        sides = [side for side in Side if self.levels[0].agrees[side]]
        if not sides:
            return "Our own replay agrees with neither side: each claims another root than ours."
        said = f"Our own replay agrees with the {SIDES[sides[0]]}"
        first = next((one for one in self.levels if not one.agrees[sides[0]]), None)
        if first is not None:
            return f"{said} at first, but not at level {first.level}."
        return f"{said} at every level that was compared; the {SIDES[sides[0].other]} claims another root."


def compare_claim(local: LocalFiles, job: JobView) -> tuple[bool | None, str]:
    """Return whether the followed run of a job has the claimed root, None if there is none or it is not done; and why
    it cannot be compared, in one sentence."""
    root, trouble = local.root(job) or (None, "")
    agrees = None if root is None or not job.claim.committed_at else root == job.claim.checkpoint_root
    return agrees, trouble


def compare_game(local: LocalFiles, game: GameView, job: JobView) -> OwnReplay | None:
    """Return the comparison of a game with the followed run; None if none is followed."""
    if not local.runs(job):
        return None
    found: list[RootComparison] = []
    place: Place = ()
    sum_of: tuple[int, int] | None = None
    for level in game.levels:
        if level.level is Level.PARTIAL:
            place, sum_of = place[:3], (game.disputed.element, game.disputed.claimed)
        known = local.root(job, place, sum_of)
        if known is None or known[0] is None:
            return OwnReplay(found, known is None, "" if known is None else known[1])
        root = known[0]
        agrees = level.roots[Side.TRAINER] == root, level.roots[Side.CHALLENGER] == root
        found.append(RootComparison(LEVELS[level.level][0], "0x" + root.hex(), agrees))
        # A root of neither side has none of their trees below it, nor has a slot of the state one.
        if agrees == (False, False) or (
            level.level is Level.OPERATOR and level.index >= job.spec.training.operator_count
        ):
            break
        place = (*place, level.index)
    return OwnReplay(found, False)
