"""The plan of an audit by intervals: which segment is executed next. It computes nothing and talks to nobody.

A fact is what a worker has computed: the root that an interval comes to from a root. An interval is right if a fact
says that it comes from the root claimed before it to the root claimed after it. Facts do not depend on claims, so they
stay true when something else is claimed.

Work is bounded whatever is published. Every state is tried before any interval is executed a second time, so that a
state that cannot be used costs at most the segment before it once more; and when repeated intervals exceed the run's
own, everything that is left is executed in one go from the initial state.

Facts are kept in a record, from which a killed audit carries on. Lines are appended and fsynced. A line that is torn
or damaged is left out, and its interval is executed again.

    facts.jsonl    one line a fact (interval, root before, root after, worker, checksum), or a worker not to be believed

At the end stand the audit's listeners, its result, and what its work was shared into.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path

from roundlog.commitments import MerkleTree
from roundlog.segment_audits.segment import Listing, MakeWorker, Segment, Start
from roundlog.storage import append_file, open_regular
from roundlog.training.receipt import WrongInterval


@dataclass(frozen=True, slots=True)
class IntervalResult:
    """Interval `interval`, started from the state with root `start`, ends in the state with root `end`."""

    interval: int
    start: bytes
    end: bytes


class Plan:
    """The intervals that are still to be audited, and the segments in which they are handed out."""

    def __init__(self, listing: Listing, initial_root: bytes, *, wanted: frozenset[int] | None = None) -> None:
        """initial_root: of the job. wanted: the intervals to audit; None for all."""
        self.listing = listing
        self._initial_root = initial_root
        self._wanted = wanted
        # Interval and root before it -> root after it -> the workers that have computed it.
        self._facts: dict[tuple[int, bytes], dict[bytes, set[str]]] = {}
        self._dropped: set[int] = set()
        self._given_up: set[int] = set()
        self._pending: deque[Segment] = deque()
        self._handed_out: list[Segment] = []
        self._open: set[int] = set()
        self._must_replan = False
        self._repeated = 0
        self._closed = 0

    # What is known.

    def begin(self) -> None:
        """Plan all intervals that no fact that was learnt so far has shown to be right."""
        left = [i for i in range(len(self.listing.roots)) if self._is_wanted(i) and not self.is_right(i)]
        self._open.update(left)
        segments = self._segments(left)
        # What somebody has found wrong before is looked at first.
        self._pending.extend(sorted(segments, key=lambda s: not any(map(self._is_doubted, range(s.first, s.stop)))))

    def learn(self, fact: IntervalResult, worker: str) -> None:
        """Take up what a worker has computed."""
        self._facts.setdefault((fact.interval, fact.start), {}).setdefault(fact.end, set()).add(worker)
        if fact.interval in self._open and self.is_right(fact.interval):
            self._open.remove(fact.interval)
            self._closed += 1

    def distrust(self, workers: set[str]) -> None:
        """Forget what only these workers have computed."""
        for (interval, _), ends in self._facts.items():
            for end, names in list(ends.items()):
                names -= workers
                if not names:
                    del ends[end]
            if self._is_wanted(interval) and not self.is_right(interval):
                self._open.add(interval)
                self._must_replan = True

    def drop_state(self, done: int) -> None:
        """Use the state that is published after `done` intervals no more."""
        if done:
            self._dropped.add(done)
            self._must_replan = True

    def give_up(self, interval: int) -> None:
        """Leave an interval that is known to be wrong alone, and those behind it that are only reached through it."""
        stop = next((start for start in self._starts if start > interval), len(self.listing.roots))
        self._given_up.update(range(interval, stop))
        self._open.difference_update(range(interval, stop))

    def is_right(self, interval: int) -> bool:
        """Return whether an interval is known to come to its claimed root from the one before it."""
        return self.listing.roots[interval] in self._facts.get((interval, self.root_before(interval)), {})

    def root_before(self, interval: int) -> bytes:
        """Return the root that is claimed before an interval; before the first it is the job's."""
        return self.listing.roots[interval - 1] if interval else self._initial_root

    def right(self) -> list[int]:
        """Return the intervals that are known to be right, ascending."""
        return [i for i in range(len(self.listing.roots)) if self.is_right(i)]

    @property
    def is_done(self) -> bool:
        """Whether all that is wanted is audited."""
        return not self._open

    # What is to be done.

    def next(self) -> Segment | None:
        """Return the next segment to hand out; None if there is none at present."""
        while True:
            if not self._pending and self._must_replan:
                self._must_replan = False
                handed_out = {i for segment in self._handed_out for i in range(segment.first, segment.stop)}
                self._pending.extend(self._segments(sorted(self._open - handed_out)))
            if not self._pending:
                return None
            segment = self._pending.popleft()
            # Something may have been learnt since, or the state before it was dropped.
            if segment.first not in self._dropped and self.is_open(segment):
                self._handed_out.append(segment)
                return segment
            self._must_replan = self._must_replan or self.is_open(segment)

    def start(self, segment: Segment) -> Start:
        """Return the state that a segment starts from."""
        return self.listing.start(segment.first, self._initial_root)

    def answered(self, segment: Segment, executed: int) -> None:
        """Take a segment back after so many executed intervals, without those that were repeated on purpose; call it
        after `learn` and `drop_state`."""
        self._handed_out.remove(segment)
        self._repeated += max(0, executed - self._closed)
        self._closed = 0
        self._must_replan = self._must_replan or self.is_open(segment)

    def lost(self, segment: Segment) -> None:
        """Hand a segment out again, before all others: the worker that had it is lost."""
        self._handed_out.remove(segment)
        self._pending.appendleft(segment)

    def is_open(self, segment: Segment) -> bool:
        """Return whether an interval of a segment is still to be audited."""
        return any(interval in self._open for interval in range(segment.first, segment.stop))

    def hand_out_again(self, segment: Segment) -> None:
        """Note that a segment is handed out once more."""
        self._handed_out.append(segment)

    @property
    def progress(self) -> tuple[int, int]:
        """(intervals that need nothing more, intervals that are to be audited)."""
        total = len(self.listing.roots if self._wanted is None else self._wanted)
        return total - len(self._open), total

    # Parts.

    @property
    def _starts(self) -> list[int]:
        """States that segments start from, ascending."""
        if self._repeated > len(self.listing.roots):
            return [0]
        return [done for done in self.listing.starts() if done not in self._dropped]

    def _is_wanted(self, interval: int) -> bool:
        return (self._wanted is None or interval in self._wanted) and interval not in self._given_up

    def _is_doubted(self, interval: int) -> bool:
        """Return whether somebody has computed another root than the claimed one."""
        ends = self._facts.get((interval, self.root_before(interval)), {})
        return any(end != self.listing.roots[interval] for end in ends)

    def _segments(self, intervals: list[int]) -> list[Segment]:
        """Return the segments in which these intervals (ascending) are reached from the nearest state before each."""
        starts = self._starts
        found: list[Segment] = []
        for interval in intervals:
            first = starts[bisect_right(starts, interval) - 1]
            if found and found[-1].first == first:
                found[-1] = Segment(first, interval + 1)
            else:
                found.append(Segment(first, interval + 1))
        return found


def units(listing: Listing) -> list[Segment]:
    """Return the segments between published states: the smallest parts that can be audited each for itself."""
    edges = [*listing.starts(), len(listing.roots)]
    return [Segment(first, stop) for first, stop in pairwise(edges) if first < stop]


def draw_sample(listing: Listing, share: float) -> frozenset[int]:
    """Return intervals of at least this share (0 to 1) of the segments between published states, at least one, drawn by
    the random numbers of the operating system.

    Every segment is drawn with the same probability, however long: where states are published is the trainer's choice,
    and a number of segments that depended on their lengths would leave short ones out more often than is told."""
    segments = units(listing)
    chosen = random.SystemRandom().sample(segments, max(1, math.ceil(share * len(segments))))
    return frozenset(interval for segment in chosen for interval in range(segment.first, segment.stop))


def miss_probability(count: int, drawn: int, wrong: int) -> float:
    """Return the probability that `drawn` parts, drawn at random from `count`, are none of the `wrong` wrong ones."""
    return prod(max(count - drawn - k, 0) / (count - k) for k in range(min(wrong, count)))


def fewest_parts(sizes: Sequence[int], wrong: int) -> int:
    """Return the fewest parts, of so many intervals each, in which `wrong` intervals can lie; all parts if they
    cannot."""
    held = accumulate(sorted(sizes, reverse=True))
    return next((count for count, room in enumerate(held, 1) if room >= wrong), len(sizes))


_NAME = "facts.jsonl"


class Facts:
    """The record in the directory of an audit of the run `run_id` (32 bytes)."""

    def __init__(self, directory: Path, run_id: bytes) -> None:
        self._path = directory / _NAME
        self._run_id = run_id

    def read(self) -> list[tuple[IntervalResult, str]]:
        """Return (fact, worker) of every readable line, but for workers that are not believed any more. Raises OSError,
        StorageError."""
        try:
            with open_regular(self._path) as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        found: list[tuple[IntervalResult, str]] = []
        distrusted: set[str] = set()
        for line in lines:
            entry = self._entry(line)
            if entry is None:
                continue
            if "distrusted" in entry:
                distrusted.add(str(entry["distrusted"]))
            else:
                roots = bytes.fromhex(str(entry["start"])), bytes.fromhex(str(entry["end"]))
                found.append((IntervalResult(int(str(entry["interval"])), *roots), str(entry["worker"])))
        return [(fact, worker) for fact, worker in found if worker not in distrusted]

    def add(self, facts: Iterable[IntervalResult], worker: str) -> None:
        """Append facts. Raises OSError."""
        self._append(
            {"interval": fact.interval, "start": fact.start.hex(), "end": fact.end.hex(), "worker": worker}
            for fact in facts
        )

    def distrust(self, workers: Iterable[str]) -> None:
        """Append that these workers are not believed any more. Raises OSError."""
        self._append({"distrusted": worker} for worker in sorted(workers))

    def _append(self, entries: Iterable[dict[str, object]]) -> None:
        # A line's end comes first, too: a torn line before it stays one by itself.
        lines = [json.dumps(entry | {"sum": self._sum(entry)}, sort_keys=True) for entry in entries]
        if not lines:
            return
        append_file(self._path, ("\n" + "\n".join(lines) + "\n").encode())

    def _entry(self, line: bytes) -> dict[str, object] | None:
        """Return a line's entry, if it is as it was written: then its keys and types are right."""
        try:
            entry = json.loads(line)
            written = entry.pop("sum")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return None
        return entry if isinstance(entry, dict) and written == self._sum(entry) else None

    def _sum(self, entry: dict[str, object]) -> str:
        return sha256(self._run_id + json.dumps(entry, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAudit:
    """The result of an audit by many workers."""

    state_roots: list[bytes]
    """The claimed roots; if one is wrong, with the right one in its place, which is a claim that wins a game."""
    right: list[int]
    """Intervals that come from the root claimed before them to the one claimed after them, ascending."""
    wrong: WrongInterval | None
    """An interval that ends in another root than the claimed one, as this process has found, too."""
    sizes: list[int]
    """Intervals of each part of the run that can be audited for itself: of the segments between published states."""
    drawn: int
    """Parts that were to be audited."""
    unusable: list[str] = field(default_factory=list)
    """Published states that could not be used, one clause each."""
    distrusted: list[str] = field(default_factory=list)
    """Workers that are not believed, one clause each with the reason."""
    lost: int = 0
    """Workers that got lost."""
    busy_seconds: float = 0.0
    """Time that workers took for their answers, together."""
    fetched: int = 0
    """Bytes of data that workers and this process have fetched, where the job's data lie elsewhere."""

    @property
    def checkpoint_root(self) -> bytes:
        """The Merkle root of `state_roots`."""
        return MerkleTree(self.state_roots).root

    @property
    def units(self) -> int:
        """Number of parts of the run that can be audited each for itself."""
        return len(self.sizes)

    @property
    def is_whole(self) -> bool:
        """Whether every interval was found right."""
        return len(self.right) == len(self.state_roots)

    def unnoticed(self, wrong: int) -> float:
        """Return the probability, at most, that nothing was found although so many intervals are wrong: the worst case
        is that they lie together in as few parts as can hold them."""
        if self.is_whole:
            return 0.0
        return miss_probability(self.units, self.drawn, fewest_parts(self.sizes, wrong))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Listeners that an audit tells how it goes on."""

    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with the numbers of intervals that are right, and that are to be audited, several times a second; what it
    raises ends the audit, which can be resumed."""
    event: Callable[[str], None] = lambda text: None
    """Called with a sentence about a state, or a worker, that is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Sharing of the work among workers."""

    make: MakeWorker
    workers: int
    repeat_share: float = 0.0
    """Share of the right answers that another worker repeats, drawn in secret."""
    share: float = 1.0
    """Share of the intervals to audit, drawn in secret."""
    common_disk: bool = False
    """Whether workers see this machine's files: then their temporary ones are in the directory of the audit."""
