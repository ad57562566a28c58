"""A rank's part of a step: all of its samples in one pass, or some of its samples at a time, in the stages and passes
of micro-batches, in which sums over the batch and values that are read as a whole are those of all ranks.

Reads of its program say where a rank needs the other ranks, or the sources of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from roundlog.arithmetic import DisturbedError
from roundlog.execution.batches import LazyTensors
from roundlog.execution.executor import Executor, StepResult
from roundlog.execution.microbatch.analysis import Analysis
from roundlog.execution.microbatch.stages import Part, Parts, Reads, Scratch, Values, sliced_source
from roundlog.execution.ranks.batch_sums import BatchSum, batch_sum, sums_over
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.orders import RankRounding
from roundlog.execution.ranks.rank_program import (
    Gathered,
    Given,
    LocalProgram,
    RankCut,
    Summed,
    analyse_for,
    cut_up,
    local_program,
    samples_of_ranks,
)
from roundlog.execution.ranks.rank_states import Ownership
from roundlog.execution.slicing import Samples
from roundlog.number_format import Format
from roundlog.operators import Inexact, Source, StepInputs, operator
from roundlog.operators.registry import Attributes, Tensors
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
        f32_format: Format,
        received: Callable[[torch.Tensor], torch.Tensor],
        owners: Ownership,
    ) -> None:
        """received: is shown every value that all ranks receive, and returns it."""
        self._program, self._analysis, self._local = program, analysis, local
        self._received, self._owners = received, owners
        self._samples, self._ranks, self._inputs, self._rounding = samples, ranks, inputs, rounding
        self._f32_format = f32_format
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
            case RankCut():
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
        found = sums_over(self._ranks, [self._sum(one) for one in self._waiting])
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
        format = self._program.nodes[one.value].type.dtype.number_format(self._f32_format)
        assert format is not None
        return batch_sum(self._program, one.value, format, parts.__getitem__, len(parts), count, self._rounding, reader)


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


Received = Callable[[torch.Tensor], torch.Tensor]
"""Is shown every value that all ranks receive, and returns it."""


class RankPart(Protocol):
    """A rank's part of the steps of one program, which all ranks execute together."""

    def run(self, inputs: StepInputs, rounding: RankRounding, received: Received) -> StepResult | None:
        """The result of a step, None if this rank has gone past a stop. The result has the next state's tensors that
        this rank computes, in program order. Raises DisturbedError once everything is exchanged, MachineError,
        LostRankError."""


class InOnePass:
    """A rank's part with all of its samples at once (implements RankPart)."""

    def __init__(
        self, program: Program, ranks: Ranks, f32_format: Format, owners: Ownership, analysis: Analysis
    ) -> None:
        self._program, self._ranks, self._f32_format, self._owners = program, ranks, f32_format, owners
        self._samples = samples_of_ranks(program, ranks.size)[ranks.rank]
        self._analysis = analysis
        left = owners.left_to_others(ranks.rank)
        self._local = local_program(program, self._analysis, self._samples, left)
        self._executor = Executor(self._local.program, f32_format)

    def run(self, inputs: StepInputs, rounding: RankRounding, received: Received) -> StepResult | None:
        """The result of a step, as `RankPart.run`."""
        reads = RankReads(
            self._program,
            self._analysis,
            self._local,
            self._samples,
            self._ranks,
            inputs,
            rounding,
            self._f32_format,
            received,
            self._owners,
        )

        def rounded(
            index: int, operator: Inexact, given: Tensors, attributes: Attributes, format: Format
        ) -> torch.Tensor:
            original = self._local.original[index]
            if original in self._owners.operators:
                return rounding.own(original, operator, given, attributes, format, None)
            if not self._local.sliced[index]:
                return rounding.shared(original, operator, given, attributes, format)
            layout = self._analysis.layouts[original]
            assert layout is not None
            window = layout.window(self._program.nodes[original].type.shape, *self._samples)
            return rounding.own(original, operator, given, attributes, format, window)

        return self._executor.run_through(
            replace(inputs, data=reads), OfRank(rounded), reads.give, self._local.first_given
        )


class OfRank:
    """Rounding for the operators of a rank's program, by those of the whole one (implements Rounding)."""

    def __init__(self, rounded: Callable[[int, Inexact, Tensors, Attributes, Format], torch.Tensor]) -> None:
        """rounded: the outputs of an inexact operator, by its place in the rank's program."""
        self.round = rounded

    def start_again(self) -> None:
        raise AssertionError("a rank's step runs once")


def passes_of(program: Program, size: int, micro_batches: int) -> int:
    """Micro-batches of every rank, where the whole batch is to be cut into so many. Every rank has equally many, so
    that all of them read the same values at the same places. Raises ProgramError if there are fewer samples than
    ranks."""
    fewest = min(last - first for first, last in samples_of_ranks(program, size))
    return min(-(-micro_batches // size), fewest)


class InPasses:
    """A rank's part in several micro-batches (implements RankPart)."""

    def __init__(
        self, program: Program, ranks: Ranks, f32_format: Format, owners: Ownership, passes: int, directory: Path
    ) -> None:
        """passes: as `passes_of` gives it, at least 2. directory: on a disk; holds slices until they are read again.
        Raises OSError."""
        self.program, self.ranks, self.f32_format, self.owners = program, ranks, f32_format, owners
        self.samples = samples_of_ranks(program, ranks.size)[ranks.rank]
        self.passes: list[Samples] = cut_up(self.samples, passes)
        self.analysis: Analysis = analyse_for(program, ranks.size, passes)
        self.parts = Parts(program, self.analysis, f32_format, owners.left_to_others(ranks.rank))
        self.scratch: Scratch = self.parts.scratch(directory)

    def run(self, inputs: StepInputs, rounding: RankRounding, received: Received) -> StepResult | None:
        """The result of a step, as `RankPart.run`. Also raises OSError, if the disk is full."""
        return _Running(self, inputs, rounding, received).run()


class _Running:
    """One step in progress."""

    def __init__(self, way: InPasses, inputs: StepInputs, rounding: RankRounding, received: Received) -> None:
        self._way, self._rounding, self._received = way, rounding, received
        self._values = _ValuesOfRanks(way, inputs, received)
        self._sums: dict[int, torch.Tensor] = {}

    def run(self) -> StepResult | None:
        parts, result, stopped = self._way.parts, None, False
        disturbed: DisturbedError | None = None
        for time in range(parts.end + 1):
            self._values.is_pass = time % 2 == 1
            for samples in self._way.passes if self._values.is_pass else [None]:
                try:
                    result = self._part(time, samples)
                    stopped |= result is None
                except DisturbedError as error:
                    if error.__cause__ is not None:
                        # The part has not come to its end.
                        raise error.__cause__ from None
                    # All is exchanged first, so that every rank comes to the same end.
                    disturbed = error
            parts.forget_after(time, self._values)
            self._values.forget_gathered()
        if disturbed is not None:
            raise disturbed
        return None if stopped else result

    def _part(self, time: int, samples: Samples | None) -> StepResult | None:
        """Runs a stage (samples is None), or a pass for these samples; None if it has gone past a stop."""
        part, executor = self._way.parts.of(time, samples)
        reads = Reads(self._values, part.reads, samples, lambda index: self._summed(index, part))

        def pass_on(slot: int, value: torch.Tensor) -> None:
            self._values.keep(part.passes_on[slot], samples, value)

        def rounded(
            index: int, operator: Inexact, given: Tensors, attributes: Attributes, format: Format
        ) -> torch.Tensor:
            original = part.original[index]
            if original in self._way.owners.operators:
                return self._rounding.own(original, operator, given, attributes, format, None)
            if samples is None:
                return self._rounding.shared(original, operator, given, attributes, format)
            window = self._way.parts.window(original, samples)
            return self._rounding.own(original, operator, given, attributes, format, window)

        last = time == self._way.parts.end
        return executor.run_through(self._values.inputs(reads), OfRank(rounded), None if last else pass_on, 0)

    def _summed(self, index: int, part: Part) -> torch.Tensor:
        """A sum over the batch. The terms of all sums that a stage reads are there when it begins, so the next ones are
        exchanged with it."""
        if index not in self._sums:
            chosen: list[int] = []
            for value, layout in part.reads[part.reads.index((index, None)) :]:
                if are_enough(self._way.program, self._way.ranks, chosen):
                    break
                if layout is None and self._values.is_to_be_summed(value):
                    chosen.append(value)
            found = sums_over(self._way.ranks, list(map(self._sum, chosen)))
            for value, one in zip(chosen, found, strict=True):
                # Where one rank reads it, there is nothing to compare.
                self._sums[value] = one if value in self._way.owners.readers else self._received(one)
        return self._sums.pop(index)

    def _sum(self, index: int) -> BatchSum:
        way, of_all = self._way, len(self._way.analysis.parts[index])
        parts = cut_up(way.samples, of_all // way.ranks.size)
        read = self._values.terms_reader(index, parts)
        reader = way.owners.readers.get(index)
        format = way.program.nodes[index].type.dtype.number_format(way.f32_format)
        assert format is not None
        return batch_sum(way.program, index, format, read, len(parts), of_all, self._rounding, reader)


class _ValuesOfRanks(Values):
    """Values of one running step, as this rank's slices."""

    def __init__(self, way: InPasses, inputs: StepInputs, received: Received) -> None:
        super().__init__(way.program, way.analysis, way.scratch, inputs)
        self._way, self._received = way, received
        self._gathered: dict[int, torch.Tensor] = {}
        self.is_pass = False
        """Whether a pass runs. Every micro-batch of it may read the same values."""

    def _from_slices(self, value: int) -> torch.Tensor:
        if value in self._gathered:
            return self._gathered[value]
        mine = self._scratch.read(value, *self._way.samples).to(self._inputs.device)
        found = self._received(whole_of(self._way.ranks, self._way.program, self._way.analysis, value, mine))
        if self.is_pass:
            self._gathered[value] = found
        return found

    def forget_gathered(self) -> None:
        """Drops what only the micro-batches of one pass read again and again."""
        self._gathered.clear()
