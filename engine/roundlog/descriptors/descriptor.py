"""The descriptor of an operator: everything that the contract needs to compute one element of its output, without its
name. Docs: "Operator descriptors" in docs/protocol.md, which this file and `encoding` follow to the letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from roundlog.definitions import Family
from roundlog.program import DType, ProgramError


class DescriptorError(ProgramError):
    """A descriptor that the contract could not evaluate; the message names the number that is wrong."""


LOADS = frozenset(range(Family.STATE, Family.COPY))
"""Families without inputs."""

REDUCTIONS = frozenset(range(Family.SUM, Family.ANY + 1))
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
    def axes(self) -> tuple[int, ...]:
        """The axes that rows have coefficients for."""
        return self.iteration + self.reduction

    @property
    def label(self) -> Row:
        """ARGMAX: what the reduction index found is called. SELECTED_SUM: the index value that an element collects."""
        offset, divisor, *coefficients = self.parameters
        return Row(offset, tuple(coefficients), divisor)
