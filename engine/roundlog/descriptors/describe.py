"""The descriptor of every operator of the registry, from the node and the types of its inputs alone.

A rule writes the operator's docstring down as rows over its axes, the long way; `simplify` makes it short.

A descriptor's axes have one form: no axis of size 1, and neighbours that always move together are one. A simple
descriptor costs less to send and to evaluate, and its length bounds do not depend on how a program spells its shapes.
Nothing of that changes what is read: tests hold the simple form against the long one, read by read.

A long reduction is cut into segments: `terms_per_segment` is the number of terms that one opening covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from roundlog.commitments import CHUNK_SIZE, MerkleTree, depth_of
from roundlog.definitions import DEFINITIONS, Family, OperatorDefinition
from roundlog.definitions.tensor_core import SEGMENT_TERMS
from roundlog.descriptors.descriptor import (
    MAX_SEGMENT,
    REDUCTIONS,
    Descriptor,
    DescriptorError,
    Input,
    Row,
    bounds,
    check_descriptor,
    encode_descriptor,
)
from roundlog.program import DType, Node, Program, TensorType


def simplify(descriptor: Descriptor) -> Descriptor:
    """Simplest form of an operator. `descriptor.parameters` of ARGMAX and SELECTED_SUM are a row and follow the axes;
    the parameter of GATHER names a view axis of input 0 and follows it."""
    if 0 in descriptor.axes:
        return _nothing_read(descriptor)
    simple = _drop_index_axes(descriptor)
    simple = _join_views(simple)
    return _join_index_axes(simple)


def _nothing_read(d: Descriptor) -> Descriptor:
    """Descriptor without an element, or without a term: one axis of size 0, and one row of zeros an input."""
    empty = 0 in d.iteration
    iteration = (0,) if empty else _longer_than_one(d.iteration)
    reduction = (0,) if 0 in d.reduction and not empty else ()
    zeros = (0,) * (len(iteration) + len(reduction))
    inputs = tuple(replace(i, view=(i.elements,), rows=(Row(0, zeros),)) for i in d.inputs)
    parameters = d.parameters
    if d.family in (Family.ARGMAX, Family.SELECTED_SUM):
        parameters = (0, 1, *zeros)
    elif d.family == Family.GATHER:
        parameters = (0,)
    return replace(d, iteration=iteration, reduction=reduction, inputs=inputs, parameters=parameters)


def _longer_than_one(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in sizes if size != 1)


def _rows(d: Descriptor) -> list[Row]:
    """Rows that have to agree before two index axes can be joined."""
    rows = [row for item in d.inputs for row in item.rows]
    return [*rows, d.label] if d.family in (Family.ARGMAX, Family.SELECTED_SUM) else rows


def _with_axes(
    d: Descriptor, iteration: tuple[int, ...], reduction: tuple[int, ...], keep: tuple[int, ...]
) -> Descriptor:
    """Rows with the coefficients of the axes `keep` only."""

    def cut(row: Row) -> Row:
        return replace(row, coefficients=tuple(row.coefficients[axis] for axis in keep))

    parameters = d.parameters
    if d.family in (Family.ARGMAX, Family.SELECTED_SUM):
        label = cut(d.label)
        parameters = (label.offset, label.divisor, *label.coefficients)
    inputs = tuple(replace(item, rows=tuple(map(cut, item.rows))) for item in d.inputs)
    return replace(d, iteration=iteration, reduction=reduction, inputs=inputs, parameters=parameters)


def _drop_index_axes(d: Descriptor) -> Descriptor:
    keep = tuple(axis for axis, size in enumerate(d.axes) if size != 1)
    return _with_axes(d, _longer_than_one(d.iteration), _longer_than_one(d.reduction), keep)


def _join_index_axes(d: Descriptor) -> Descriptor:
    """Join neighbouring axes that every row reads as it would read one."""
    axis = len(d.axes) - 2
    while axis >= 0:
        split = len(d.iteration)
        size = d.axes[axis + 1]
        together = axis + 1 != split and all(
            row.coefficients[axis] == row.coefficients[axis + 1] * size for row in _rows(d)
        )
        if together:
            sizes = (*d.axes[:axis], d.axes[axis] * size, *d.axes[axis + 2 :])
            keep = tuple(other for other in range(len(d.axes)) if other != axis)
            split -= axis < split
            d = _with_axes(d, sizes[:split], sizes[split:], keep)
        axis -= 1
    return d


def _join_views(d: Descriptor) -> Descriptor:
    inputs = list(d.inputs)
    parameters = d.parameters
    for position, item in enumerate(inputs):
        marked = d.parameters[0] if d.family == Family.GATHER and position == 0 else None
        inputs[position], marked = _join_view(item, d.axes, marked)
        if marked is not None:
            parameters = (marked,)
    return replace(d, inputs=tuple(inputs), parameters=parameters)


def _join_view(item: Input, axes: tuple[int, ...], marked: int | None) -> tuple[Input, int | None]:
    """Join a view axis to the one inside of it if that one is never left: then both are valid together. The marked
    axis, whose coordinate is an index value, stays as it is."""
    view: list[int] = []
    rows: list[Row] = []
    new_marked = None
    joinable = False
    for axis in reversed(range(len(item.view))):
        size, row = item.view[axis], item.rows[axis]
        low, high = bounds(row, axes)
        inside = row.divisor == 1 and low >= 0 and high < size
        if axis == marked:
            new_marked = len(view)
            joinable = False
        elif size == 1 and inside:
            continue
        elif joinable and row.divisor == 1:
            inner, width = rows[-1], view[-1]
            view[-1] = width * size
            coefficients = tuple(
                outer * width + fine for outer, fine in zip(row.coefficients, inner.coefficients, strict=True)
            )
            rows[-1] = Row(row.offset * width + inner.offset, coefficients)
            joinable = inside
            continue
        else:
            joinable = inside
        view.append(size)
        rows.append(row)
    joined = replace(item, view=tuple(reversed(view)), rows=tuple(reversed(rows)))
    return joined, None if new_marked is None else len(view) - 1 - new_marked


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a rule: one operator of a checked program."""

    program: Program
    index: int

    @property
    def node(self) -> Node:
        return self.program.nodes[self.index]

    @property
    def definition(self) -> OperatorDefinition:
        return DEFINITIONS[self.node.op]

    @property
    def type(self) -> TensorType:
        return self.node.type

    def input(self, position: int) -> TensorType:
        return self.program.nodes[self.node.inputs[position]].type

    def integer(self, name: str) -> int:
        value = self.node.attributes[name]
        assert isinstance(value, int)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.node.attributes[name]
        assert isinstance(value, tuple)
        return value

    def reads(self, position: int, rows: Sequence[Row], view: tuple[int, ...] | None = None) -> Input:
        """Input `position` seen as `view` (its own shape unless told otherwise), with a row an axis."""
        kind = self.input(position)
        return Input(self.node.inputs[position], kind.dtype, kind.shape if view is None else view, tuple(rows))


Rule = Callable[[Subject], Descriptor]

_RULES: dict[str | Family, Rule] = {}
"""Rules by the name of an operator, or by the family of those that have none of their own."""


def rule(*keys: str | Family) -> Callable[[Rule], Rule]:
    """Register a rule under operators' names, or families."""

    def add(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(keys, function))
        return function

    return add


def rule_for(name: str) -> Rule | None:
    """The rule of an operator; None if no contract can compute it."""
    return _RULES.get(name) or (_RULES.get(DEFINITIONS[name].family) if name in DEFINITIONS else None)


class Axes:
    """Rows over a number of axes, by name of the axis: position in iteration + reduction."""

    def __init__(self, count: int) -> None:
        self.count = count

    def row(self, offset: int = 0, *terms: tuple[int, int], divisor: int = 1) -> Row:
        """offset + the sum of coefficient * index[axis] over `terms`, pairs (axis, coefficient)."""
        coefficients = [0] * self.count
        for axis, coefficient in terms:
            coefficients[axis] += coefficient
        return Row(offset, tuple(coefficients), divisor)

    def one(self, axis: int) -> Row:
        """The index of an axis itself."""
        return self.row(0, (axis, 1))

    def zero(self) -> Row:
        return self.row()


def describe(program: Program, index: int) -> Descriptor:
    """The descriptor of operator `index` of a program that `roundlog.operators.check` has passed. Raises
    DescriptorError, naming the operator, if it has more inputs, axes or terms than a contract can read."""
    node = program.nodes[index]
    found = rule_for(node.op)
    if found is None:
        raise DescriptorError(f"{program.describe(index)}: no contract can compute {node.op}")
    descriptor = simplify(found(Subject(program, index)))
    if descriptor.family in REDUCTIONS:
        descriptor = replace(descriptor, segment=terms_per_segment(descriptor))
    assert descriptor.elements == prod(node.type.shape), program.describe(index)
    try:
        check_descriptor(descriptor)
    except DescriptorError as error:
        raise DescriptorError(f"{program.describe(index)}: {error}") from None
    return descriptor


GAS_BUDGET = 650_000
"""Gas of a segment. With more, a dispute costs more for its last proof than it saves in the search for the segment
(scripts/bench_dispute.py)."""
GAS_PER_BYTE = 40
"""EIP-7623: the least that a byte of calldata costs, if it is not zero."""
GAS_PER_BYTE_BESIDE_WORK = 16
"""EIP-2028: what it costs where execution dominates."""
GAS_PER_HASH = 1_000
# Gas that the contract takes for a term, measured from above: tests/client/adjudication/test_gas_on_chain.py.
GAS_PER_TERM = 1_000
GAS_PER_READ = 1_000
# More for an F16 element, whose FP32 pattern is computed: 330 for a subnormal one, which takes the most.
GAS_PER_F16_READ = 350
GAS_PER_COORDINATE = 250
GAS_PER_COMPARISON = 1_100
# More for a product of a group of four, whose FP32 number takes as much as a product.
GAS_PER_GROUPED = 3_000


def terms_per_segment(descriptor: Descriptor) -> int:
    """The largest power of two of terms, at most 4096 (of CHAIN 2048), such that any run of as many terms, whatever the
    output element, is opened and computed within GAS_BUDGET; at least 1, or a group."""
    segment = descriptor.group
    most = SEGMENT_TERMS if descriptor.family == Family.CHAIN else MAX_SEGMENT
    while segment < min(descriptor.terms, most) and gas(descriptor, 2 * segment) <= GAS_BUDGET:
        segment *= 2
    return segment


def gas(descriptor: Descriptor, terms: int) -> int:
    """An upper estimate of the gas to open and compute any `terms` consecutive terms."""
    sent = hashed = 0
    for item in descriptor.inputs:
        chunks, depth = chunks_read(descriptor, item, terms), depth_of(leaves(item))
        sent += chunks * (CHUNK_SIZE + 32 * depth)
        hashed += chunks * (depth + 4)
    work = sent * GAS_PER_BYTE_BESIDE_WORK + hashed * GAS_PER_HASH + terms * gas_per_term(descriptor)
    return max(sent * GAS_PER_BYTE, work)


def gas_per_term(descriptor: Descriptor) -> int:
    """Gas of a term but for its chunks: to go on to it, to read its operands and to add it."""
    reads = sum(GAS_PER_READ + GAS_PER_COORDINATE * len(item.view) for item in descriptor.inputs)
    reads += GAS_PER_F16_READ * sum(item.dtype == DType.F16 for item in descriptor.inputs)
    compared = descriptor.family in (Family.EXTREME, Family.ARGMAX)
    grouped = descriptor.family == Family.CHAIN
    return GAS_PER_TERM + reads + compared * GAS_PER_COMPARISON + grouped * GAS_PER_GROUPED


def leaves(item: Input) -> int:
    """Leaves under the tensor root of an input: its size in chunks, at least one."""
    return max(1, -(-item.nbytes // CHUNK_SIZE))


def chunks_read(descriptor: Descriptor, item: Input, terms: int) -> int:
    """An upper bound of the chunks of one input that any `terms` consecutive terms of an element read."""
    first = len(descriptor.iteration)
    # Bytes from one index of a reduction axis to the next; a divided coordinate moves by the quotient, rounded up.
    strides = [0] * len(descriptor.reduction)
    weight = item.dtype.itemsize
    for size, row in zip(reversed(item.view), reversed(item.rows), strict=True):
        for axis in range(len(strides)):
            strides[axis] += -(-abs(row.coefficients[first + axis]) // row.divisor) * weight
        weight *= size
    return min(_run(descriptor.reduction, tuple(strides), terms), leaves(item))


def _run(sizes: tuple[int, ...], strides: tuple[int, ...], terms: int) -> int:
    """Chunks that a run of consecutive indices of a box can touch."""
    if not sizes:
        return 1
    inner = prod(sizes[1:])
    if not inner:
        return 0
    steps = min(sizes[0], -(-(terms - 1) // inner) + 1)
    blocks = steps * _run(sizes[1:], strides[1:], min(terms, inner))
    return min(terms, blocks, _span(sizes, strides, terms) // CHUNK_SIZE + 2)


def _span(sizes: tuple[int, ...], strides: tuple[int, ...], terms: int) -> int:
    """Bytes from the first to the last read of such a run, at most. An index goes back from its end to 0 where one of
    an axis before it moves, so that two terms may lie its whole axis apart."""
    span = 0
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        steps = -(-(terms - 1) // prod(sizes[axis + 1 :]))
        goes_back = terms > 1 and prod(sizes[:axis]) > 1
        span += (size - 1 if goes_back else min(size - 1, steps)) * stride
    return span


def program_tree(program: Program) -> MerkleTree:
    """The tree whose leaf i has the encoded descriptor of operator i as payload. The program has to have passed
    `roundlog.operators.check`. Raises DescriptorError, naming the operator that no contract could compute."""
    return MerkleTree(encode_descriptor(describe(program, index)) for index in range(len(program.nodes)))


def program_root(program: Program) -> bytes:
    """32 bytes. Arguments and errors as `program_tree`."""
    return program_tree(program).root
