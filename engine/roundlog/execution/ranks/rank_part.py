"""A rank's part of a step: its samples, in the stages and passes of `roundlog.execution.microbatch`, where sums over
the batch, and sliced values that are read as a whole, are those of all ranks.

What belongs to single samples is computed for this rank's samples, all at once or some at a time; everything else as
a whole, by every rank alike. All ranks' parts have the same operators in the same order, so all ranks come to the same
collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from roundlog.execution.executor import StepResult
from roundlog.execution.microbatch.analysis import Analysis, analysis_of, samples_of
from roundlog.execution.microbatch.stages import Part, PartRounding, Parts, Reads, Slices, Values
from roundlog.execution.ranks.batch_sums import BatchSum, sums_over
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.orders import RankRounding
from roundlog.execution.ranks.rank_states import Ownership
from roundlog.execution.slicing import (
    Layout,
    Needs,
    Samples,
    keeps_bound,
    ranges,
    summation,
    terms_of,
)
from roundlog.number_format import Format
from roundlog.operators import Inexact, OperatorKind, StepInputs, operator
from roundlog.program import Node, Program, ProgramError, TensorType
from roundlog.rounding import Window, WindowRounding

MAX_CUTS = 64
"""Most parts into which a rank cuts its terms of a sum, so that the bound of the whole holds."""

TOGETHER = 32 << 20
"""Bytes of sums over the batch, with their terms, that are exchanged at once."""


def samples_of_ranks(program: Program, size: int) -> list[Samples]:
    """Return the samples of every rank. Raises ProgramError if there are fewer samples than ranks."""
    batch = samples_of(program)
    if size > batch:
        raise ProgramError(
            f"{batch} samples of a batch cannot be shared out among {size} ranks: start {batch} or fewer"
        )
    return ranges(batch, size)


def passes_of(program: Program, size: int, micro_batches: int) -> int:
    """Return the number of micro-batches of every rank, where the whole batch is to be cut into `micro_batches`. All
    ranks have equally many, so that they read the same values at the same places. Raises ProgramError if there are
    fewer samples than ranks."""
    fewest = min(last - first for first, last in samples_of_ranks(program, size))
    return min(-(-micro_batches // size), fewest)


def analyse_for(program: Program, size: int, passes: int = 1) -> Analysis:
    """Analyse a checked program for `size` ranks, at least two. passes: micro-batches of each of them."""
    samples = samples_of_ranks(program, size)

    def choose(node: Node, inputs: list[TensorType], needs: Needs) -> tuple[Samples, ...] | None:
        if _is_cheaper_whole(node, inputs, needs):
            return None
        fewest = min(last - first for first, last in samples)
        # A sum is cut no less than the samples are, if its bound allows it.
        for cuts in (*range(passes, min(fewest, max(MAX_CUTS, passes)) + 1), *range(passes - 1, 0, -1)):
            parts = [part for one in samples for part in cut_up(one, cuts)]
            if keeps_bound(node, inputs, needs, parts):
                return tuple(parts)
        return None

    return _postponed(program, analysis_of(program, samples_of(program), choose))


def _postponed(program: Program, analysis: Analysis) -> Analysis:
    """Move whole values that are made of sources alone, such as decayed weights, from the first stage to the one that
    first reads them: until then, they would take memory."""
    when, movable = list(analysis.when), set[int]()
    readers: list[list[int]] = [[] for _ in program.nodes]
    sources = {index for index, node in enumerate(program.nodes) if operator(node.op).kind == OperatorKind.SOURCE}
    for index, node in enumerate(program.nodes):
        for value in node.inputs:
            readers[value].append(index)
        is_whole = analysis.layouts[index] is None and index not in analysis.parts and index not in sources
        if is_whole and all(value in sources or value in movable for value in node.inputs):
            movable.add(index)
    for index in sorted(movable, reverse=True):
        if readers[index]:
            # The terms of a sum are read in the pass before its stage.
            when[index] = min(when[one] - (one in analysis.parts) for one in readers[index])
    return replace(analysis, when=when)


def _is_cheaper_whole(node: Node, inputs: list[TensorType], needs: Needs) -> bool:
    """Whether gathering the terms sends fewer bytes than adding them up by ranks, where every rank can add them all up
    as fast as it reads them: the gradient of an embedding has few terms, and very many sums."""
    if not summation(node).by_element:
        return False
    terms = sum(kind.nbytes for kind, need in zip(inputs, needs, strict=True) if need is not None)
    # Its FP64 approximations go to the owners with about as much for their bounds, and come back in FP32.
    return terms < 5 * node.type.nbytes


def cut_up(samples: Samples, cuts: int) -> list[Samples]:
    """Cut a range of samples into `cuts` parts."""
    first, last = samples
    return [(first + start, first + stop) for start, stop in ranges(last - first, cuts)]


def are_enough(program: Program, size: int, sums: Sequence[int]) -> bool:
    """Return whether approximations, bounds and one of `size` ranks' terms of these sums take more than TOGETHER."""
    nodes = program.nodes
    terms = (sum(nodes[value].type.nbytes for value in nodes[index].inputs) // size for index in sums)
    return sum(terms) + sum(2 * nodes[index].type.nbytes for index in sums) > TOGETHER


Received = Callable[[torch.Tensor], torch.Tensor]
"""Called with every value that all ranks receive; returns it."""


class RankPart:
    """One rank's part of every step of a program, which all ranks execute together."""

    def __init__(
        self, program: Program, ranks: Ranks, f32_format: Format, owners: Ownership, passes: int, directory: Path
    ) -> None:
        """passes: as `passes_of` gives it. directory: on a disk; holds slices between several passes. Raises
        OSError."""
        self.program, self.ranks, self.f32_format, self.owners = program, ranks, f32_format, owners
        self.samples = samples_of_ranks(program, ranks.size)[ranks.rank]
        self.passes: list[Samples] = cut_up(self.samples, passes)
        self.analysis = analyse_for(program, ranks.size, passes)
        self.parts = Parts(program, self.analysis, f32_format, owners.left_to_others(ranks.rank))
        self._scratch = self.parts.scratch(directory) if passes > 1 else None
        self.terms = {
            index: frozenset(self.parts.cut.kept_slices.intersection(program.nodes[index].inputs))
            for index in self.analysis.parts
        }
        """Sums over the batch -> the slices of computed values that they add up."""

    def run(self, inputs: StepInputs, rounding: RankRounding, received: Received) -> StepResult | None:
        """Execute a step; return None if this rank has gone past a stop. The result has the next state's tensors that
        this rank computes, in program order. Raises MachineError, LostRankError, and OSError if the disk is full."""
        slices = self._scratch or SlicesInMemory(self)
        return _Running(self, inputs, rounding, received, slices).run()


class SlicesInMemory:
    """This rank's slices of values, each until it was last read (implements Slices)."""

    def __init__(self, of: RankPart) -> None:
        analysis = of.analysis
        self._of = of
        self._slices: dict[int, torch.Tensor] = {}
        self._reads: dict[int, set[object]] = {value: set() for value in of.parts.cut.kept_slices}
        """Reads to come: sums over the batch, and (time, layout) of a part's."""
        times = {index: time for time, members in enumerate(of.parts.cut.members) for index in members}
        for index, time in times.items():
            for value, need in zip(of.program.nodes[index].inputs, analysis.needs[index], strict=True):
                # Within its own pass, a value is read from that pass's program.
                if value in self._reads and (need != analysis.layouts[value] or times[value] != time):
                    self._reads[value].add(index if index in analysis.parts else (time, need))

    def __contains__(self, value: int) -> bool:
        return value in self._slices

    def write(self, value: int, first: int, part: torch.Tensor) -> None:
        """Keep the slice of all samples of this rank."""
        self._slices[value] = part

    def read(self, value: int, first: int, last: int, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return the part of a slice that samples first <= s < last own."""
        layout, start = self._of.analysis.layouts[value], self._of.samples[0]
        assert layout is not None
        return layout.part(self._slices[value], first - start, last - start)

    def has_read(self, value: int, read: object) -> None:
        """Drop a slice if this was the last read of it."""
        reads = self._reads.get(value)
        if reads is not None:
            reads.discard(read)
            if not reads:
                self._slices.pop(value, None)


class _RankReads(Reads):
    """The `data` slots of a part, each of which is read once."""

    def __init__(self, slices: SlicesInMemory | None, time: int, *reads: Any) -> None:
        """slices: None if they stay on disk for other micro-batches. reads: as for `Reads`."""
        super().__init__(*reads)
        self._slices, self._time = slices, time

    def tensor(self, slot: int) -> torch.Tensor:
        found = super().tensor(slot)
        if self._slices is not None:
            value, layout = self._reads[slot]
            self._slices.has_read(value, (self._time, layout))
        return found


class _Running:
    """One step in progress."""

    def __init__(
        self, of: RankPart, inputs: StepInputs, rounding: RankRounding, received: Received, slices: Slices
    ) -> None:
        self._of, self._rounding, self._received = of, rounding, received
        self._in_memory = slices if isinstance(slices, SlicesInMemory) else None
        self._values = _RankValues(of, inputs, received, slices)
        self._sums: dict[int, torch.Tensor] = {}
        self._missing = {index: set(terms) for index, terms in of.terms.items()}
        self._waiting: list[int] = []
        """Sums whose terms are all there, and that are not exchanged yet."""

    def run(self) -> StepResult | None:
        parts, result, stopped = self._of.parts, None, False
        for time in range(parts.end + 1):
            is_pass = time % 2 == 1
            self._values.reads_again = is_pass and self._in_memory is None
            for samples in self._of.passes if is_pass else [None]:
                result = self._part(time, samples)
                stopped |= result is None
            parts.forget_after(time, self._values)
            self._values.forget_gathered()
        return None if stopped else result

    def _part(self, time: int, samples: Samples | None) -> StepResult | None:
        """Run a stage (samples is None), or a pass for these samples; return None if it has gone past a stop."""
        of = self._of
        part, executor = of.parts.of(time, samples)
        summed = partial(self._summed, part=part)
        reads = _RankReads(self._in_memory, time, self._values, part.reads, samples, summed)

        def pass_on(slot: int, value: torch.Tensor) -> None:
            self._values.keep(part.passes_on[slot], samples, value)
            if samples is not None and self._in_memory is not None:
                self._sum_early(part.passes_on[slot])

        def rounding_of(index: int) -> tuple[WindowRounding, Window | None]:
            if index in of.owners.operators:
                return self._rounding.own, None
            return (
                (self._rounding.shared, None)
                if samples is None
                else (self._rounding.own, of.parts.window(index, samples))
            )

        last = time == of.parts.end
        by_part = PartRounding(part.original, rounding_of, _never_again)
        return executor.run_through(self._values.inputs(reads), by_part, None if last else pass_on, 0)

    def _sum_early(self, value: int) -> None:
        """Exchange the sums whose last terms have come, once they are enough, so that the terms' memory is free."""
        for index, missing in self._missing.items():
            if value in missing:
                missing.remove(value)
                if not missing:
                    self._waiting.append(index)
        # Types of the whole decide, so that all ranks exchange at the same place.
        if are_enough(self._of.program, self._of.ranks.size, self._waiting):
            self._exchange(self._waiting)
            self._waiting = []

    def _summed(self, index: int, part: Part) -> torch.Tensor:
        """Return a sum over the batch. The terms of all sums that a stage reads are there when it begins, so the next
        ones are exchanged with it."""
        if index not in self._sums:
            chosen: list[int] = []
            for value, layout in part.reads[part.reads.index((index, None)) :]:
                if are_enough(self._of.program, self._of.ranks.size, chosen):
                    break
                if layout is None and value not in self._sums and self._values.is_to_be_summed(value):
                    chosen.append(value)
            self._exchange(chosen)
            self._waiting = [one for one in self._waiting if one not in self._sums]
        return self._sums.pop(index)

    def _exchange(self, sums: Sequence[int]) -> None:
        found = sums_over(self._of.ranks, [self._sum(index) for index in sums])
        for index, one in zip(sums, found, strict=True):
            # Where one rank reads it, there is nothing to compare.
            self._sums[index] = one if index in self._of.owners.readers else self._received(one)
        if self._in_memory is not None:
            for index in sums:
                for value in self._of.terms[index]:
                    self._in_memory.has_read(value, index)

    def _sum(self, index: int) -> BatchSum:
        of, node = self._of, self._of.program.nodes[index]
        parts = cut_up(of.samples, len(of.analysis.parts[index]) // of.ranks.size)
        format = node.type.dtype.number_format(of.f32_format)
        assert format is not None

        def round_share(share: Inexact, first: int, last: int) -> torch.Tensor:
            window = Window((node.type.numel,), 0, first, last)
            return self._rounding.own.round(index, share, (), node.attributes, format, window)

        return BatchSum(
            output=node.type,
            format=format,
            operator=summation(node),
            attributes=node.attributes,
            read=self._values.terms_reader(index, parts),
            parts=len(parts),
            terms=terms_of(node, [of.program.nodes[value].type for value in node.inputs]),
            round_share=round_share,
            reader=of.owners.readers.get(index),
        )


def _never_again() -> None:
    raise AssertionError("a rank's step runs once")


class _RankValues(Values):
    """Values of one running step, as this rank's slices."""

    def __init__(self, of: RankPart, inputs: StepInputs, received: Received, slices: Slices) -> None:
        super().__init__(of.program, of.analysis, slices, inputs)
        self._of, self._received = of, received
        self._gathered: dict[int, torch.Tensor] = {}
        self.reads_again = False
        """Whether every micro-batch of a pass may read the same values."""

    def _from_slices(self, value: int) -> torch.Tensor:
        if value in self._gathered:
            return self._gathered[value]
        mine = self._scratch.read(value, *self._of.samples).to(self._inputs.device)
        layout = self._of.analysis.layouts[value]
        assert layout is not None
        found = self._received(self._gather(value, layout, mine))
        if self.reads_again:
            self._gathered[value] = found
        return found

    def _gather(self, value: int, layout: Layout, mine: torch.Tensor) -> torch.Tensor:
        """All-gather a value of which `mine` is this rank's slice."""
        ranks, shape = self._of.ranks, self._of.program.nodes[value].type.shape
        # Samples first, so that every rank's elements are one range.
        axis = layout.axis + 1
        unfolded = mine.reshape(layout.unfolded(tuple(mine.shape))).movedim(axis, 0)
        counts = [last - first for first, last in samples_of_ranks(self._of.program, ranks.size)]
        each = mine.numel() // counts[ranks.rank]
        parts = ranks.gather_all(unfolded.reshape(-1), [each * count for count in counts])
        return torch.cat(parts).view(-1, *unfolded.shape[1:]).movedim(0, axis).reshape(shape)

    def forget_gathered(self) -> None:
        """Drop what only the micro-batches of one pass read again and again."""
        self._gathered.clear()
