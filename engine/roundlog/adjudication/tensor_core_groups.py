"""Sums of products as tensor cores add them: the reference of docs/arithmetic.md, step by step, in integers.

Numbers are FP32 bit patterns, whatever their format. What results of real GPUs do not show has no value here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from fractions import Fraction

from roundlog.adjudication import binary32 as ieee
from roundlog.definitions.tensor_core import LARGEST_EXPONENT, LEAST_EXPONENT, OPERAND_FORMATS, TensorCoreArithmetic
from roundlog.number_format import FLOAT32, Format

UNIT = 2 * FLOAT32.least_place
"""Every product of two FP32 numbers, and every FP32 number, is an integer in units of 2^-298."""


class Refusal(enum.Enum):
    """Why a group has no value. If there are several reasons, the first of these is given."""

    NOT_FINITE = "a number is infinite or NaN"
    TOO_LARGE = "an exponent is above 121"
    UNKNOWN_ALIGNMENT = "only zeros or subnormal numbers have the largest exponent, and bits would be lost"
    SUBNORMAL = "a subnormal number counts, and results of real GPUs show none of its format"
    TOO_SMALL = "the result is below 2^-126 and not zero"


class NoTensorCoreValueError(ArithmeticError):
    """A group has no value; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the group has no value: {refusal.value}")
        self.refusal = refusal


def group(arithmetic: TensorCoreArithmetic, format: str, c: int, a: Sequence[int], b: Sequence[int]) -> int:
    """c plus the products of one group: an FP32 pattern, a zero as +0.

    format: the operands' format, a name of OPERAND_FORMATS. c: an FP32 pattern. a, b: as many patterns each, at most a
    group's, of numbers of the format. Raises NoTensorCoreValueError where there is no value, ValueError for operands
    that are too many or not of the format."""
    operands = OPERAND_FORMATS[format]
    if len(a) != len(b) or len(a) > arithmetic.terms_of(format):
        raise ValueError(f"{len(a)} and {len(b)} operands are no group of {arithmetic.terms_of(format)} products")
    for x, expected in ((c, FLOAT32), *((x, operands) for x in (*a, *b))):
        if not _is_of(x, expected):
            raise ValueError(f"{x:#x} is no number of {format} operands, or of FP32")
    if not all(map(ieee.is_finite, (c, *a, *b))):
        raise NoTensorCoreValueError(Refusal.NOT_FINITE)
    least = operands.least_exponent
    pairs = list(zip(a, b, strict=True))
    terms = [ieee.scaled(c) << -FLOAT32.least_place, *(ieee.scaled(x) * ieee.scaled(y) for x, y in pairs)]
    exponents = [_exponent(c), *(max(_exponent(x), least) + max(_exponent(y), least) for x, y in pairs)]
    normal = [_is_normal(c, FLOAT32), *(_is_normal(x, operands) and _is_normal(y, operands) for x, y in pairs)]
    # A group that is not full is completed with products of two zeros.
    largest = max(*exponents, 2 * least)
    if largest > LARGEST_EXPONENT:
        raise NoTensorCoreValueError(Refusal.TOO_LARGE)
    place = largest - arithmetic.fraction_bits
    shift = place - UNIT
    certain = any(one and exponent == largest for one, exponent in zip(normal, exponents, strict=True))
    if not certain and any(abs(term) % (1 << shift) for term in terms):
        raise NoTensorCoreValueError(Refusal.UNKNOWN_ALIGNMENT)
    kept = [_truncated(term, shift) for term in terms]
    shown = [False, *(format in arithmetic.subnormals for _ in pairs)]
    if any(count and not (one or known) for count, one, known in zip(kept, normal, shown, strict=True)):
        raise NoTensorCoreValueError(Refusal.SUBNORMAL)
    total = sum(kept)
    excess = max(abs(total).bit_length() - (FLOAT32.fraction_bits + 1), 0)
    result = Fraction(_truncated(total, excess) << excess) * Fraction(2) ** place
    if result and abs(result) < Fraction(2) ** LEAST_EXPONENT:
        raise NoTensorCoreValueError(Refusal.TOO_SMALL)
    return ieee.nearest(result)


def chain(arithmetic: TensorCoreArithmetic, format: str, a: Sequence[int], b: Sequence[int]) -> int:
    """One segment: groups in the order of their terms, each on top of the one before, the first on top of zero.

    a, b: as many patterns each, at most `segment_terms`. Returns and raises as `group`."""
    if len(a) != len(b) or len(a) > arithmetic.segment_terms:
        raise ValueError(f"{len(a)} and {len(b)} operands are no segment of {arithmetic.segment_terms} products")
    result = 0
    step = arithmetic.terms_of(format)
    for start in range(0, len(a), step):
        result = group(arithmetic, format, result, a[start : start + step], b[start : start + step])
    return result


def element(arithmetic: TensorCoreArithmetic, format: str, a: Sequence[int], b: Sequence[int], output: Format) -> int:
    """An element of a product of matrices: the exact sum of the segments' results, rounded once to the output's format,
    to nearest, ties to even; the FP32 pattern of that number, a zero as +0.

    a, b: as many patterns each, of any number of products. Raises as `group`."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} operands make no products")
    step = arithmetic.segment_terms
    starts = range(0, len(a), step)
    sums = (chain(arithmetic, format, a[start : start + step], b[start : start + step]) for start in starts)
    return ieee.rounded(sum(map(ieee.value, sums), Fraction(0)), output)


def _exponent(x: int) -> int:
    """Exponent of a finite pattern; of a zero and of subnormal numbers that of the least normal one."""
    return max(x >> FLOAT32.fraction_bits & 0xFF, 1) - FLOAT32.largest_exponent


def _is_normal(x: int, format: Format) -> bool:
    """Whether a finite pattern of the format is neither a zero nor a subnormal number."""
    return (x >> FLOAT32.fraction_bits & 0xFF) - FLOAT32.largest_exponent >= format.least_exponent


def _is_of(x: int, format: Format) -> bool:
    """Whether an integer is the FP32 pattern of a number of the format; NaN and infinities are."""
    if not 0 <= x < 1 << 32:
        return False
    if not ieee.is_finite(x):
        return True
    exponent = max(_exponent(x), format.least_exponent)
    last = exponent - format.fraction_bits - FLOAT32.least_place
    return exponent <= format.largest_exponent and ieee.scaled(x) % (1 << last) == 0


def _truncated(number: int, bits: int) -> int:
    """The number without its last bits, toward zero."""
    return number >> bits if number >= 0 else -(-number >> bits)
