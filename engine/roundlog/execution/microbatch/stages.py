"""The programs that one step is cut into: one for every stage of whole values, one for every pass over the samples.

Each is an ordinary program, for an ordinary executor. Its `data` slots are values that it reads from elsewhere, its
`store` slots values that it passes on. Only the last stage stores the state.

What they read are the step's inputs, values passed on by stages, and slices on disk, which one pass keeps for later
parts, so that they take no memory in between.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Protocol

import torch

from roundlog.execution.batches import LazyBatch, LazyTensors
from roundlog.execution.executor import Executor
from roundlog.execution.microbatch.analysis import Analysis
from roundlog.execution.slicing import Layout, Samples, sliced_node, sliced_type
from roundlog.number_format import Format
from roundlog.operators import Inexact, OperatorKind, Source, StepInputs, operator
from roundlog.operators.registry import Attributes, Tensors, integer, ints
from roundlog.program import Node, Program, TensorType, as_array
from roundlog.randomness import uniform
from roundlog.rounding import Window, WindowRounding


class Slices(Protocol):
    """Sliced values that outlive the pass that computed them."""

    def __contains__(self, value: int) -> bool: ...

    def write(self, value: int, first: int, part: torch.Tensor) -> None:
        """Keep the part of a value that samples from `first` on own. Raises OSError."""

    def read(self, value: int, first: int, last: int, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return the part of a value that samples first <= s < last own. memory: a flat tensor of the value's dtype
        that may be written into. Raises OSError."""
        ...


class Scratch:
    """A file of slices without a name, which disappears with the process (implements Slices). Every value is stored
    sample by sample, so that any range of samples is one range of bytes."""

    def __init__(self, directory: Path, values: Mapping[int, tuple[TensorType, Layout]], batch: int) -> None:
        """directory: on a disk, not in memory. Raises OSError."""
        self._values = dict(values)
        self._batch = batch
        self._offsets: dict[int, int] = {}
        self.bytes = 0
        for value, (kind, _) in self._values.items():
            self._offsets[value] = self.bytes
            self.bytes += kind.nbytes
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  (lives as long as this object)

    def __contains__(self, value: int) -> bool:
        return value in self._values

    def write(self, value: int, first: int, part: torch.Tensor) -> None:
        """Writes the part of a value that samples from `first` on own. Raises OSError."""
        kind, layout = self._values[value]
        unfolded = part.detach().cpu().reshape(layout.unfolded(tuple(part.shape)))
        data = memoryview(as_array(unfolded.movedim(layout.axis + 1, 0)).tobytes())
        at = self._offsets[value] + first * (kind.nbytes // self._batch)
        while len(data):
            written = os.pwrite(self._file.fileno(), data, at)
            data, at = data[written:], at + written

    def read(self, value: int, first: int, last: int, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Reads the part of a value that samples first <= s < last own. memory: a flat tensor of the value's dtype to
        read into. Raises OSError."""
        kind, layout = self._values[value]
        shape = layout.sliced(kind.shape, last - first)
        unfolded = layout.unfolded(shape)
        axis = layout.axis + 1
        if memory is None:
            memory = torch.empty(prod(shape), dtype=kind.dtype.torch_dtype)
        ordered = memory[: prod(shape)].view(unfolded[axis], *unfolded[:axis], *unfolded[axis + 1 :])
        data = as_array(ordered).data.cast("B")
        at = self._offsets[value] + first * (kind.nbytes // self._batch)
        while len(data):
            count = os.preadv(self._file.fileno(), [data], at)
            if not count:
                raise OSError(f"the scratch file ends at byte {at}: has something cut it short?")
            data, at = data[count:], at + count
        return ordered.movedim(0, axis).reshape(shape)


class Values:
    """Values of one running step that outlive the part that computed them."""

    def __init__(self, program: Program, analysis: Analysis, scratch: Slices, inputs: StepInputs) -> None:
        self._program, self._analysis, self._scratch = program, analysis, scratch
        self._inputs = inputs
        self._whole: dict[int, torch.Tensor] = {}

    @property
    def step(self) -> int:
        return self._inputs.step

    def inputs(self, data: Sequence[torch.Tensor]) -> StepInputs:
        """Inputs of a part: those of the step, with these tensors for its `data` slots."""
        return replace(self._inputs, data=data)

    def keep(self, value: int, samples: Samples | None, tensor: torch.Tensor) -> None:
        """Keeps a value, or (with `samples`) their slice of it. Raises OSError."""
        if samples is None:
            self._whole[value] = tensor
        else:
            self._scratch.write(value, samples[0], tensor)

    def forget(self, values: Iterable[int]) -> None:
        """Drops whole values that no part reads any more."""
        for value in values:
            del self._whole[value]

    def is_to_be_summed(self, value: int) -> bool:
        """Whether a value is a sum taken part by part that no stage has passed on yet."""
        return value in self._analysis.parts and value not in self._whole

    def whole(self, value: int) -> torch.Tensor:
        """A value as a whole, from memory, the step's inputs or the disk. Raises OSError."""
        if value in self._whole:
            return self._whole[value]
        node = self._program.nodes[value]
        op = operator(node.op)
        if isinstance(op, Source):
            return op.load(node.attributes, node.type, self._inputs)
        return self._from_slices(value)

    def _from_slices(self, value: int) -> torch.Tensor:
        """A sliced value as a whole. Raises OSError."""
        return self._scratch.read(value, 0, self._analysis.batch).to(self._inputs.device)

    def terms_reader(self, index: int, parts: Sequence[Samples]) -> Callable[[int], list[torch.Tensor]]:
        """A function that reads the slices of a sum's inputs that the samples of one part own, by the part's number.
        Each call may overwrite the tensors of the one before."""
        node = self._program.nodes[index]
        largest = max(last - first for first, last in parts)
        # All parts are read into the same memory; allocating for each would fragment it.
        inputs = [
            (value, need, self._memory(value, need, largest))
            for value, need in zip(node.inputs, self._analysis.needs[index], strict=True)
            if need is not None
        ]
        return lambda number: [self.slice(value, need, parts[number], memory) for value, need, memory in inputs]

    def _memory(self, value: int, layout: Layout, samples: int) -> torch.Tensor:
        """Flat memory on the CPU for slices of so many samples."""
        kind = sliced_type(self._program.nodes[value].type, layout, samples)
        return torch.empty(kind.numel, dtype=kind.dtype.torch_dtype)

    def slice(self, value: int, layout: Layout, samples: Samples, memory: torch.Tensor | None = None) -> torch.Tensor:
        """The slice of a value that these samples own under `layout`. memory: a flat tensor on the CPU that the slice
        may be written into. Raises OSError."""
        first, last = samples
        if value in self._scratch and layout == self._analysis.layouts[value]:
            return self._scratch.read(value, first, last, memory).to(self._inputs.device)
        found = sliced_source(self._program.nodes[value], layout, samples, self._inputs, memory)
        return layout.part(self.whole(value), first, last) if found is None else found


def sliced_source(
    node: Node, layout: Layout, samples: Samples, inputs: StepInputs, memory: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The slice of a source that these samples own, if it can be had without the whole. memory: as for
    `Values.slice`."""
    first, last = samples
    shape, data = node.type.shape, inputs.data
    if node.op == "data" and layout.axis == 0 and isinstance(data, LazyBatch):
        positions = layout.part(torch.arange(shape[0]), first, last)
        return data.samples(integer(node.attributes, "slot"), positions, memory)
    if node.op == "uniform" and prod(shape[: layout.axis]) * layout.outer == 1:
        stream, inner = integer(node.attributes, "stream"), prod(shape[layout.axis + 1 :])
        sliced = layout.sliced(shape, last - first)
        return uniform(inputs.seed, inputs.step, stream, sliced, first=first * layout.chunk * inner).to(inputs.device)
    return None


class Reads(LazyTensors):
    """The `data` slots of a part. A value is loaded when it is read, since the part may need it late."""

    def __init__(
        self,
        values: Values,
        reads: Sequence[tuple[int, Layout | None]],
        samples: Samples | None,
        summed: Callable[[int], torch.Tensor],
    ) -> None:
        """summed: computes a sum over the batch part by part; called for sums that no stage has computed yet."""
        self._values, self._reads, self._samples, self._summed = values, reads, samples, summed

    def __len__(self) -> int:
        return len(self._reads)

    def tensor(self, slot: int) -> torch.Tensor:
        value, layout = self._reads[slot]
        if layout is None:
            return self._summed(value) if self._values.is_to_be_summed(value) else self._values.whole(value)
        assert self._samples is not None
        return self._values.slice(value, layout, self._samples)


@dataclass(frozen=True, slots=True)
class Part:
    """A program that is a part of a step."""

    program: Program
    original: tuple[int, ...]
    """The value of the whole program to which each value of the part corresponds, as a whole or as a slice."""
    reads: tuple[tuple[int, Layout | None], ...]
    """For each `data` slot, the value that is read, and its layout (None: as a whole, or summed part by part)."""
    passes_on: tuple[int, ...]
    """For each `store` slot, the value that is passed on. Empty for the last stage."""


class PartRounding(WindowRounding):
    """Rounding for the operators of a part, by the roundings and the logs of the whole operators."""

    def __init__(
        self,
        original: Sequence[int],
        rounding_of: Callable[[int], tuple[WindowRounding, Window | None]],
        start_again: Callable[[], None],
    ) -> None:
        """original: as `Part` has it. rounding_of: what rounds an operator of the whole program, and the part of its
        output that is computed; None: all of it. start_again: as `Rounding.start_again`."""
        self._original, self._rounding_of, self._start_again = original, rounding_of, start_again

    def start_again(self) -> None:
        self._start_again()

    def round(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        format: Format,
        window: Window | None = None,
    ) -> torch.Tensor:
        original = self._original[index]
        rounding, around = self._rounding_of(original)
        if around is not None:
            window = around if window is None else replace(window, around=around)
        return rounding.round(original, operator, inputs, attributes, format, window)


@dataclass(frozen=True, slots=True)
class Cut:
    """A step cut into stages and passes. Stage k runs at time 2 k, pass k at time 2 k + 1."""

    members: tuple[tuple[int, ...], ...]
    """For each time, the operators that run at it, in program order."""
    kept_slices: frozenset[int]
    """Sliced values that are read after their pass."""
    kept_until: dict[int, int]
    """Values that a stage computes as a whole and passes on -> the last time at which they are read."""
    readers: dict[int, list[int]]
    """Values of these two -> the operators that read them, in program order."""


def cut(program: Program, analysis: Analysis, left: frozenset[int] = frozenset()) -> Cut:
    """Cuts a program: the time of every operator, and the values that are kept in between. left: operators that are
    left out, with the values that only they read."""
    nodes, layouts = program.nodes, analysis.layouts
    times: list[list[int]] = [[] for _ in range(2 * analysis.last + 1)]
    kept_slices: set[int] = set()
    kept_until: dict[int, int] = {}
    whole_too = _cheap_ones_needed_whole(program, analysis)
    for index in range(len(nodes)):
        if operator(nodes[index].op).kind == OperatorKind.SOURCE or index in left:
            continue
        when = 2 * analysis.when[index] + (layouts[index] is not None)
        times[when].append(index)
        if index in whole_too and when != 0:
            times[0].append(index)
        for value, need in zip(nodes[index].inputs, analysis.needs[index], strict=True):
            if operator(nodes[value].op).kind == OperatorKind.SOURCE:
                continue
            if layouts[value] is not None and need == layouts[value]:
                if analysis.when[value] < analysis.when[index]:
                    kept_slices.add(value)
            elif layouts[value] is not None and value not in whole_too:
                kept_slices.add(value)
            elif when > 2 * analysis.whole_from(value):
                kept_until[value] = max(when, kept_until.get(value, 0))
    readers: dict[int, list[int]] = {value: [] for value in (*kept_slices, *kept_until)}
    for index, node in enumerate(nodes):
        for value in readers.keys() & set(node.inputs):
            readers[value].append(index)
    return Cut(tuple(tuple(members) for members in times), frozenset(kept_slices), kept_until, readers)


def _cheap_ones_needed_whole(program: Program, analysis: Analysis) -> set[int]:
    found: set[int] = set()
    for index in reversed(range(len(program.nodes))):
        node = program.nodes[index]
        for value, need in zip(node.inputs, analysis.needs[index], strict=True):
            if analysis.cheap[value] and (need != analysis.layouts[value] or index in found):
                found.add(value)
    return {value for value in found if operator(program.nodes[value].op).kind != OperatorKind.SOURCE}


def part_of(program: Program, analysis: Analysis, how: Cut, time: int, samples: int) -> Part:
    """The part that runs at one time: a stage if the time is even; a pass for `samples` samples if it is odd."""
    return _Builder(program, analysis, how, time, samples).build()


class _Builder:
    def __init__(self, program: Program, analysis: Analysis, how: Cut, time: int, samples: int) -> None:
        self._program, self._analysis = program, analysis
        self._is_pass = time % 2 == 1
        self._samples = samples
        self._members = how.members[time]
        leaving = [
            index
            for index in self._members
            if (index in how.kept_slices if self._is_pass else how.kept_until.get(index, 0) > time)
        ]
        # A value is passed on where the whole program first reads it outside of this part, so that its memory is free
        # early.
        inside, end = set(self._members), len(program.nodes)
        first_reader = {v: next((r for r in how.readers[v] if r not in inside), end) for v in leaving}
        self._leaving = sorted(((first_reader[value], value) for value in leaving), reverse=True)
        self._nodes: list[Node] = []
        self._original: list[int] = []
        self._known: dict[tuple[int, Layout | None], int] = {}
        self._reads: list[tuple[int, Layout | None]] = []
        self._passes_on: list[int] = []

    def build(self) -> Part:
        for index in self._members:
            self._pass_on(index)
            node = self._program.nodes[index]
            if self._is_pass:
                layout = self._analysis.layouts[index]
                assert layout is not None
                wanted = self._analysis.needs[index]
                inputs = tuple(map(self._input, node.inputs, wanted))
                self._known[index, layout] = self._add(sliced_node(node, layout, self._samples, inputs), index)
            elif index in self._analysis.parts:
                # A sum taken part by part is not computed here; it appears as a value that is read.
                self._known[index, None] = self._read(index, None, node.type)
            else:
                inputs = tuple(self._input(value, None) for value in node.inputs)
                whole = Node(node.op, inputs, node.attributes, node.type, node.source)
                self._known[index, None] = self._add(whole, index)
        self._pass_on(len(self._program.nodes) + 1)
        program = Program(
            nodes=tuple(self._nodes),
            state_names=self._program.state_names,
            data_names=tuple(f"read {slot}" for slot in range(len(self._reads))),
            schedule_names=self._program.schedule_names,
            batch_size=self._samples,
        )
        return Part(program, tuple(self._original), tuple(self._reads), tuple(self._passes_on))

    def _pass_on(self, before: int) -> None:
        """Passes on all values whose first outside reader stands before operator `before`."""
        while self._leaving and self._leaving[-1][0] < before:
            _, value = self._leaving.pop()
            layout = self._analysis.layouts[value] if self._is_pass else None
            inner = self._known[value, layout]
            slot = len(self._passes_on)
            self._passes_on.append(value)
            self._add(Node("store", (inner,), {"slot": slot}, self._nodes[inner].type), value)

    def _input(self, value: int, need: Layout | None) -> int:
        found = self._known.get((value, need))
        if found is None:
            found = self._known[value, need] = self._source(value, need)
        return found

    def _source(self, value: int, need: Layout | None) -> int:
        node = self._program.nodes[value]
        if node.op == "constant" and need is not None and len(ints(node.attributes, "bits")) == 1:
            return self._add(sliced_node(node, need, self._samples, ()), value)
        # Stages check the state. Passes, which are many, read it unchecked.
        whole_ones = ("constant", "schedule", "iota") if self._is_pass else ("constant", "schedule", "iota", "state")
        if need is None and node.op in whole_ones:
            return self._add(Node(node.op, (), node.attributes, node.type, node.source), value)
        return self._read(value, need, sliced_type(node.type, need, self._samples))

    def _read(self, value: int, need: Layout | None, kind: TensorType) -> int:
        slot = len(self._reads)
        self._reads.append((value, need))
        return self._add(Node("data", (), {"slot": slot}, kind), value)

    def _add(self, node: Node, original: int) -> int:
        self._nodes.append(node)
        self._original.append(original)
        return len(self._nodes) - 1


class Parts:
    """The stages and passes of a step. Stage k runs at time 2 k, pass k at time 2 k + 1."""

    def __init__(
        self, program: Program, analysis: Analysis, f32_format: Format, left: frozenset[int] = frozenset()
    ) -> None:
        """left: operators that are left out."""
        self._program, self._analysis, self._f32_format = program, analysis, f32_format
        self.cut = cut(program, analysis, left)
        self._made: dict[tuple[int, int], tuple[Part, Executor]] = {}

    @property
    def end(self) -> int:
        """The time of the last stage, which stores the state."""
        return len(self.cut.members) - 1

    def scratch(self, directory: Path) -> Scratch:
        """A file for the slices that are read after their pass. Raises OSError."""
        nodes, layouts = self._program.nodes, self._analysis.layouts
        kept = {
            value: (nodes[value].type, layout)
            for value, layout in enumerate(layouts)
            if layout is not None and value in self.cut.kept_slices
        }
        return Scratch(directory, kept, self._analysis.batch)

    def of(self, time: int, samples: Samples | None) -> tuple[Part, Executor]:
        """The part that runs at a time: a stage (samples is None), or a pass for these samples."""
        size = self._analysis.batch if samples is None else samples[1] - samples[0]
        if (time, size) not in self._made:
            part = part_of(self._program, self._analysis, self.cut, time, size)
            self._made[time, size] = part, Executor(part.program, self._f32_format)
        return self._made[time, size]

    def forget_after(self, time: int, values: Values) -> None:
        """Drops the whole values that no later part reads."""
        values.forget([value for value, last in self.cut.kept_until.items() if last == time])

    def window(self, index: int, samples: Samples) -> Window:
        """The elements of a sliced operator's output that these samples own."""
        layout = self._analysis.layouts[index]
        assert layout is not None
        return layout.window(self._program.nodes[index].type.shape, *samples)
