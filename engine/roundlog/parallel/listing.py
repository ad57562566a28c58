"""Published parts of a run: state roots, and the addresses of some states. None of it is trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roundlog.parallel.segment import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Claimed state roots of the first intervals, and addresses of states.

    Right or wrong is said about these roots. Whether they are those that were committed to is for the caller to check:
    their Merkle root is the checkpoint root."""

    roots: tuple[bytes, ...]
    """State root after each interval that is published."""
    states: Mapping[int, str] = field(default_factory=dict)
    """Number of intervals done -> address of the state after them."""
    complete: bool = True
    """Whether nothing will be added: the run has ended."""
    job: str | None = None
    """Address of the job's directory, if it is published beside."""

    def starts(self) -> list[int]:
        """Numbers of intervals after which a state is published that another interval starts from, with 0 for the
        initial state; ascending."""
        return [0, *sorted(done for done in self.states if 0 < done < len(self.roots))]

    def start(self, done: int, initial_root: bytes) -> Start:
        """The state after `done` intervals as a start."""
        if done == 0:
            return Start(root=initial_root, address=None)
        return Start(root=self.roots[done - 1], address=self.states[done])


Look = Callable[[], Listing]
"""Shows what is published now."""


def settled(listing: Listing) -> Look:
    """The look at a run that has ended."""
    return lambda: listing
