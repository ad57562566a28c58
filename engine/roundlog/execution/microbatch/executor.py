"""Executor of steps in micro-batches: the bits of `roundlog.execution.executor.Executor`, in less memory.

Every value of a step is the correct rounding of an exact value. So the bits do not depend on how many samples are
computed at a time, nor on the pieces in which a sum over all samples is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import torch

from roundlog.arithmetic import FULL_BITS
from roundlog.execution.executor import Executor
from roundlog.execution.microbatch.analysis import Analysis, analyse, samples_of
from roundlog.execution.microbatch.layout import Samples, ranges
from roundlog.execution.microbatch.scratch import Scratch
from roundlog.execution.microbatch.stages import Part, cut, part_of
from roundlog.execution.microbatch.summing import summation, terms_of
from roundlog.execution.microbatch.values import Reads, Values
from roundlog.execution.origin import Watch
from roundlog.execution.running_step import StepResult
from roundlog.execution.stops import IndexRangeError, NonFiniteError, StoppedError
from roundlog.execution.ways import Observe
from roundlog.operators import Inexact, StepInputs, check, operator
from roundlog.operators.reduced_precision import check_narrow
from roundlog.operators.registry import Attributes, Tensors
from roundlog.operators.summation import InParts
from roundlog.program import Program, ProgramError
from roundlog.rounding import Follower, Rounding, Window


def micro_batches_of(program: Program, count: int) -> list[Samples]:
    """The samples of each micro-batch. Raises ProgramError if there are fewer samples than micro-batches."""
    batch = samples_of(program)
    if not 1 <= count <= batch:
        raise ProgramError(f"{batch} samples cannot be cut into {count} micro-batches: choose 1 to {batch}")
    return ranges(batch, count)


class MicrobatchExecutor:
    """An executor of steps of one program that computes some samples at a time."""

    def __init__(self, program: Program, micro_batches: int, directory: Path, bits: int = FULL_BITS) -> None:
        """micro_batches: at least 2. directory: on a disk; holds slices until they are read again. bits: as for
        `Executor`.

        Raises ProgramError if the program does not pass the registry's check, or has fewer samples in its batch;
        OSError."""
        check(program)
        check_narrow(program, [operator(node.op) for node in program.nodes], bits)
        self.program = program
        self.bits = bits
        self._samples = micro_batches_of(program, micro_batches)
        self._analysis = analyse(program, micro_batches)
        self._cut = cut(program, self._analysis)
        self._parts: dict[tuple[int, int], tuple[Part, Executor]] = {}
        self._scratch = Scratch(
            directory,
            {
                value: (program.nodes[value].type, layout)
                for value, layout in enumerate(self._analysis.layouts)
                if layout is not None and value in self._cut.kept_slices
            },
            self._analysis.batch,
        )

    def run(self, inputs: StepInputs, rounding: Rounding, observe: Observe | None = None) -> StepResult:
        """Executes one step, as `StepExecutor.run`. rounding: a Follower. observe: is called with whole outputs, so the
        step then takes the memory of a whole one. Also raises OSError, if the disk is full."""
        if observe is not None:
            return self._whole.run(inputs, rounding, observe)
        if not isinstance(rounding, Follower):
            raise TypeError(f"micro-batches cannot be rounded by a {type(rounding).__name__}: give a Follower")
        found = len(rounding.findings)
        try:
            result = self._all(inputs, rounding, None)
        except NonFiniteError as error:
            rounding.start_again()
            watch = Watch(self.program)
            # Operators after the first stop may stop as well.
            with suppress(IndexRangeError):
                self._all(inputs, rounding, watch)
            raise error.because(self.program, inputs.step, watch.origin_of(error.operator)) from None
        rounding.findings[found:] = sorted(rounding.findings[found:], key=lambda f: (f.operator, f.element))
        return result

    @cached_property
    def _whole(self) -> Executor:
        return Executor(self.program, self.bits)

    def _all(self, inputs: StepInputs, rounding: Follower, watch: Watch | None) -> StepResult:
        """Runs all stages and sweeps of a step, in order. watch: is shown every operator; the step then does not stop
        at numbers that are not finite."""
        values = Values(self.program, self._analysis, self._scratch, inputs)
        end = len(self._cut.members) - 1
        for time in range(end):
            if time % 2 == 0:
                self._run(time, None, values, rounding, watch)
            else:
                self._sweep(time, values, rounding, watch)
            values.forget([value for value, last in self._cut.kept_until.items() if last == time])
        return self._run(end, None, values, rounding, watch)

    def _sweep(self, time: int, values: Values, rounding: Follower, watch: Watch | None) -> None:
        first_bad: StoppedError | None = None
        for samples in self._samples:
            try:
                self._run(time, samples, values, rounding, watch)
            except StoppedError as error:
                # The first operator in program order is named, as for the whole batch.
                if first_bad is None or (error.operator, error.element) < (first_bad.operator, first_bad.element):
                    first_bad = error
        if first_bad is not None:
            raise first_bad

    def _run(
        self, time: int, samples: Samples | None, values: Values, rounding: Follower, watch: Watch | None
    ) -> StepResult:
        """Runs a stage (samples is None), or a sweep for these samples."""
        part, executor = self._part(time, samples)
        last = time == len(self._cut.members) - 1
        inputs = values.inputs(Reads(values, part.reads, samples, lambda index: self._sum(index, values, rounding)))

        def pass_on(slot: int, value: torch.Tensor) -> None:
            values.keep(part.passes_on[slot], samples, value)

        by_part = _OfPart(self.program, self._analysis, part, samples, rounding)
        try:
            if watch is not None:
                see = _seen(watch, self.program, self._analysis, part, samples)
                executor.replay(inputs, by_part, None if last else pass_on, see)
                return StepResult([], 0.0)
            return executor.run_part(inputs, by_part, None if last else pass_on)
        except StoppedError as error:
            index = part.original[error.operator]
            element = error.element
            if samples is not None:
                element = _window(self.program, self._analysis, index, samples).whole_one(element)
            raise error.moved(self.program, inputs.step, index, element) from None

    def _sum(self, index: int, values: Values, rounding: Follower) -> torch.Tensor:
        """A sum over the batch, computed part by part."""
        node, analysis = self.program.nodes[index], self._analysis

        parts = analysis.parts[index]
        largest = max(last - first for first, last in parts)
        # All parts are read into the same memory; allocating for each would fragment it.
        inputs = [
            (value, need, values.memory(value, need, largest))
            for value, need in zip(node.inputs, analysis.needs[index], strict=True)
            if need is not None
        ]

        def read(number: int) -> list[torch.Tensor]:
            return [values.slice(value, need, parts[number], memory) for value, need, memory in inputs]

        terms = terms_of(node, [self.program.nodes[value].type for value in node.inputs])
        in_parts = InParts(summation(node), terms, len(parts), read)
        return rounding.round(index, in_parts, (), node.attributes)

    def _part(self, time: int, samples: Samples | None) -> tuple[Part, Executor]:
        size = self._analysis.batch if samples is None else samples[1] - samples[0]
        if (time, size) not in self._parts:
            part = part_of(self.program, self._analysis, self._cut, time, size)
            self._parts[time, size] = part, Executor(part.program, self.bits)
        return self._parts[time, size]


def _window(program: Program, analysis: Analysis, index: int, samples: Samples) -> Window:
    layout = analysis.layouts[index]
    assert layout is not None
    return layout.window(program.nodes[index].type.shape, *samples)


def _seen(
    watch: Watch, program: Program, analysis: Analysis, part: Part, samples: Samples | None
) -> Callable[[int, Mapping[int, torch.Tensor]], None]:
    """A callback that shows the operators of a part to a watch of the whole step."""

    def see(index: int, values: Mapping[int, torch.Tensor]) -> None:
        node, original = part.program.nodes[index], part.original[index]
        op = program.nodes[original].op
        if node.op == "store" != op:
            return
        # Values that a part reads were shown where they were computed, except sums over the batch.
        read = node.op == "data" != op
        inputs = None if read else [values[value] for value in node.inputs]
        if samples is None or read or analysis.layouts[original] is None:
            whole: Callable[[int], int] = int
        else:
            whole = _window(program, analysis, original, samples).whole_one
        if not read or original in analysis.parts:
            watch.sees(original, values[index], inputs, whole)

    return see


class _OfPart:
    """Rounding for the operators of a part, by the log of the whole operators (implements Rounding)."""

    def __init__(
        self, program: Program, analysis: Analysis, part: Part, samples: Samples | None, rounding: Follower
    ) -> None:
        self._program, self._analysis, self._part = program, analysis, part
        self._samples, self._rounding = samples, rounding

    def start_again(self) -> None:
        self._rounding.start_again()

    def round(self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        original = self._part.original[index]
        window = None if self._samples is None else _window(self._program, self._analysis, original, self._samples)
        return self._rounding.round(original, operator, inputs, attributes, window)
