"""Our own replay of a disputed run, held against what both sides claim, level by level.

A replay executes parts of the followed run again, as a party would to answer: the disputed interval, then the
disputed step. It reads the run and changes nothing in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.contract.enums import Level, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.dashboard.background_work import BackgroundWork
from tiebreak.dashboard.local_files import LocalFiles
from tiebreak.dashboard.showing import LEVELS, SIDES

if TYPE_CHECKING:
    from tiebreak.roles.engine import DisputeTrees


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
