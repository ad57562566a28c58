"""The running results of one sum, as a party claims them: leaves of level PARTIAL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import count

from roundlog.adjudication import Descriptor
from roundlog.adjudication.adjudicate import Answer, Chunks, finish, run_segment, segments
from roundlog.adjudication.openings import Material, partial_tree
from roundlog.adjudication.partial import NoValueError, Partial, start
from roundlog.commitments import MerkleTree
from roundlog.dispute.made_up import MadeUp
from roundlog.dispute.sums import running_sums


@dataclass(frozen=True)
class RunningResults:
    """One element's running results after every segment of its terms."""

    partials: list[Partial]
    stopped: bool
    """Whether a term was not finite: from that segment on they go on from one that is made up."""

    @cached_property
    def tree(self) -> MerkleTree:
        return partial_tree(self.partials)

    def before(self, segment: int) -> bytes:
        """The encoded running result before a segment: 96 zero bytes before the first."""
        return self.partials[segment - 1].encode() if segment else bytes(96)


def running_results(
    descriptor: Descriptor,
    element: int,
    material: Material,
    *,
    made_up: MadeUp,
    place: tuple[int, int],
    claimed: Answer,
    bits: int,
) -> RunningResults:
    """place: step and operator. claimed: what the opponent says the element is. Where a segment has no result, one is
    made up, such that the last does not come to what the opponent claims."""
    totals = running_sums(descriptor, element, material)
    if totals is not None:
        return RunningResults(list(totals), stopped=False)
    for attempt in count():
        found = _results(descriptor, element, material, made_up, (*place, element, attempt))
        if not found.stopped or finish(descriptor, found.partials[-1], bits) != claimed:
            return found
    raise AssertionError("unreachable")


def _results(
    descriptor: Descriptor, element: int, material: Chunks, made_up: MadeUp, place: tuple[int, ...]
) -> RunningResults:
    partial, partials, stopped = start(descriptor), [], False
    for number, terms in enumerate(segments(descriptor)):
        try:
            partial = run_segment(descriptor, element, partial, terms, material)
        except NoValueError:
            partial, stopped = made_up.partial(descriptor, "partial", *place, number), True
        partials.append(partial)
    return RunningResults(partials, stopped)
