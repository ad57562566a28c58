"""The exact scalar functions of MAP, on bit patterns (FP32), values (int64) and 0 or 1 (bool)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from roundlog.adjudication import binary32 as ieee
from roundlog.descriptors.descriptor import Scalar


def wrap(number: int) -> int:
    """Modulo 2^64, as int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


SCALARS: dict[Scalar, Callable[..., int]] = {
    Scalar.F32_ADD: ieee.add,
    Scalar.F32_SUB: ieee.subtract,
    Scalar.F32_MUL: ieee.multiply,
    Scalar.F32_DIV: ieee.divide,
    Scalar.F32_SQRT: ieee.root,
    Scalar.F32_NEG: ieee.negate,
    Scalar.F32_ABS: ieee.magnitude,
    Scalar.F32_FLOOR: ieee.floor,
    Scalar.F32_MAXIMUM: ieee.maximum,
    Scalar.F32_MINIMUM: ieee.minimum,
    Scalar.F32_EQ: ieee.equal,
    Scalar.F32_LT: ieee.less,
    Scalar.F32_LE: lambda a, b: ieee.less(a, b) or ieee.equal(a, b),
    Scalar.I64_ADD: lambda a, b: wrap(a + b),
    Scalar.I64_SUB: lambda a, b: wrap(a - b),
    Scalar.I64_MUL: lambda a, b: wrap(a * b),
    Scalar.I64_NEG: lambda a: wrap(-a),
    Scalar.I64_ABS: lambda a: wrap(abs(a)),
    Scalar.I64_MAXIMUM: max,
    Scalar.I64_MINIMUM: min,
    Scalar.I64_EQ: lambda a, b: a == b,
    Scalar.I64_LT: lambda a, b: a < b,
    Scalar.I64_LE: lambda a, b: a <= b,
    Scalar.BOOL_EQ: lambda a, b: a == b,
    Scalar.BOOL_AND: lambda a, b: a & b,
    Scalar.BOOL_OR: lambda a, b: a | b,
    Scalar.BOOL_NOT: lambda a: 1 - a,
    Scalar.WHERE: lambda c, a, b: a if c else b,
    Scalar.I64_TO_F32: lambda a: ieee.nearest(Fraction(a)),
    Scalar.BOOL_TO_F32: lambda a: 0x3F800000 * a,
    Scalar.BOOL_TO_I64: lambda a: a,
}
