"""Adjudication as the contract does it: one element of one operator, or one segment of a long reduction, from opened
chunks."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roundlog.adjudication.binary32 import ROUNDED, SCALARS
from roundlog.adjudication.fixed_point import evaluate
from roundlog.adjudication.partial import GroupChain, RunningResult, start
from roundlog.arithmetic import round_function
from roundlog.commitments import CHUNK_SIZE
from roundlog.definitions import Copy, Family, code_name
from roundlog.descriptors.descriptor import LOADS, REDUCTIONS, Descriptor, Input
from roundlog.number_format import FLOAT32, Format, narrow_float32
from roundlog.program import DType, Stored
from roundlog.randomness import philox_word, row_of_position
from roundlog.spec import TrainingSpec


class NoAnswer(enum.Enum):
    """Instead of an element's bits."""

    NO_VALUE = "no value"
    """No run has a value here (an index out of range; NaN or an infinity as the loss or in the next state): whoever
    claims one is wrong."""
    UNDECIDED = "undecided"
    """The fixed-point interval of a function does not decide the rounding: the referee does."""


Answer = int | NoAnswer
"""An element: a number as the bits of its format, int64 as its value, bool as 0 or 1; or none."""


class NoValueError(ArithmeticError):
    """No run has a value here: an index is out of range."""


class Tree(enum.IntEnum):
    """Tree that an opened chunk belongs to."""

    VALUE = 0
    """The output of an earlier operator; `tensor` is its number."""
    STATE = 1
    """The state before the step; `tensor` is the slot."""
    FIELD = 2
    """The data set; `tensor` is the field."""
    SCHEDULE = 3
    """The schedule table f32[steps, columns]; `tensor` is 0."""
    CONSTANT = 4
    """The operator's own literals; `tensor` is 0."""


@dataclass(frozen=True, order=True, slots=True)
class Chunk:
    """One leaf that has to be opened."""

    tree: Tree
    tensor: int
    index: int


class Chunks(Protocol):
    """Opened leaves."""

    def payload(self, chunk: Chunk) -> bytes:
        """The chunk's bytes. Raises KeyError if it was not opened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DisputedStep:
    """Step that is disputed: numbers of the job, and the step counted from 0."""

    step: int
    seed: int
    batch_size: int
    data_rows: int
    rounding_bits: int = FLOAT32.width

    @property
    def f32_format(self) -> Format:
        """Format that FP32 values are rounded to."""
        return narrow_float32(self.rounding_bits)

    @staticmethod
    def of(spec: TrainingSpec, step: int) -> DisputedStep:
        return DisputedStep(
            step=step,
            seed=spec.seed,
            batch_size=spec.batch_size,
            data_rows=spec.data_rows,
            rounding_bits=spec.rounding_bits,
        )


def adjudicate(descriptor: Descriptor, element: int, step: DisputedStep, chunks: Chunks) -> Answer:
    """The element that the operator has to have. Raises IndexError if there is no such element, KeyError if a chunk
    that it depends on is not opened."""
    try:
        if descriptor.family in LOADS:
            return _load(descriptor, element, step, chunks)
        if descriptor.family in REDUCTIONS:
            whole = run_segment(descriptor, element, start(descriptor), range(descriptor.terms), chunks)
            return finish(descriptor, whole, step.f32_format)
        return _pointwise(descriptor, element, chunks, step.f32_format)
    except NoValueError:
        return NoAnswer.NO_VALUE


def run_segment(
    descriptor: Descriptor, element: int, partial: RunningResult, terms: range, chunks: Chunks
) -> RunningResult:
    """The running result after further terms of an element's reduction. Raises as `adjudicate`."""
    for term in terms:
        index = index_of(descriptor, element, term)
        label = 0
        if descriptor.family in (Family.ARGMAX, Family.SELECTED_SUM):
            label = descriptor.label.at(index) or 0
        inputs = descriptor.inputs
        if descriptor.family == Family.SELECTED_SUM:
            place = read(inputs[1], index)
            if place is None or _item(inputs[1], place, chunks) != label:
                continue
            inputs = inputs[:1]
        # A term with padding is left out, and nothing of it is opened.
        places = [read(item, index) for item in inputs]
        known = [place for place in places if place is not None]
        if len(known) == len(inputs):
            found = zip(inputs, known, strict=True)
            operands = tuple(in_float32(item.dtype, _item(item, place, chunks)) for item, place in found)
            partial = partial.absorb(operands, label)
        if isinstance(partial, GroupChain) and ((term + 1) % descriptor.group == 0 or term + 1 == terms.stop):
            partial = partial.closed(term + 1)
    return partial


def segments(descriptor: Descriptor) -> list[range]:
    """The terms of each segment of a reduction: the leaves of its tree of running results. One, if it is short."""
    terms, size = descriptor.terms, descriptor.segment
    return [range(first, min(first + size, terms)) for first in range(0, max(terms, 1), size)]


def finish(descriptor: Descriptor, partial: RunningResult, f32_format: Format = FLOAT32) -> Answer:
    """The element that the last running result stands for. f32_format: that FP32 outputs are rounded to."""
    result = partial.finish(descriptor.dtype.number_format(f32_format) or FLOAT32)
    return NoAnswer.NO_VALUE if result is None else of_float32(descriptor.dtype, result)


def _pointwise(d: Descriptor, element: int, chunks: Chunks, f32_format: Format) -> Answer:
    index = index_of(d, element, 0)
    if d.family == Family.COPY:
        for item in d.inputs:
            place = read(item, index)
            if place is not None:
                bits = _item(item, place, chunks)
                return NoAnswer.NO_VALUE if d.code == Copy.FINITE and not is_finite(d.dtype, bits) else bits
        raise NoValueError("no input has this element")
    if d.family == Family.GATHER:
        replaced = d.parameters[0], _read(d.inputs[1], index, chunks)
        place = read(d.inputs[0], index, replaced)
        if place is None:
            raise NoValueError("an index is out of range")
        return _item(d.inputs[0], place, chunks)
    operands, name = [_read(item, index, chunks) for item in d.inputs], code_name(d.family, d.code)
    if name == "WHERE":
        # Bits are copied as they are, a NaN's as well.
        return int(SCALARS[name](*operands))
    numbers = [in_float32(item.dtype, x) for item, x in zip(d.inputs, operands, strict=True)]
    if d.family == Family.MAP:
        return of_float32(d.dtype, exact_value(name, numbers, d.dtype.number_format()))
    assert d.family == Family.FUNCTION
    value = evaluate(name, numbers[0], d.dtype.number_format(f32_format) or FLOAT32)
    return NoAnswer.UNDECIDED if value is None else of_float32(d.dtype, value)


def exact_value(name: str, operands: Sequence[int], format: Format | None) -> int:
    """The value of a scalar function of MAP, by its name there. Operands and result are as those of `SCALARS`; format:
    that of the result, None if it is no number."""
    if name not in ROUNDED:
        return int(SCALARS[name](*operands))
    return int(SCALARS[name](*operands, format=format))


def _load(d: Descriptor, element: int, step: DisputedStep, chunks: Chunks) -> Answer:
    index_of(d, element, 0)
    p = d.parameters
    if d.family == Family.STATE:
        return _at(chunks, Tree.STATE, p[0], element, d.dtype)
    if d.family == Family.DATA:
        return _item_of_field(d, place_in_field(d, element, step), chunks)
    if d.family == Family.SCHEDULE:
        column, columns = p
        return _at(chunks, Tree.SCHEDULE, 0, step.step * columns + column, d.dtype)
    if d.family == Family.CONSTANT:
        if not p:
            return _at(chunks, Tree.CONSTANT, 0, element, d.dtype)
        return p[0] if len(p) == 1 else p[element]
    if d.family == Family.IOTA:
        return p[0] + element * p[1]
    assert d.family == Family.UNIFORM
    return uniform_bits(philox_word(step.seed, step.step, p[0], element))


def place_in_field(d: Descriptor, element: int, step: DisputedStep) -> int:
    """The number of the stored element that an element of a DATA operator is read from, in its field."""
    _, _, items, stride = d.parameters
    sample, item = divmod(element, items)
    row = row_of_position(step.seed, step.step * step.batch_size + sample, step.data_rows)
    return row * stride + item


def _item_of_field(d: Descriptor, place: int, chunks: Chunks) -> int:
    stored = Stored(d.code)
    width = stored.width(d.dtype)
    index, offset = divmod(place * width, CHUNK_SIZE)
    data = chunks.payload(Chunk(Tree.FIELD, d.parameters[0], index))[offset : offset + width]
    return decode(d.dtype, data) if stored is Stored.AS_READ else int.from_bytes(data, "little", signed=stored.signed)


def uniform_bits(word: int) -> int:
    """(word >> 8) * 2^-24 as FP32 bits: exact."""
    mantissa = word >> 8
    if mantissa == 0:
        return 0
    length = mantissa.bit_length()
    # 0.1xxx in binary: the leading bit goes into the exponent.
    return ((length + 102) << 23) + (mantissa << (24 - length)) - (1 << 23)


def _read(item: Input, index: tuple[int, ...], chunks: Chunks) -> int:
    place = read(item, index)
    if place is None:
        raise NoValueError("a read is not valid")
    return _item(item, place, chunks)


def _item(item: Input, place: int, chunks: Chunks) -> int:
    return _at(chunks, Tree.VALUE, item.value, place, item.dtype)


def _at(chunks: Chunks, tree: Tree, tensor: int, place: int, dtype: DType) -> int:
    index, offset = divmod(place * dtype.itemsize, CHUNK_SIZE)
    return decode(dtype, chunks.payload(Chunk(tree, tensor, index))[offset : offset + dtype.itemsize])


def decode(dtype: DType, data: bytes) -> int:
    """An element from its little-endian bytes. Raises ValueError if there are too few or too many."""
    if len(data) != dtype.itemsize:
        raise ValueError(f"an element of {dtype} has {dtype.itemsize} bytes, not {len(data)}")
    return int.from_bytes(data, "little", signed=dtype == DType.I64)


def encode(dtype: DType, element: int) -> bytes:
    """An element's little-endian bytes."""
    return element.to_bytes(dtype.itemsize, "little", signed=dtype == DType.I64)


def in_float32(dtype: DType, element: int) -> int:
    """The FP32 pattern of a number of any format; an integer or bool as it is."""
    format = dtype.number_format()
    return element if format in (None, FLOAT32) else format.in_float32(element)


def of_float32(dtype: DType, element: int) -> int:
    """The other way round: the bits that an FP32 number which is one of the dtype's format has there."""
    format = dtype.number_format()
    return element if format in (None, FLOAT32) else format.of_float32(element)


def is_finite(dtype: DType, element: int) -> bool:
    """Whether an element is neither an infinity nor NaN, as only numbers of a format can be."""
    format = dtype.number_format()
    return format is None or format.is_finite(element)


def unravel(flat: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The multi-index of a flat row-major one."""
    index = []
    for size in reversed(sizes):
        flat, rest = divmod(flat, size)
        index.append(rest)
    return tuple(reversed(index))


def index_of(descriptor: Descriptor, element: int, term: int) -> tuple[int, ...]:
    """The iteration index of an output element, followed by the reduction index of a term. Raises IndexError."""
    if not 0 <= element < descriptor.elements:
        raise IndexError(f"there is no element {element} in an output of {descriptor.elements}")
    if not 0 <= term < descriptor.terms:
        raise IndexError(f"there is no term {term} in a reduction of {descriptor.terms}")
    return unravel(element, descriptor.iteration) + unravel(term, descriptor.reduction)


def read(item: Input, index: Sequence[int], replaced: tuple[int, int] | None = None) -> int | None:
    """The flat index of the element of `item` that an index reads, or None if the read is not valid. `replaced` is
    (view axis, coordinate), for GATHER: that coordinate comes from an index tensor."""
    flat = 0
    for axis, (size, row) in enumerate(zip(item.view, item.rows, strict=True)):
        coordinate = replaced[1] if replaced and replaced[0] == axis else row.at(index)
        if coordinate is None or not 0 <= coordinate < size:
            return None
        flat = flat * size + coordinate
    return flat


def function_value(name: str, x: int, dtype: DType, f32_format: Format = FLOAT32) -> int:
    """The value of a function, by its operator's name, at an element of a dtype of numbers, rounded once to its format:
    an element of the dtype, an infinity or NaN where there is no finite value. f32_format: that FP32 is rounded to."""
    argument = np.array([in_float32(dtype, x)], dtype=np.uint32).view(np.float32)
    value = round_function(name, argument, dtype.number_format(f32_format) or FLOAT32)
    return of_float32(dtype, int(value.view(np.uint32)[0]))
