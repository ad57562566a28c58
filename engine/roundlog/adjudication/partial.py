"""Reductions as running results: what stands after the first terms, in one canonical form of 96 bytes.

A long reduction is disputed segment by segment: leaf j of its tree is the running result after segment j, so that the
first leaf that differs is one segment on top of an agreed running result (docs/protocol.md, "Exact partial sums").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.binary32 import wrap
from roundlog.adjudication.tensor_core_groups import NoTensorCoreValueError, group
from roundlog.definitions import Extreme, Family
from roundlog.definitions.tensor_core import TensorCoreArithmetic, arithmetic_of
from roundlog.descriptors.descriptor import Descriptor, DescriptorError
from roundlog.number_format import FLOAT32, Format

PARTIAL_BYTES = 96
"""Three words of 256 bits, big-endian."""

SUM_UNIT = -298
"""An exact sum is an integer in units of 2^-298: the product of two of the smallest FP32 numbers."""

_ONE = 0x3F800000


class RunningResult(ABC):
    """A running result. Immutable."""

    @abstractmethod
    def absorb(self, operands: tuple[int, ...], label: int) -> RunningResult:
        """The running result with one more term: numbers as FP32 patterns, whatever their format, int64 as values, bool
        as 0 or 1."""

    @abstractmethod
    def finish(self, format: Format) -> int | None:
        """The output element that it stands for, a number as its FP32 pattern; None if there is none. format: of
        sums."""

    @abstractmethod
    def encode(self) -> bytes:
        """PARTIAL_BYTES bytes."""


@dataclass(frozen=True, slots=True)
class ExactSum(RunningResult):
    """SUM and SELECTED_SUM: a signed integer in units of 2^SUM_UNIT; encoded as 768 bits, two's complement.

    Once there was a term that is infinite or NaN, what all of those come to is all that is left, whatever the others
    are; encoded as its pattern, in the first four bytes."""

    total: int = 0
    special: int = 0
    """The pattern of an infinity or of NaN; 0: all terms were finite."""

    def absorb(self, operands: tuple[int, ...], label: int) -> ExactSum:
        a, b = operands if len(operands) == 2 else (operands[0], _ONE)
        if not (ieee.is_finite(a) and ieee.is_finite(b)):
            term = ieee.multiply(a, b)
            return ExactSum(0, ieee.add(self.special, term) if self.special else term)
        return self if self.special else ExactSum(self.total + ieee.scaled(a) * ieee.scaled(b))

    def finish(self, format: Format) -> int | None:
        return self.special or ieee.rounded(Fraction(self.total, 1 << -SUM_UNIT), format)

    def encode(self) -> bytes:
        if self.special:
            return self.special.to_bytes(4, "big") + bytes(PARTIAL_BYTES - 4)
        return self.total.to_bytes(PARTIAL_BYTES, "big", signed=True)


CHAIN_UNIT = FLOAT32.least_place
"""A sum of chains is an integer in units of 2^-149: the smallest FP32 number."""

CHAIN_LIMIT = 1 << 306
"""|sum| of 2^29 chains, each of 2,048 terms and below 2^128, in units: below 2^(29 + 128 + 149)."""


@dataclass(frozen=True, slots=True)
class GroupChain(RunningResult):
    """CHAIN: words FP32 bits of the number to which the next group is added, zero or a normal one; the exact sum of the
    segments that are at their end, in units of 2^CHAIN_UNIT, in two's complement of 512 bits. NaN, 0, 0 once a group
    had no value. Between groups nothing pends."""

    arithmetic: TensorCoreArithmetic
    format: str
    sum: int = 0
    total: int = 0
    pending: tuple[tuple[int, int], ...] = ()

    def absorb(self, operands: tuple[int, ...], label: int) -> GroupChain:
        return replace(self, pending=(*self.pending, (operands[0], operands[1])))

    def closed(self, terms: int) -> GroupChain:
        """The running result at the end of a group, after so many terms of the element. Raises DescriptorError for a
        sum that nothing can reach."""
        if self.total == ieee.NAN:
            return replace(self, pending=())
        a, b = zip(*self.pending, strict=True) if self.pending else ((), ())
        try:
            total = group(self.arithmetic, self.format, self.total, a, b)
        except NoTensorCoreValueError:
            return replace(self, sum=0, total=ieee.NAN, pending=())
        if terms % self.arithmetic.segment_terms:
            return replace(self, total=total, pending=())
        joined = self.sum + ieee.scaled(total)
        if abs(joined) >= CHAIN_LIMIT:
            raise DescriptorError("a running result is none that CHAIN can reach")
        return replace(self, sum=joined, total=0, pending=())

    def finish(self, format: Format) -> int | None:
        if self.total == ieee.NAN:
            return ieee.NAN
        return ieee.rounded(Fraction(self.sum + ieee.scaled(self.total), 1 << -CHAIN_UNIT), format)

    def encode(self) -> bytes:
        return self.total.to_bytes(32, "big") + self.sum.to_bytes(64, "big", signed=True)


@dataclass(frozen=True, slots=True)
class Largest(RunningResult):
    """EXTREME and ARGMAX: words seen (0 or 1), FP32 bits of the best number, which is one of the operand's format, its
    label (0 for EXTREME; int64 in two's complement of 256 bits). Nothing seen: zeros. NaN is better than any number."""

    sign: ClassVar[int] = 0
    seen: bool = False
    best: int = 0
    label: int = 0

    def absorb(self, operands: tuple[int, ...], label: int) -> Largest:
        (x,) = operands
        if self.seen and (self.best == ieee.NAN or not self._better(x)):
            return self
        return type(self)(True, ieee.NAN if ieee.is_nan(x) else x, label)

    def _better(self, x: int) -> bool:
        return ieee.is_nan(x) or ieee.less(self.best ^ self.sign, x ^ self.sign)

    def finish(self, format: Format) -> int | None:
        # Which of two equal zeros came first is nobody's affair.
        return (0 if self.best == ieee.SIGN else self.best) if self.seen else None

    def encode(self) -> bytes:
        return _words(int(self.seen), self.best, self.label)


class Smallest(Largest):
    """Smallest element, found as the largest one with both signs flipped."""

    sign = ieee.SIGN


class LargestPlace(Largest):
    """ARGMAX: the label instead of the number."""

    def finish(self, format: Format) -> int | None:
        return self.label if self.seen else None


@dataclass(frozen=True, slots=True)
class IntegerSum(RunningResult):
    """INTEGER_SUM: words 0, 0, the sum modulo 2^64 as int64 in two's complement of 256 bits."""

    total: int = 0

    def absorb(self, operands: tuple[int, ...], label: int) -> IntegerSum:
        return IntegerSum(wrap(self.total + operands[0]))

    def finish(self, format: Format) -> int | None:
        return self.total

    def encode(self) -> bytes:
        return _words(0, 0, self.total)


@dataclass(frozen=True, slots=True)
class AnyTrue(RunningResult):
    """ANY: words 0, 0, 1 if one was true."""

    found: bool = False

    def absorb(self, operands: tuple[int, ...], label: int) -> AnyTrue:
        return AnyTrue(self.found or bool(operands[0]))

    def finish(self, format: Format) -> int | None:
        return int(self.found)

    def encode(self) -> bytes:
        return _words(0, 0, int(self.found))


def _words(*numbers: int) -> bytes:
    return b"".join((number % (1 << 256)).to_bytes(32, "big") for number in numbers)


def start(descriptor: Descriptor) -> RunningResult:
    """The running result before the first term."""
    makers: dict[Family, Callable[[], RunningResult]] = {
        Family.SUM: ExactSum,
        Family.SELECTED_SUM: ExactSum,
        Family.EXTREME: Largest if descriptor.code == Extreme.MAX else Smallest,
        Family.ARGMAX: LargestPlace,
        Family.INTEGER_SUM: IntegerSum,
        Family.ANY: AnyTrue,
        Family.CHAIN: lambda: GroupChain(arithmetic_of(descriptor.code), str(descriptor.inputs[0].dtype)),
    }
    return makers[descriptor.family]()
