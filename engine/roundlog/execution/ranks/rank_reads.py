"""Reads of a rank's program: where it needs the other ranks, or the sources of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from roundlog.execution.batches import LazyTensors
from roundlog.execution.microbatch.analysis import Analysis
from roundlog.execution.microbatch.sample_layout import Samples
from roundlog.execution.microbatch.values import sliced_source
from roundlog.execution.ranks.batch_sums import BatchSum, batch_sum, sums_over
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.ownership import Ownership
from roundlog.execution.ranks.rank_program import Cut, Gathered, Given, LocalProgram, Summed, cut_up, samples_of_ranks
from roundlog.execution.ranks.rank_rounding import RankRounding
from roundlog.operators import Source, StepInputs, operator
from roundlog.program import Program

TOGETHER = 32 << 20
"""Bytes of sums over the batch, with their terms, that wait until one of them is needed. So many are exchanged at
once."""


class RankReads(LazyTensors):
    """The `data` slots of a rank's program. Each is loaded when the program comes to it, which is where every other
    rank does so, too."""

    def __init__(
        self,
        program: Program,
        analysis: Analysis,
        local: LocalProgram,
        samples: Samples,
        ranks: Ranks,
        inputs: StepInputs,
        rounding: RankRounding,
        bits: int,
        received: Callable[[torch.Tensor], torch.Tensor],
        owners: Ownership,
    ) -> None:
        """received: is shown every value that all ranks receive, and returns it."""
        self._program, self._analysis, self._local = program, analysis, local
        self._received, self._owners = received, owners
        self._samples, self._ranks, self._inputs, self._rounding = samples, ranks, inputs, rounding
        self._bits = bits
        self._given: dict[int, torch.Tensor] = {}
        self._complete_with = {one.given[-1]: one for one in local.sums}
        self._waiting: list[Summed] = []
        self._sums: dict[int, torch.Tensor] = {}

    def give(self, slot: int, value: torch.Tensor) -> None:
        """Takes a value that a later read needs."""
        self._given[slot] = value
        complete = self._complete_with.get(slot)
        if complete is not None:
            self._waiting.append(complete)
            # Types of the whole decide, so that all ranks exchange at the same place.
            if are_enough(self._program, self._ranks, [one.value for one in self._waiting]):
                self._sum_up()

    def __len__(self) -> int:
        return len(self._local.reads)

    def tensor(self, slot: int) -> torch.Tensor:
        read = self._local.reads[slot]
        match read:
            case Given():
                return self._source(read)
            case Cut():
                return read.layout.part(self._given.pop(read.given), *self._samples)
            case Gathered():
                mine = self._given.pop(read.given)
                return self._received(whole_of(self._ranks, self._program, self._analysis, read.value, mine))
            case Summed():
                if read.value not in self._sums:
                    self._sum_up()
                return self._sums.pop(read.value)

    def _source(self, read: Given) -> torch.Tensor:
        node = self._program.nodes[read.value]
        op = operator(node.op)
        assert isinstance(op, Source)
        if read.layout is None:
            return op.load(node.attributes, node.type, self._inputs)
        found = sliced_source(node, read.layout, self._samples, self._inputs)
        if found is None:
            found = read.layout.part(op.load(node.attributes, node.type, self._inputs), *self._samples)
        return found

    def _sum_up(self) -> None:
        """Exchanges all sums whose terms are there."""
        found = sums_over(self._ranks, [self._sum(one) for one in self._waiting], self._bits)
        for one, value in zip(self._waiting, found, strict=True):
            # Where one rank reads it, there is nothing to compare.
            self._sums[one.value] = value if one.value in self._owners.readers else self._received(value)
        self._waiting = []

    def _sum(self, one: Summed) -> BatchSum:
        needs = self._analysis.needs[one.value]
        slices = [self._given.pop(slot) for slot in one.given]
        first = self._samples[0]
        count = len(self._analysis.parts[one.value])
        parts = []
        for start, stop in cut_up(self._samples, count // self._ranks.size):
            part = []
            for x, layout in zip(slices, needs, strict=True):
                part.append(x if layout is None else layout.part(x, start - first, stop - first))
            parts.append(part)
        reader = self._owners.readers.get(one.value)
        return batch_sum(self._program, one.value, parts.__getitem__, len(parts), count, self._rounding, reader)


def are_enough(program: Program, ranks: Ranks, sums: Sequence[int]) -> bool:
    """Whether these sums over the batch are as many as are exchanged at once: their approximations and bounds, and a
    rank's terms, take more than TOGETHER."""
    size = 0
    for index in sums:
        node = program.nodes[index]
        size += 2 * node.type.nbytes + sum(program.nodes[i].type.nbytes for i in node.inputs) // ranks.size
    return size > TOGETHER


def whole_of(ranks: Ranks, program: Program, analysis: Analysis, value: int, mine: torch.Tensor) -> torch.Tensor:
    """A sliced value as a whole. mine: this rank's slice. All ranks call it."""
    layout, shape = analysis.layouts[value], program.nodes[value].type.shape
    assert layout is not None
    # Samples first, so that every rank's elements are one range.
    axis = layout.axis + 1
    unfolded = mine.reshape(layout.unfolded(tuple(mine.shape))).movedim(axis, 0)
    counts = [last - first for first, last in samples_of_ranks(program, ranks.size)]
    each = mine.numel() // counts[ranks.rank]
    parts = ranks.gather_all(unfolded.reshape(-1), [each * count for count in counts])
    ordered = torch.cat(parts).view(-1, *unfolded.shape[1:])
    return ordered.movedim(0, axis).reshape(shape)
