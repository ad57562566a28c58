"""The programs that one step is cut into: one for every stage of whole values, one for every pass over the samples.

Each is an ordinary program, for an ordinary executor. Its `data` slots are values that it reads from elsewhere, its
`store` slots values that it passes on. Only the last stage stores the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roundlog.execution.executor import Executor
from roundlog.execution.microbatch.analysis import Analysis
from roundlog.execution.microbatch.slicing import Layout, Samples, sliced_node, sliced_type
from roundlog.execution.microbatch.values import Scratch, Values
from roundlog.number_format import Format
from roundlog.operators import OperatorKind, operator
from roundlog.program import Node, Program, TensorType
from roundlog.rounding import Window


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
    builder = _Builder(program, analysis, how, time, samples)
    return builder.build()


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
        if node.op == "constant" and need is not None and len(_bits(node)) == 1:
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


def _bits(node: Node) -> tuple[int, ...]:
    bits = node.attributes["bits"]
    assert isinstance(bits, tuple)
    return bits


class Parts:
    """The stages and passes of a step. Stage k runs at time 2 k, pass k at time 2 k + 1."""

    def __init__(
        self, program: Program, analysis: Analysis, f32_format: Format, left: frozenset[int] = frozenset()
    ) -> None:
        """left: operators that are left out."""
        self._program, self._analysis, self._f32_format = program, analysis, f32_format
        self._cut = cut(program, analysis, left)
        self._made: dict[tuple[int, int], tuple[Part, Executor]] = {}

    @property
    def end(self) -> int:
        """The time of the last stage, which stores the state."""
        return len(self._cut.members) - 1

    def scratch(self, directory: Path) -> Scratch:
        """A file for the slices that are read after their pass. Raises OSError."""
        nodes, layouts = self._program.nodes, self._analysis.layouts
        kept = {
            value: (nodes[value].type, layout)
            for value, layout in enumerate(layouts)
            if layout is not None and value in self._cut.kept_slices
        }
        return Scratch(directory, kept, self._analysis.batch)

    def of(self, time: int, samples: Samples | None) -> tuple[Part, Executor]:
        """The part that runs at a time: a stage (samples is None), or a pass for these samples."""
        size = self._analysis.batch if samples is None else samples[1] - samples[0]
        if (time, size) not in self._made:
            part = part_of(self._program, self._analysis, self._cut, time, size)
            self._made[time, size] = part, Executor(part.program, self._f32_format)
        return self._made[time, size]

    def forget_after(self, time: int, values: Values) -> None:
        """Drops the whole values that no later part reads."""
        values.forget([value for value, last in self._cut.kept_until.items() if last == time])

    def window(self, index: int, samples: Samples) -> Window:
        """The elements of a sliced operator's output that these samples own."""
        layout = self._analysis.layouts[index]
        assert layout is not None
        return layout.window(self._program.nodes[index].type.shape, *samples)
