"""Executor of steps in micro-batches: the bits of `roundlog.execution.executor.Executor`, in less memory.

Every value of a step is the correct rounding of an exact value. So the bits do not depend on how many samples are
computed at a time, nor on the pieces in which a sum over all samples is read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from roundlog.commitments import canonical
from roundlog.execution import fusion
from roundlog.execution.batches import in_memory
from roundlog.execution.executor import Executor, Observe, StepResult
from roundlog.execution.microbatch.analysis import Analysis, analyse, samples_of
from roundlog.execution.microbatch.stages import Part, PartRounding, Parts, Reads, Values, cut, part_of
from roundlog.execution.slicing import Samples, bytes_in_parts, ranges, summation, terms_of
from roundlog.execution.stops import IndexRangeError, NonFiniteError, StoppedError, Watch
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Source, StepInputs, check, operator
from roundlog.operators.elementwise import check_narrow
from roundlog.operators.summation import InParts
from roundlog.program import Node, Program, ProgramError
from roundlog.rounding import Follower, Recorder, Rounding, Window, WindowRounding


def micro_batches_of(program: Program, count: int) -> list[Samples]:
    """The samples of each micro-batch. Raises ProgramError if there are fewer samples than micro-batches."""
    batch = samples_of(program)
    if not 1 <= count <= batch:
        raise ProgramError(f"{batch} samples cannot be cut into {count} micro-batches: choose 1 to {batch}")
    return ranges(batch, count)


class MicrobatchExecutor:
    """An executor of steps of one program that computes some samples at a time."""

    def __init__(self, program: Program, micro_batches: int, directory: Path, f32_format: Format = FLOAT32) -> None:
        """micro_batches: at least 2. directory: on a disk; holds slices until they are read again. f32_format: as
        for `Executor`.

        Raises ProgramError if the program does not pass the registry's check, or has fewer samples in its batch;
        OSError."""
        check(program)
        check_narrow(program, [operator(node.op) for node in program.nodes], f32_format)
        self.program = program
        self.f32_format = f32_format
        self._samples = micro_batches_of(program, micro_batches)
        self._analysis = analyse(program, micro_batches)
        self._parts = Parts(program, self._analysis, f32_format)
        self._directory = directory
        self._scratch = self._parts.scratch(directory)

    def run(self, inputs: StepInputs, rounding: Rounding, observe: Observe | None = None) -> StepResult:
        """Executes one step, as `StepExecutor.run`. rounding: a Recorder or a Follower. observe: is called with whole
        outputs, one at a time, which are put together on disk; the step is then executed at least twice. Also raises
        OSError, if the disk is full."""
        if observe is not None:
            return self._observed(inputs, rounding, observe)
        if not isinstance(rounding, Recorder | Follower):
            raise TypeError(
                f"micro-batches cannot be rounded by a {type(rounding).__name__}: give a Recorder or a Follower"
            )
        inputs = replace(inputs, states=in_memory(inputs.states))
        try:
            result = self._all(inputs, rounding, None)
        except NonFiniteError as error:
            rounding.start_again()
            watch = Watch(self.program)
            # Operators after the first stop may stop as well.
            with suppress(IndexRangeError):
                self._all(inputs, rounding, watch)
            raise error.because(self.program, inputs.step, watch.origin_of(error.operator)) from None
        if isinstance(rounding, Follower):
            rounding.sort_findings()
        return result

    def _observed(self, inputs: StepInputs, rounding: Rounding, observe: Observe) -> StepResult:
        result, stopped, end = None, None, len(self.program.nodes)
        try:
            result = self.run(inputs, rounding)
        except NonFiniteError as error:
            stopped, end = error, error.operator
        except IndexRangeError:
            # It ends a pass, after which there may be operators that stand before it.
            return self._observed_whole(inputs, rounding, observe)
        inputs = replace(inputs, states=in_memory(inputs.states))
        assert isinstance(rounding, Recorder | Follower), "`run` has refused others"
        for group in self._groups(end + (stopped is not None)):
            rounding.start_again()
            outputs = _Outputs(self.program, inputs, group, self._directory)
            # Operators after the stop may stop as well.
            with suppress(IndexRangeError):
                self._all(inputs, rounding, outputs)
            if not outputs.has_all(end):
                return self._observed_whole(inputs, rounding, observe)
            for index in group:
                if index < end:
                    observe(index, outputs.whole(index))
        if stopped is not None:
            stopped.output = outputs.whole(end)
            raise stopped
        assert result is not None
        return result

    def _observed_whole(self, inputs: StepInputs, rounding: Rounding, observe: Observe) -> StepResult:
        rounding.start_again()
        return Executor(self.program, self.f32_format).run(inputs, rounding, observe)

    def _groups(self, end: int) -> Iterator[range]:
        """The operators before `end`, in groups for whose outputs the disk has room."""
        room, first, taken = shutil.disk_usage(self._directory).free // 2, 0, 0
        for index in range(end):
            taken += self.program.nodes[index].type.nbytes
            if taken > room and index > first:
                yield range(first, index)
                first, taken = index, self.program.nodes[index].type.nbytes
        if first < end:
            yield range(first, end)

    def _all(self, inputs: StepInputs, rounding: Recorder | Follower, watch: Seeing | None) -> StepResult:
        """Runs all stages and passes of a step, in order. watch: is shown every operator; the step then does not stop
        at numbers that are not finite."""
        values = Values(self.program, self._analysis, self._scratch, inputs)
        for time in range(self._parts.end):
            if time % 2 == 0:
                self._run(time, None, values, rounding, watch)
            else:
                self._pass(time, values, rounding, watch)
            self._parts.forget_after(time, values)
        return self._run(self._parts.end, None, values, rounding, watch)

    def _pass(self, time: int, values: Values, rounding: Recorder | Follower, watch: Seeing | None) -> None:
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
        self, time: int, samples: Samples | None, values: Values, rounding: Recorder | Follower, watch: Seeing | None
    ) -> StepResult:
        """Runs a stage (samples is None), or a pass for these samples."""
        part, executor = self._parts.of(time, samples)
        last = time == self._parts.end
        inputs = values.inputs(Reads(values, part.reads, samples, lambda index: self._sum(index, values, rounding)))

        def pass_on(slot: int, value: torch.Tensor) -> None:
            values.keep(part.passes_on[slot], samples, value)

        def rounding_of(index: int) -> tuple[WindowRounding, Window | None]:
            return rounding, None if samples is None else self._parts.window(index, samples)

        by_part = PartRounding(part.original, rounding_of, rounding.start_again)
        try:
            if watch is not None:
                see = self._seen(watch, part, samples)
                executor.replay(inputs, by_part, None if last else pass_on, see)
                return StepResult([], 0.0)
            return executor.run_part(inputs, by_part, None if last else pass_on)
        except StoppedError as error:
            index = part.original[error.operator]
            element = error.element
            if samples is not None:
                element = self._parts.window(index, samples).whole_one(element)
            raise error.moved(self.program, inputs.step, index, element) from None

    def _sum(self, index: int, values: Values, rounding: Recorder | Follower) -> torch.Tensor:
        """A sum over the batch, computed part by part."""
        node, parts = self.program.nodes[index], self._analysis.parts[index]
        terms = terms_of(node, [self.program.nodes[value].type for value in node.inputs])
        read = values.terms_reader(index, parts)
        in_parts = InParts(summation(node), terms, len(parts), read)
        format = node.type.dtype.number_format(self.f32_format)
        assert format is not None
        return rounding.round(index, in_parts, (), node.attributes, format)

    def _seen(
        self, watch: Seeing, part: Part, samples: Samples | None
    ) -> Callable[[int, Mapping[int, torch.Tensor]], None]:
        """A callback that shows the operators of a part to a watch of the whole step."""
        program, analysis = self.program, self._analysis

        def see(index: int, values: Mapping[int, torch.Tensor]) -> None:
            node, original = part.program.nodes[index], part.original[index]
            op = program.nodes[original].op
            if node.op == "store" != op:
                return
            # Values that a part reads were shown where they were computed, except sums over the batch.
            read = node.op == "data" != op
            inputs = None if read else [values[value] for value in node.inputs]
            window = None
            if samples is not None and not read and analysis.layouts[original] is not None:
                window = self._parts.window(original, samples)
            if not read or (original in analysis.parts and samples is None):
                watch.sees(original, values[index], inputs, window)

        return see


_ALIGNED = 64
"""Bytes at a multiple of which an output begins in a file."""


class _Outputs:
    """Outputs of some operators, put together of parts in a file without a name."""

    def __init__(self, program: Program, inputs: StepInputs, operators: range, directory: Path) -> None:
        """directory: on a disk. Raises OSError."""
        self._nodes, self._inputs, self._operators = program.nodes, inputs, operators
        sizes = [-(-program.nodes[index].type.nbytes // _ALIGNED) * _ALIGNED for index in operators]
        self._offsets = [0, *accumulate(sizes)]
        self._missing = [0 if isinstance(operator(node.op), Source) else node.type.numel for node in program.nodes]
        """Elements of every operator that were not seen yet."""
        self._parts: set[tuple[int, int]] = set()
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  (lives as long as this object)
        os.truncate(self._file.fileno(), self._offsets[-1])

    def sees(
        self, index: int, output: torch.Tensor, inputs: Sequence[torch.Tensor] | None, window: Window | None
    ) -> None:
        """As `Watch.sees`."""
        if isinstance(operator(self._nodes[index].op), Source):
            return
        numel = self._nodes[index].type.numel
        if window is None:
            # A cheap operator may be computed both as a whole and in parts.
            window, self._missing[index] = Window((numel,), 0, 0, numel), 0
        elif (index, window.start) not in self._parts:
            self._parts.add((index, window.start))
            self._missing[index] -= output.numel()
        if index in self._operators and output.numel():
            part = self._memory(index).view(window.shape).narrow(window.axis, window.start, window.stop - window.start)
            part.copy_(output.reshape(part.shape))

    def has_all(self, end: int) -> bool:
        """Whether the whole outputs of all operators before `end` were seen."""
        return all(self._missing[index] <= 0 for index in range(end))

    def whole(self, index: int) -> torch.Tensor:
        """The output of an operator, in memory, with one NaN."""
        node, op = self._nodes[index], operator(self._nodes[index].op)
        if isinstance(op, Source):
            return canonical(op.load(node.attributes, node.type, self._inputs))
        if not node.type.numel:
            return torch.empty(node.type.shape, dtype=node.type.dtype.torch_dtype)
        return canonical(self._memory(index).reshape(node.type.shape).clone())

    def _memory(self, index: int) -> torch.Tensor:
        """The output's place in the file, flat. Mapped anew for each use: what is mapped counts as memory."""
        kind, offset = self._nodes[index].type, self._offsets[index - self._operators.start]
        mapped = np.memmap(self._file, np.uint8, "r+", offset, (kind.nbytes,))
        return torch.from_numpy(mapped).view(kind.dtype.torch_dtype)


Seeing = Watch | _Outputs
"""An observer of operators, whole or in parts."""


def peak_bytes(program: Program, micro_batches: int) -> int:
    """Peak memory in bytes without the state, as `roundlog.execution.fusion.peak_bytes`: an upper bound. Raises
    ProgramError if there are fewer samples than micro-batches."""
    samples = micro_batches_of(program, micro_batches)
    if len(samples) == 1:
        return fusion.peak_bytes(program)
    analysis = analyse(program, micro_batches)
    how = cut(program, analysis)
    nodes = program.nodes
    largest = max(last - first for first, last in samples)
    # A value that a stage passes on stays in memory until its last reader has run.
    held = [0] * (len(how.members) + 1)
    for value, last in how.kept_until.items():
        held[2 * analysis.whole_from(value)] += nodes[value].type.nbytes
        held[last + 1] -= nodes[value].type.nbytes
    peak = alive = 0
    for time in range(len(how.members)):
        alive += held[time]
        size = largest if time % 2 else analysis.batch
        part = part_of(program, analysis, how, time, size)
        summed = _summed(program, analysis, part) if time % 2 == 0 else {}
        peak = max(peak, alive + _peak_of(part, summed, time == len(how.members) - 1))
    return peak


def _summed(program: Program, analysis: Analysis, part: Part) -> dict[int, int]:
    """Bytes needed by the sums of a stage that are taken part by part, by their place in its program."""
    found = {}
    for place, node in enumerate(part.program.nodes):
        index = part.original[place]
        if node.op == "data" and index in analysis.parts:
            whole = program.nodes[index]
            inputs = [program.nodes[value].type for value in whole.inputs]
            found[place] = bytes_in_parts(whole, inputs, analysis.needs[index], analysis.parts[index])
    return found


def _peak_of(part: Part, summed: dict[int, int], last: bool) -> int:
    program = part.program
    # A slice is reordered while it is written or read, so one slice at a time is in memory twice.
    moved = [node for place, node in enumerate(program.nodes) if node.op in ("data", "store") and place not in summed]
    twice = max((node.type.nbytes for node in moved), default=0)
    if not last:
        # Values that are passed on leave memory at once.
        nodes = tuple(_gone(node) if node.op == "store" else node for node in program.nodes)
        program = replace(program, nodes=nodes)
    return fusion.peak_bytes(program, summed) + twice


def _gone(node: Node) -> Node:
    return Node("reshape", node.inputs, {"shape": node.type.shape}, node.type, node.source)
