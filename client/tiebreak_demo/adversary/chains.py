"""Products of tensor cores by one who lies within a sum: another accumulator, another order of the groups, sums in
FP32, another last rounding.

Each is a running result that goes on by a rule of its own, so that a liar's bits and its running results are what the
lie comes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from roundlog.adjudication import Chunk, GroupChain, OperandOpening, segments, start
from roundlog.adjudication import binary32 as ieee
from roundlog.descriptors import Descriptor
from roundlog.number_format import FLOAT32, Format


@dataclass(frozen=True, slots=True)
class LyingChain(GroupChain):
    """at: the terms up to the end of the group that the lie is about."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class NudgedChain(LyingChain):
    """A chain whose accumulator is one ulp too large in magnitude, once."""

    def closed(self, terms: int) -> GroupChain:
        found = GroupChain.closed(self, terms)
        return replace(found, total=found.total + 1) if terms == self.at and found.total else found


@dataclass(frozen=True, slots=True)
class SwappedChain(LyingChain):
    """A chain in which a group is added after the one that follows it."""

    later: tuple[tuple[int, int], ...] = ()

    def closed(self, terms: int) -> GroupChain:
        if terms == self.at:
            return replace(self, later=self.pending, pending=())
        found = GroupChain.closed(replace(self, later=()), terms)
        return GroupChain.closed(replace(found, pending=self.later), terms) if self.later else found


@dataclass(frozen=True, slots=True)
class NearestChain(LyingChain):
    """A chain whose groups are, from one on, exact sums rounded to FP32, to nearest, in place of truncated terms."""

    def closed(self, terms: int) -> GroupChain:
        if terms < self.at:
            return GroupChain.closed(self, terms)
        products = (ieee.value(a) * ieee.value(b) for a, b in self.pending)
        total = ieee.rounded(sum(products, ieee.value(self.total)), FLOAT32)
        return replace(self, total=total, pending=())


@dataclass(frozen=True, slots=True)
class TruncatedChain(LyingChain):
    """A chain that is right but for the last rounding, which is toward zero."""

    def finish(self, format: Format) -> int | None:
        nearest = GroupChain.finish(self, format)
        exact = Fraction(self.sum + ieee.scaled(self.total), 1 << -FLOAT32.least_place)
        if nearest is None or not ieee.is_finite(nearest) or abs(ieee.value(nearest)) <= abs(exact):
            return nearest
        return format.in_float32(format.of_float32(nearest) - 1)


def lying_chain(kind: type[LyingChain], descriptor: Descriptor) -> LyingChain:
    """The running result before the first term, of a lie in the middle one of an element's segments."""
    first = start(descriptor)
    assert isinstance(first, GroupChain)
    middle = segments(descriptor)[len(segments(descriptor)) // 2]
    return kind(first.arithmetic, first.format, at=middle.start + descriptor.group)


class OpenedChunks:
    """The chunks of openings (implements `Chunks`)."""

    def __init__(self, openings: Sequence[OperandOpening]) -> None:
        self._payloads: Mapping[Chunk, bytes] = {one.chunk: one.payload for one in openings}

    def payload(self, chunk: Chunk) -> bytes:
        return self._payloads[chunk]
