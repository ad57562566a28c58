"""The descriptor of an operator: everything that the contract needs to compute one element of its output, without its
name. Docs: "Operator descriptors" in docs/protocol.md, which this file and `encoding` follow to the letter."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from roundlog.program import DType, ProgramError


class DescriptorError(ProgramError):
    """A descriptor that the contract could not evaluate; the message names the number that is wrong."""


class Family(enum.IntEnum):
    """Family of an operator: how an element of its output is computed. The numbers are part of the encoding."""

    STATE = 0
    DATA = 1
    SCHEDULE = 2
    CONSTANT = 3
    IOTA = 4
    UNIFORM = 5
    COPY = 6
    GATHER = 7
    MAP = 8
    FUNCTION = 9
    SUM = 10
    SELECTED_SUM = 11
    EXTREME = 12
    ARGMAX = 13
    INTEGER_SUM = 14
    ANY = 15


LOADS = frozenset(range(Family.STATE, Family.COPY))
"""Families without inputs."""

REDUCTIONS = frozenset(range(Family.SUM, Family.ANY + 1))
"""Families that run over the reduction index."""


class Scalar(enum.IntEnum):
    """Codes of MAP: one exact function of one element of every input. The code fixes the inputs' dtypes."""

    F32_ADD = 0
    F32_SUB = 1
    F32_MUL = 2
    F32_DIV = 3
    F32_SQRT = 4
    F32_NEG = 5
    F32_ABS = 6
    F32_FLOOR = 7
    F32_MAXIMUM = 8
    F32_MINIMUM = 9
    F32_EQ = 10
    F32_LT = 11
    F32_LE = 12
    I64_ADD = 13
    I64_SUB = 14
    I64_MUL = 15
    I64_NEG = 16
    I64_ABS = 17
    I64_MAXIMUM = 18
    I64_MINIMUM = 19
    I64_EQ = 20
    I64_LT = 21
    I64_LE = 22
    BOOL_EQ = 23
    BOOL_AND = 24
    BOOL_OR = 25
    BOOL_NOT = 26
    WHERE = 27
    I64_TO_F32 = 28
    BOOL_TO_F32 = 29
    BOOL_TO_I64 = 30


class Function(enum.IntEnum):
    """Codes of FUNCTION: one elementary function of one FP32 number, correctly rounded, zero is +0."""

    EXP = 0
    EXPM1 = 1
    LOG = 2
    LOG1P = 3
    TANH = 4
    ERF = 5
    SIN = 6
    COS = 7


class Copy(enum.IntEnum):
    """Codes of COPY."""

    ANY = 0
    FINITE = 1
    """The loss, and what goes into the next state, FP32: no run goes on with an infinity or NaN there."""


class Extreme(enum.IntEnum):
    """Codes of EXTREME."""

    MAX = 0
    MIN = 1


DTYPE_CODES = {DType.F32: 0, DType.I64: 1, DType.BOOL: 2}


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
