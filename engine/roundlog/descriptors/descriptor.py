"""The descriptor of an operator: everything that the contract needs to compute one element of its output, without its
name. Docs: "Operator descriptors" in docs/protocol.md, which this file follows to the letter.

`check_descriptor` checks what holds for every descriptor. The contract repeats the checks that docs/protocol.md marks
as its own.

The canonical bytes are `abi.encode` of one Solidity struct (Solidity documentation, "Contract ABI Specification",
strict encoding mode), and the payload of the operator's leaf under the program root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from eth_abi.abi import encode

from roundlog.definitions import Copy, Family, Signature, signatures
from roundlog.definitions.tensor_core import SEGMENT_TERMS, arithmetic_of
from roundlog.program import DType, ProgramError


class DescriptorError(ProgramError):
    """A descriptor that the contract could not evaluate; the message names the number that is wrong."""


LOADS = frozenset(range(Family.STATE, Family.COPY))
"""Families without inputs."""

REDUCTIONS = frozenset(range(Family.SUM, Family.CHAIN + 1))
"""Families that run over the reduction index."""


DTYPE_CODES = {DType.F32: 0, DType.I64: 1, DType.BOOL: 2, DType.BF16: 3, DType.F16: 4}


@dataclass(frozen=True, slots=True)
class Row:
    """One coordinate as an affine form: (offset + sum of coefficients[m] * index[m]) / divisor, where index runs over
    the iteration axes and then the reduction axes. The coordinate exists if the division leaves no rest."""

    offset: int
    coefficients: tuple[int, ...]
    divisor: int = 1

    def at(self, index: Sequence[int]) -> int | None:
        """The coordinate, or None if the division leaves a rest."""
        number = self.offset + sum(c * i for c, i in zip(self.coefficients, index, strict=True))
        quotient, rest = divmod(number, self.divisor)
        return None if rest else quotient


@dataclass(frozen=True, slots=True)
class Input:
    """One operand: value number, dtype, and which of its elements is read.

    view: a factorisation of the operand's flat row-major index into axes. rows: a coordinate for every view axis. A
    read is valid if every coordinate exists and lies inside its axis."""

    value: int
    dtype: DType
    view: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def elements(self) -> int:
        return prod(self.view)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor, which fix the number of leaves of its tensor root."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """One operator. iteration: a factorisation of the output's flat index; reduction: of the reduction index; both
    may be empty (one element, one term). segment: terms that one opening covers; 0 outside of the reductions.
    parameters, root: their meaning depends on the family."""

    family: Family
    code: int = 0
    dtype: DType
    segment: int = 0
    iteration: tuple[int, ...]
    reduction: tuple[int, ...] = ()
    inputs: tuple[Input, ...] = ()
    parameters: tuple[int, ...] = ()
    root: bytes = bytes(32)

    @property
    def elements(self) -> int:
        return prod(self.iteration)

    @property
    def nbytes(self) -> int:
        """Bytes of the output."""
        return self.elements * self.dtype.itemsize

    @property
    def terms(self) -> int:
        """Reduction indices of one element."""
        return prod(self.reduction)

    @property
    def group(self) -> int:
        """CHAIN: products of a group; 1 of all else."""
        if self.family != Family.CHAIN:
            return 1
        return arithmetic_of(self.code).terms_of(self.inputs[0].dtype)

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that rows have coefficients for."""
        return self.iteration + self.reduction

    @property
    def label(self) -> Row:
        """ARGMAX: what the reduction index found is called. SELECTED_SUM: the index value that an element collects."""
        offset, divisor, *coefficients = self.parameters
        return Row(offset, tuple(coefficients), divisor)


MAX_AXES = 16
"""Iteration and reduction axes together; and view axes of an input."""
MAX_INPUTS = 64
MAX_LITERALS = 32
"""Literals of a constant that stand in its descriptor; beyond, its tensor root does."""
MAX_SIZE = 1 << 40
"""Elements of a tensor, terms of a reduction."""
MAX_SEGMENT = 1 << 12
"""Terms of a segment."""
MAX_ENCODED_BYTES = 1 << 16

_INT64 = range(-(1 << 63), 1 << 63)


def check_descriptor(descriptor: Descriptor) -> None:
    """Returns if the descriptor can be evaluated within bounded work and without overflow, for every element and
    reduction index. Raises DescriptorError."""
    d = descriptor
    if len(d.axes) > MAX_AXES:
        raise DescriptorError(f"has {len(d.axes)} iteration and reduction axes, more than {MAX_AXES}")
    _check_sizes(d.iteration, "the iteration shape")
    _check_sizes(d.reduction, "the reduction shape")
    if len(d.inputs) > MAX_INPUTS:
        raise DescriptorError(f"has {len(d.inputs)} inputs, more than {MAX_INPUTS}")
    formats = signatures(d.family, d.code)
    if not formats:
        raise DescriptorError(f"has the unknown code {d.code} of family {d.family.name}")
    if d.family in REDUCTIONS:
        if not 1 <= d.segment <= MAX_SEGMENT:
            raise DescriptorError(f"has segments of {d.segment} terms, expected 1 to {MAX_SEGMENT}")
    elif d.reduction or d.segment:
        raise DescriptorError(f"reduces over {list(d.reduction)}, which {d.family.name} does not")
    _check_inputs(d, formats)
    if d.family == Family.CHAIN and (d.segment & (d.segment - 1) or not d.group <= d.segment <= SEGMENT_TERMS):
        raise DescriptorError(
            f"has segments of {d.segment} terms, expected a power of two from {d.group} to {SEGMENT_TERMS}"
        )
    _check_parameters(d)
    if d.family != Family.CONSTANT and d.root != bytes(32):
        raise DescriptorError(f"has a root, which {d.family.name} has no use for")
    for position, item in enumerate(d.inputs):
        try:
            _check_input(d, item)
        except DescriptorError as error:
            raise DescriptorError(f"input {position} {error}") from None


def _check_sizes(sizes: tuple[int, ...], what: str) -> None:
    # A size of 0 must not hide one that is too large.
    if any(not 0 <= size <= MAX_SIZE for size in sizes) or prod(size or 1 for size in sizes) > MAX_SIZE:
        raise DescriptorError(f"{what} {list(sizes)} is not made of sizes whose product is at most 2^40")


def _check_inputs(d: Descriptor, formats: Sequence[Signature]) -> None:
    found = tuple(item.dtype for item in d.inputs)
    if d.family == Family.COPY:
        # The first valid read of any number of inputs, as many as `cat` has.
        fits = bool(found) and all(dtype == d.dtype for dtype in found)
        fits = fits and (d.code != Copy.FINITE or d.dtype.is_float)
    else:
        fits = any(signature.fits(found, d.dtype) for signature in formats)
    if not fits:
        dtypes = ", ".join(map(str, found)) or "nothing"
        raise DescriptorError(f"reads {dtypes} and gives {d.dtype}, which {d.family.name} {int(d.code)} does not")
    seen: dict[int, tuple[DType, int]] = {}
    for item in d.inputs:
        if seen.setdefault(item.value, (item.dtype, item.elements)) != (item.dtype, item.elements):
            raise DescriptorError(f"reads value {item.value} as if it were of two dtypes or sizes")


def _check_parameters(d: Descriptor) -> None:
    p = d.parameters
    if any(number not in _INT64 for number in p):
        raise DescriptorError("has a parameter that does not fit int64")
    if d.family == Family.STATE:
        fits = len(p) == 1 and p[0] >= 0
    elif d.family == Family.DATA:
        # The field is one of the data set's, and every row has the same number of elements.
        fits = len(p) == 4 and 0 <= p[0] < p[1] and 0 <= p[2] <= MAX_SIZE and 0 <= p[3] <= MAX_SIZE
        fits = fits and (d.elements % p[2] == 0 if p[2] else d.elements == 0)
    elif d.family == Family.SCHEDULE:
        fits = len(p) == 2 and 0 <= p[0] < p[1] <= MAX_SIZE and d.elements == 1
    elif d.family == Family.CONSTANT:
        fits = _constant_fits(d)
    elif d.family == Family.IOTA:
        fits = len(p) == 2 and p[0] + p[1] * max(d.elements - 1, 0) in _INT64
    elif d.family == Family.UNIFORM:
        fits = len(p) == 1 and 0 <= p[0] < 1 << 32
    elif d.family == Family.GATHER:
        fits = len(p) == 1 and 0 <= p[0] < len(d.inputs[0].view) and _is_zero(d.inputs[0].rows[p[0]])
    elif d.family in (Family.SELECTED_SUM, Family.ARGMAX):
        fits = len(p) == 2 + len(d.axes) and p[1] == 1 and _fits_int64(d.label, d.axes)
        if fits and d.family == Family.SELECTED_SUM:
            fits = not any(d.label.coefficients[len(d.iteration) :])
    else:
        fits = not p
    if not fits:
        raise DescriptorError(f"has the parameters {list(p[:8])}, which do not fit {d.family.name}")


def _constant_fits(d: Descriptor) -> bool:
    bits = 1 if d.dtype == DType.BOOL else 8 * d.dtype.itemsize
    allowed = _INT64 if d.dtype == DType.I64 else range(1 << bits)
    if not d.parameters:
        return d.elements > MAX_LITERALS and d.root != bytes(32)
    inline = len(d.parameters) == 1 or len(d.parameters) == d.elements <= MAX_LITERALS
    return inline and d.root == bytes(32) and all(item in allowed for item in d.parameters)


def _is_zero(row: Row) -> bool:
    return row.offset == 0 and row.divisor == 1 and not any(row.coefficients)


def _fits_int64(row: Row, axes: tuple[int, ...]) -> bool:
    low, high = bounds(row, axes)
    return -(1 << 63) < low <= high < 1 << 63


def _check_input(d: Descriptor, item: Input) -> None:
    if not 0 <= item.value < 1 << 64:
        raise DescriptorError(f"is value {item.value}, which does not fit 64 bits")
    if len(item.view) > MAX_AXES:
        raise DescriptorError(f"has {len(item.view)} view axes, more than {MAX_AXES}")
    _check_sizes(item.view, "has a view that")
    if len(item.rows) != len(item.view):
        raise DescriptorError(f"has {len(item.rows)} rows for {len(item.view)} view axes")
    for row in item.rows:
        if len(row.coefficients) != len(d.axes):
            raise DescriptorError(f"has {len(row.coefficients)} coefficients for {len(d.axes)} axes")
        if row.divisor < 1:
            raise DescriptorError(f"has the divisor {row.divisor}, expected at least 1")
        if any(number not in _INT64 for number in (row.offset, row.divisor, *row.coefficients)):
            raise DescriptorError("has a number that does not fit int64")
        if not _fits_int64(row, d.axes):
            raise DescriptorError("has a coordinate that leaves the range of int64")


def bounds(row: Row, axes: tuple[int, ...]) -> tuple[int, int]:
    """The least and the greatest value of a row's numerator over all indices; of its offset if there are none. The
    magnitudes of all partial sums lie below the sum of the magnitudes that is checked here."""
    low = high = row.offset
    for coefficient, size in zip(row.coefficients, axes, strict=True):
        reach = coefficient * max(size - 1, 0)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


INPUT = "(uint64,uint8,uint64[],int64[])"
STRUCT = f"(uint8,uint8,uint8,uint32,uint64[],uint64[],{INPUT}[],int64[],bytes32)"


def encode_descriptor(descriptor: Descriptor) -> bytes:
    """The canonical bytes. Raises DescriptorError as `check_descriptor`."""
    check_descriptor(descriptor)
    encoded = encode([STRUCT], [_plain(descriptor)])
    if len(encoded) > MAX_ENCODED_BYTES:
        raise DescriptorError(f"its descriptor has {len(encoded)} bytes, more than {MAX_ENCODED_BYTES}")
    return encoded


def _plain(descriptor: Descriptor) -> tuple[Any, ...]:
    return (
        int(descriptor.family),
        int(descriptor.code),
        DTYPE_CODES[descriptor.dtype],
        descriptor.segment,
        descriptor.iteration,
        descriptor.reduction,
        [(i.value, DTYPE_CODES[i.dtype], i.view, flat_rows(i.rows)) for i in descriptor.inputs],
        descriptor.parameters,
        descriptor.root,
    )


def flat_rows(rows: tuple[Row, ...]) -> list[int]:
    """offset, divisor, coefficients of every row, one after another."""
    return [number for row in rows for number in (row.offset, row.divisor, *row.coefficients)]
