"""The running results of one reduction, as a party claims them: leaves of level PARTIAL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from roundlog.adjudication.openings import Material, partial_tree
from roundlog.adjudication.openings import running_results as by_reference
from roundlog.adjudication.partial import RunningResult
from roundlog.commitments import MerkleTree
from roundlog.descriptors import Descriptor
from roundlog.dispute.sums import running_sums


@dataclass(frozen=True)
class RunningResults:
    """One element's running results after every segment of its terms."""

    partials: list[RunningResult]

    @cached_property
    def tree(self) -> MerkleTree:
        return partial_tree(self.partials)

    def before(self, segment: int) -> bytes:
        """The encoded running result before a segment: 96 zero bytes before the first."""
        return self.partials[segment - 1].encode() if segment else bytes(96)


def running_results(descriptor: Descriptor, element: int, material: Material) -> RunningResults:
    totals = running_sums(descriptor, element, material)
    return RunningResults(by_reference(descriptor, element, material) if totals is None else list(totals))
