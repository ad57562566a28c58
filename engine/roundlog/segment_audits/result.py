"""Sharing, listeners and result of an audit by segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from roundlog.commitments import MerkleTree
from roundlog.segment_audits.plan import fewest_parts, miss_probability
from roundlog.segment_audits.workers import MakeWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """An interval that ends in another root than the claimed one, as this process has found, too."""

    interval: int
    root: bytes
    """The root that it ends in; of fabricated values if it stops."""
    stopped: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAudit:
    """The result of an audit by many workers."""

    state_roots: list[bytes]
    """The claimed roots; if one is wrong, with the right one in its place, which is a claim that wins a game."""
    right: list[int]
    """Intervals that come from the root claimed before them to the one claimed after them, ascending."""
    wrong: Wrong | None
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
        """The probability, at most, that nothing was found although so many intervals are wrong: the worst case is that
        they lie together in as few parts as can hold them."""
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
    """Called with a sentence about a state, or a worker, that is not used, and about a worker that may hang."""


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
