"""IEEE 754-2019 binary32 on bit patterns, Python integers from 0 to 2^32 - 1, and the exact scalar functions of MAP,
which also take values (int64) and 0 or 1 (bool)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

from roundlog.number_format import FLOAT32, Format

NAN = FLOAT32.nan
INFINITY = FLOAT32.infinity
LARGEST = INFINITY - 1
SIGN = FLOAT32.sign

_ROOT_BITS = 200
"""A square root is bracketed to 2^-200, far finer than half of the smallest FP32 number (2^-150)."""


def is_nan(bits: int) -> bool:
    return bits & 0x7FFFFFFF > INFINITY


def is_infinite(bits: int) -> bool:
    return bits & 0x7FFFFFFF == INFINITY


is_finite = FLOAT32.is_finite

scaled = FLOAT32.scaled
"""A finite number as a multiple of 2^-149."""

value = FLOAT32.value
"""The real number that a finite bit pattern stands for."""


def nearest(number: Fraction, *, zero: int = 0, format: Format = FLOAT32) -> int:
    """Round to the nearest number of a format, ties to even (clause 4.3.1), given by the bits that it has in FP32. A
    result of zero gets the bits `zero` if the number is zero, the number's sign if it underflows."""
    return format.in_float32(format.nearest(number)) if number else zero


def rounded(number: Fraction, format: Format = FLOAT32) -> int:
    """Result of an inexact operator: rounded to nearest, ties to even, and every zero is +0."""
    bits = nearest(number, format=format)
    return 0 if bits == SIGN else bits


def add(a: int, b: int, format: Format = FLOAT32) -> int:
    if is_nan(a) or is_nan(b):
        return NAN
    if is_infinite(a) or is_infinite(b):
        if is_infinite(a) and is_infinite(b):
            return a if a == b else NAN
        return a if is_infinite(a) else b
    # Clause 6.3: a zero sum is +0 unless both are -0.
    return nearest(value(a) + value(b), zero=SIGN if a == b == SIGN else 0, format=format)


def negate(a: int) -> int:
    return NAN if is_nan(a) else a ^ SIGN


def magnitude(a: int) -> int:
    return NAN if is_nan(a) else a & ~SIGN


def subtract(a: int, b: int, format: Format = FLOAT32) -> int:
    return add(a, negate(b), format)


def multiply(a: int, b: int, format: Format = FLOAT32) -> int:
    sign = (a ^ b) & SIGN
    if is_nan(a) or is_nan(b):
        return NAN
    if is_infinite(a) or is_infinite(b):
        zero = a & ~SIGN == 0 or b & ~SIGN == 0
        return NAN if zero else sign | INFINITY
    return nearest(value(a) * value(b), zero=sign, format=format)


def divide(a: int, b: int, format: Format = FLOAT32) -> int:
    sign = (a ^ b) & SIGN
    if is_nan(a) or is_nan(b) or (is_infinite(a) and is_infinite(b)):
        return NAN
    if is_infinite(a):
        return sign | INFINITY
    if is_infinite(b):
        return sign
    if b & ~SIGN == 0:
        return NAN if a & ~SIGN == 0 else sign | INFINITY
    return nearest(value(a) / value(b), zero=sign, format=format)


def root(a: int, format: Format = FLOAT32) -> int:
    if a in (0, SIGN, INFINITY):
        return a
    if is_nan(a) or a & SIGN:
        return NAN
    number = value(a)
    square = number * 4**_ROOT_BITS
    assert square.denominator == 1
    floor = isqrt(square.numerator)
    # Between two neighbours of this fine grid lies no boundary of FP32, so the middle stands for all of it.
    fine = Fraction(floor) if floor * floor == square.numerator else Fraction(2 * floor + 1, 2)
    return nearest(fine / 2**_ROOT_BITS, format=format)


def convert(a: int, format: Format = FLOAT32) -> int:
    """Clause 5.4.2: the nearest number of a format; a zero keeps its sign."""
    return nearest(value(a), zero=a & SIGN, format=format) if is_finite(a) else NAN if is_nan(a) else a


def floor(a: int) -> int:
    if not is_finite(a):
        return NAN if is_nan(a) else a
    number = value(a)
    return nearest(Fraction(number.numerator // number.denominator), zero=a & SIGN)


def order(a: int) -> Fraction | float:
    """Key that compares as the number does; the two zeros are equal. NaN has no place."""
    if is_infinite(a):
        return float("-inf") if a & SIGN else float("inf")
    return value(a)


def maximum(a: int, b: int) -> int:
    """a if it is greater, else b; NaN if an operand is."""
    if is_nan(a) or is_nan(b):
        return NAN
    return a if less(b, a) else b


def minimum(a: int, b: int) -> int:
    """a if it is less, else b; NaN if an operand is."""
    if is_nan(a) or is_nan(b):
        return NAN
    return a if less(a, b) else b


def less(a: int, b: int) -> bool:
    return not (is_nan(a) or is_nan(b)) and order(a) < order(b)


def equal(a: int, b: int) -> bool:
    return not (is_nan(a) or is_nan(b)) and order(a) == order(b)


def wrap(number: int) -> int:
    """Modulo 2^64, as int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


SCALARS: dict[str, Callable[..., int]] = {
    "FLOAT_ADD": add,
    "FLOAT_SUB": subtract,
    "FLOAT_MUL": multiply,
    "FLOAT_DIV": divide,
    "FLOAT_SQRT": root,
    "FLOAT_NEG": negate,
    "FLOAT_ABS": magnitude,
    "FLOAT_FLOOR": floor,
    "FLOAT_MAXIMUM": maximum,
    "FLOAT_MINIMUM": minimum,
    "FLOAT_EQ": equal,
    "FLOAT_LT": less,
    "FLOAT_LE": lambda a, b: less(a, b) or equal(a, b),
    "I64_ADD": lambda a, b: wrap(a + b),
    "I64_SUB": lambda a, b: wrap(a - b),
    "I64_MUL": lambda a, b: wrap(a * b),
    "I64_NEG": lambda a: wrap(-a),
    "I64_ABS": lambda a: wrap(abs(a)),
    "I64_MAXIMUM": max,
    "I64_MINIMUM": min,
    "I64_EQ": lambda a, b: a == b,
    "I64_LT": lambda a, b: a < b,
    "I64_LE": lambda a, b: a <= b,
    "BOOL_EQ": lambda a, b: a == b,
    "BOOL_AND": lambda a, b: a & b,
    "BOOL_OR": lambda a, b: a | b,
    "BOOL_NOT": lambda a: 1 - a,
    "WHERE": lambda c, a, b: a if c else b,
    "I64_TO_FLOAT": lambda a, format=FLOAT32: nearest(Fraction(a), format=format),
    "BOOL_TO_FLOAT": lambda a: 0x3F800000 * a,
    "BOOL_TO_I64": lambda a: a,
    "FLOAT_TO_FLOAT": convert,
}
"""By the names of `roundlog.definitions.code_name`, on FP32 patterns whatever the format, since every number is one of
FP32; int64; 0 or 1."""

ROUNDED = frozenset(
    {"FLOAT_ADD", "FLOAT_SUB", "FLOAT_MUL", "FLOAT_DIV", "FLOAT_SQRT", "I64_TO_FLOAT", "FLOAT_TO_FLOAT"}
)
"""Those of SCALARS that take the `format` of their result. The others' numbers are of their operands' format."""
