"""The program of one rank: what the rank computes of a step, and where it needs the others.

What belongs to single samples is computed for this rank's samples; everything else as a whole, by every rank alike.
Sums over the batch, and sliced values that somebody needs as a whole, are *reads*: the rank gives its part, and gets
the whole. All ranks' programs have the same operators in the same order, so all ranks come to the same reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from roundlog.execution.microbatch.analysis import Analysis, analysis_of, samples_of
from roundlog.execution.slicing import (
    Layout,
    Needs,
    Samples,
    keeps_bound,
    ranges,
    sliced_node,
    sliced_type,
    summation,
)
from roundlog.operators import OperatorKind, operator
from roundlog.operators.registry import ints
from roundlog.program import Node, Program, ProgramError, TensorType

MAX_CUTS = 64
"""Most parts into which a rank cuts its terms of a sum, so that the bound of the whole holds."""


@dataclass(frozen=True, slots=True)
class Given:
    """A read of a source of the step: as a whole, or this rank's slice of it under `layout`."""

    value: int
    layout: Layout | None


@dataclass(frozen=True, slots=True)
class Gathered:
    """A read of a sliced value as a whole. Every rank gives its slice."""

    value: int
    given: int
    """The slot in which this rank gives it."""


@dataclass(frozen=True, slots=True)
class RankCut:
    """A read of this rank's slice of a value that it has as a whole."""

    value: int
    layout: Layout
    given: int


@dataclass(frozen=True, slots=True)
class Summed:
    """A read of a sum over the batch. Every rank gives its slices of the operator's inputs."""

    value: int
    given: tuple[int, ...]


Read = Given | Gathered | RankCut | Summed


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """The program of one rank."""

    program: Program
    """`data` slots are reads; `store` slots from `first_given` on give values to them, those before are the state."""
    first_given: int
    original: tuple[int, ...]
    """The value of the whole program to which each value corresponds, as a whole or as a slice."""
    sliced: tuple[bool, ...]
    """For every value, whether it is this rank's slice of the original one."""
    reads: tuple[Read, ...]
    """By `data` slot."""
    sums: tuple[Summed, ...]
    """The sums over the batch, in the order in which their terms are there. Each is read where it is first needed."""


def samples_of_ranks(program: Program, size: int) -> list[Samples]:
    """The samples of every rank. Raises ProgramError if there are fewer samples than ranks."""
    batch = samples_of(program)
    if size > batch:
        raise ProgramError(
            f"{batch} samples of a batch cannot be shared out among {size} ranks: start {batch} or fewer"
        )
    return ranges(batch, size)


def analyse_for(program: Program, size: int, passes: int = 1) -> Analysis:
    """The analysis of a checked program for so many ranks, at least two. passes: parts into which each of them cuts its
    samples."""
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

    return analysis_of(program, samples_of(program), choose)


def _is_cheaper_whole(node: Node, inputs: list[TensorType], needs: Needs) -> bool:
    """Whether fewer bytes are sent if every rank gets all terms, where adding them up costs no more than reading them:
    the gradient of an embedding has few terms, and very many sums."""
    if not summation(node).by_element:
        return False
    terms = sum(kind.nbytes for kind, need in zip(inputs, needs, strict=True) if need is not None)
    # Its FP64 approximations go to the owners with about as much for their bounds, and come back in FP32.
    return terms < 5 * node.type.nbytes


def cut_up(samples: Samples, cuts: int) -> list[Samples]:
    """A range of samples in so many parts."""
    first, last = samples
    return [(first + start, first + stop) for start, stop in ranges(last - first, cuts)]


def local_program(
    program: Program, analysis: Analysis, samples: Samples, left: frozenset[int] = frozenset()
) -> LocalProgram:
    """The program of the rank with these samples. left: operators that are left to other ranks."""
    return _Builder(program, analysis, samples[1] - samples[0], left).build()


class _Builder:
    def __init__(self, program: Program, analysis: Analysis, samples: int, left: frozenset[int]) -> None:
        self._program, self._analysis, self._samples = program, analysis, samples
        self._left, self._passed = left, set[int]()
        self._first_given = len(program.state_names)
        self._nodes: list[Node] = []
        self._original: list[int] = []
        self._sliced: list[bool] = []
        self._known: dict[tuple[int, Layout | None], int] = {}
        self._reads: list[Read] = []
        self._sums: dict[int, Summed] = {}
        self._given = self._first_given

    def build(self) -> LocalProgram:
        for index, node in enumerate(self._program.nodes):
            if operator(node.op).kind == OperatorKind.SOURCE:
                continue
            layout, needs = self._analysis.layouts[index], self._analysis.needs[index]
            if layout is not None:
                inputs = tuple(map(self._want, node.inputs, needs))
                self._known[index, layout] = self._add(
                    sliced_node(node, layout, self._samples, inputs), index, sliced=True
                )
            elif index in self._analysis.parts:
                given = tuple(self._give(self._want(*one), one[0]) for one in zip(node.inputs, needs, strict=True))
                self._sums[index] = Summed(index, given)
            elif node.op in ("loss", "store"):
                self._add_whole(index)
            # Anything else that is whole comes where it is first needed, and so do the sums that it is made of: these
            # wait for each other then, and are exchanged together.
        program = Program(
            nodes=tuple(self._nodes),
            state_names=self._program.state_names,
            data_names=tuple(f"read {slot}" for slot in range(len(self._reads))),
            schedule_names=self._program.schedule_names,
            batch_size=self._samples,
        )
        return LocalProgram(
            program=program,
            first_given=self._first_given,
            original=tuple(self._original),
            sliced=tuple(self._sliced),
            reads=tuple(self._reads),
            sums=tuple(self._sums.values()),
        )

    def _as_it_is(self, index: int) -> int:
        node = self._program.nodes[index]
        inputs = tuple(self._want(value, None) for value in node.inputs)
        return self._add(Node(node.op, inputs, node.attributes, node.type, node.source), index)

    def _want(self, value: int, need: Layout | None) -> int:
        """The value under this layout, or as a whole."""
        found = self._known.get((value, need))
        if found is None:
            found = self._known[value, need] = self._made(value, need)
        return found

    def _made(self, value: int, need: Layout | None) -> int:
        node, layout = self._program.nodes[value], self._analysis.layouts[value]
        if operator(node.op).kind == OperatorKind.SOURCE:
            return self._source(value, need)
        if need is not None:
            # It lies otherwise, or is whole.
            whole = self._want(value, None)
            return self._read(
                RankCut(value, need, self._give(whole, value)), sliced_type(node.type, need, self._samples)
            )
        if value in self._sums:
            return self._read(self._sums[value], node.type)
        if layout is None:
            self._add_whole(value)
            return self._known[value, None]
        if self._analysis.cheap[value]:
            return self._as_it_is(value)
        return self._read(Gathered(value, self._give(self._known[value, layout], value)), node.type)

    def _add_whole(self, value: int) -> None:
        """Adds a value that no rank has a slice of, with all of its kind that it is made of: in the program's order,
        and not one within another, since a clipped norm may have thousands behind it."""
        missing, found = [value], {value}
        while missing:
            for one in self._program.nodes[missing.pop()].inputs:
                is_whole = self._analysis.layouts[one] is None and one not in self._sums
                is_source = operator(self._program.nodes[one].op).kind == OperatorKind.SOURCE
                is_new = (one, None) not in self._known and one not in self._passed and one not in found
                if is_whole and not is_source and is_new:
                    found.add(one)
                    missing.append(one)
        for one in sorted(found):
            if one in self._left:
                self._pass_by(one)
            else:
                self._known[one, None] = self._as_it_is(one)

    def _pass_by(self, index: int) -> None:
        """Reads what an operator of another rank reads, and no more: all ranks come to the same reads."""
        self._passed.add(index)
        for value in self._program.nodes[index].inputs:
            is_source = operator(self._program.nodes[value].op).kind == OperatorKind.SOURCE
            if not is_source and value not in self._left:
                self._want(value, None)

    def _source(self, value: int, need: Layout | None) -> int:
        node = self._program.nodes[value]
        if node.op == "constant" and need is not None and len(ints(node.attributes, "bits")) == 1:
            return self._add(sliced_node(node, need, self._samples, ()), value, sliced=True)
        if need is None and node.op in ("constant", "schedule", "iota", "state"):
            return self._add(Node(node.op, (), node.attributes, node.type, node.source), value)
        return self._read(Given(value, need), sliced_type(node.type, need, self._samples))

    def _give(self, inner: int, original: int) -> int:
        slot, self._given = self._given, self._given + 1
        self._add(Node("store", (inner,), {"slot": slot}, self._nodes[inner].type), original)
        return slot

    def _read(self, read: Read, kind: TensorType) -> int:
        self._reads.append(read)
        return self._add(Node("data", (), {"slot": len(self._reads) - 1}, kind), read.value)

    def _add(self, node: Node, original: int, *, sliced: bool = False) -> int:
        self._nodes.append(node)
        self._original.append(original)
        self._sliced.append(sliced)
        return len(self._nodes) - 1
