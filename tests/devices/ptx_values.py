"""Instructions of PTX whose only effect is a value, on arrays of NumPy. Headings are sections of the PTX ISA.

NaN: which one an operation gives is left open; here it is one that no processor gives. NumPy's operations on FP32 and
FP64 round to nearest, ties to even, and keep subnormal numbers, as those with .rn and without .ftz do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.devices.ptx_program import KINDS, UNSIGNED, UnknownPtxError, size_of

Values = npt.NDArray[Any]


def _bits(x: Values) -> int:
    return 8 * x.itemsize


def _double(x: Values) -> Values:
    return x.astype(KINDS[f"{'s' if x.dtype.kind == 'i' else 'u'}{2 * _bits(x)}"])


def _high(a: Values, b: Values) -> Values:
    if _bits(a) < 64:
        return (_double(a) * _double(b) >> _double(a).dtype.type(_bits(a))).astype(a.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    middle = (a >> half) * (b & low) + ((a & low) * (b & low) >> half)
    return (a >> half) * (b >> half) + (middle >> half) + ((a & low) * (b >> half) + (middle & low) >> half)


def _divide(a: Values, b: Values) -> tuple[Values, Values]:
    """Return the quotient, toward zero, and the remainder. Raises ZeroDivisionError: it is left open."""
    if not b.all():
        raise ZeroDivisionError("an integer is divided by zero")
    size, by = (np.where(x < 0, np.negative(x), x).view(UNSIGNED[x.itemsize]) for x in (a, b))
    quotient = (size // by).view(a.dtype)
    quotient = np.where((a < 0) != (b < 0), np.negative(quotient), quotient)
    return quotient, a - quotient * b


def _shift_left(a: Values, n: Values) -> Values:
    """Amounts above the register's bits are taken as so many."""
    return np.where(n < _bits(a), a << np.minimum(n, _bits(a) - 1).astype(a.dtype), a.dtype.type(0))


def _shift_right(a: Values, n: Values) -> Values:
    """As to the left; the sign fills signed numbers."""
    shifted = a >> np.minimum(n, _bits(a) - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(n < _bits(a), shifted, a.dtype.type(0))


def _extract(a: Values, position: Values, length: Values) -> Values:
    """Above the field is its sign; of a field that ends above the number, the number's."""
    position, length = position & 0xFF, length & 0xFF
    above = _bits(a) - np.minimum(position + length, _bits(a))
    field = _shift_right(_shift_left(a, above), above + position)
    return np.where(length == 0, a.dtype.type(0), field)


def _insert(a: Values, b: Values, position: Values, length: Values) -> Values:
    """The low bits of a number, as a field of another one."""
    bits = _bits(a)
    ones = _shift_right(~a.dtype.type(0) + np.zeros_like(a), bits - np.minimum(length & 0xFF, bits))
    field = _shift_left(ones, position & 0xFF)
    return _shift_left(a, position & 0xFF) & field | b & ~field


def _permute(a: Values, b: Values, selector: Values) -> Values:
    """Four bytes of eight, each as it is or as its sign."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros(both.shape, dtype=np.uint64)
    for place in range(4):
        chosen = selector >> 4 * place & 0xF
        byte = both >> (8 * (chosen & 7)).astype(np.uint64) & np.uint64(0xFF)
        sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
        out = out | np.where(chosen & 8, sign, byte) << np.uint64(8 * place)
    return out.astype(np.uint32)


def _packed(part: type[np.generic], operation: Callable[..., Values]) -> Callable[..., Values]:
    """Return what does the same with each of the parts of two registers."""

    def each(a: Values, b: Values) -> Values:
        left, right = (np.ascontiguousarray(x).view(part) for x in np.broadcast_arrays(a, b))
        return operation(left, right).view(a.dtype)

    return each


def _magnitude(x: Values) -> Values:
    if x.dtype.kind == "i":
        return np.abs(x)
    unsigned = UNSIGNED[x.itemsize]
    return (x.view(unsigned) & unsigned((1 << _bits(x) - 1) - 1)).view(x.dtype)


def _unordered(a: Values, b: Values) -> Values:
    return np.asarray((a != a) | (b != b))


def _rounded(operation: Callable[..., Values]) -> Callable[..., Values]:
    def with_nan(*values: Values) -> Values:
        x = operation(*values)
        unsigned = UNSIGNED[x.itemsize]
        return np.where(x != x, unsigned((1 << _bits(x) - 1) - 1), x.view(unsigned)).view(x.dtype)

    return with_nan


_INTEGERS = frozenset(one for one in KINDS if one[0] in "us" and one[1:] != "8")
_NARROW = _INTEGERS - {"u64", "s64"}
_SIGNED = frozenset({"s16", "s32", "s64"})
_FLOATS = frozenset({"f32", "f64"})
_BITS = frozenset({"b16", "b32", "b64"})
_LOGICAL = _BITS | {"pred"}

_COMPARED: dict[str, tuple[frozenset[str], Callable[..., Any]]] = {
    "eq": (_INTEGERS | _BITS | _FLOATS, np.equal),
    "ne": (_INTEGERS | _BITS | _FLOATS, lambda a, b: (a != b) & ~_unordered(a, b)),
    **{"lt": (_INTEGERS | _FLOATS, np.less), "le": (_INTEGERS | _FLOATS, np.less_equal)},
    **{"gt": (_INTEGERS | _FLOATS, np.greater), "ge": (_INTEGERS | _FLOATS, np.greater_equal)},
}

PACKED = {"u16x2": "b32", "f32x2": "b64"}
"""Types of two numbers side by side, and the type of the register that has them (Packed Data Types)."""
SAME, DOUBLE = "same", "double"
"""The instruction's own type, and the one of twice its size."""

VALUES: dict[str, tuple[frozenset[str], tuple[str, ...], str, Callable[..., Any]]] = {
    # Opcode: its types; types of its sources, and of its result; what it does. Integer Arithmetic Instructions
    "add": (_INTEGERS, (SAME, SAME), SAME, np.add),
    "sub": (_INTEGERS, (SAME, SAME), SAME, np.subtract),
    "mul.lo": (_INTEGERS, (SAME, SAME), SAME, np.multiply),
    "mul.hi": (frozenset({"u32", "s32", "u64"}), (SAME, SAME), SAME, _high),
    "mul.wide": (_NARROW, (SAME, SAME), DOUBLE, lambda a, b: _double(a) * _double(b)),
    "mad.lo": (_INTEGERS, (SAME, SAME, SAME), SAME, lambda a, b, c: a * b + c),
    "mad.wide": (_NARROW, (SAME, SAME, DOUBLE), DOUBLE, lambda a, b, c: _double(a) * _double(b) + c),
    "div": (_INTEGERS, (SAME, SAME), SAME, lambda a, b: _divide(a, b)[0]),
    "rem": (_INTEGERS, (SAME, SAME), SAME, lambda a, b: _divide(a, b)[1]),
    "abs": (_SIGNED | _FLOATS, (SAME,), SAME, _magnitude),
    "neg": (_SIGNED | _FLOATS, (SAME,), SAME, np.negative),
    "min": (_INTEGERS, (SAME, SAME), SAME, np.minimum),
    "max": (_INTEGERS, (SAME, SAME), SAME, np.maximum),
    "max.relu": (frozenset({"s32"}), (SAME, SAME), SAME, lambda a, b: np.maximum(np.maximum(a, b), np.int32(0))),
    "max.u16x2": (frozenset({"b32"}), (SAME, SAME), SAME, _packed(np.uint16, np.maximum)),
    "popc": (frozenset({"b32", "b64"}), (SAME,), "u32", np.bitwise_count),
    "bfe": (_INTEGERS - {"u16", "s16"}, (SAME, "u32", "u32"), SAME, _extract),
    "bfi": (_BITS - {"b16"}, (SAME, SAME, "u32", "u32"), SAME, _insert),
    # Floating-Point Instructions. Without .rn, some may be contracted to others that round once
    "add.rn": (_FLOATS, (SAME, SAME), SAME, _rounded(np.add)),
    "sub.rn": (_FLOATS, (SAME, SAME), SAME, _rounded(np.subtract)),
    "mul.rn": (_FLOATS, (SAME, SAME), SAME, _rounded(np.multiply)),
    "div.rn": (_FLOATS, (SAME, SAME), SAME, _rounded(np.divide)),
    "sqrt.rn": (_FLOATS, (SAME,), SAME, _rounded(np.sqrt)),
    **{
        f"{name}.rn.f32x2": (frozenset({"b64"}), (SAME, SAME), SAME, _packed(np.float32, _rounded(operation)))
        for name, operation in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))
    },
    # Comparison and Selection Instructions
    "selp": (_INTEGERS | _BITS | _FLOATS, (SAME, SAME, "pred"), SAME, lambda a, b, c: np.where(c, a, b)),
    **{f"setp.{name}": (kinds, (SAME, SAME), "pred", function) for name, (kinds, function) in _COMPARED.items()},
    **{
        f"setp.{name}u": (
            _FLOATS,
            (SAME, SAME),
            "pred",
            lambda a, b, function=function: function(a, b) | _unordered(a, b),
        )
        for name, (_, function) in _COMPARED.items()
    },
    "setp.nan": (_FLOATS, (SAME, SAME), "pred", _unordered),
    # Logic and Shift Instructions
    "and": (_LOGICAL, (SAME, SAME), SAME, np.bitwise_and),
    "or": (_LOGICAL, (SAME, SAME), SAME, np.bitwise_or),
    "xor": (_LOGICAL, (SAME, SAME), SAME, np.bitwise_xor),
    "not": (_LOGICAL, (SAME,), SAME, np.bitwise_not),
    "shl": (_BITS, (SAME, "u32"), SAME, _shift_left),
    "shr": (_INTEGERS | _BITS, (SAME, "u32"), SAME, _shift_right),
    # Data Movement and Conversion Instructions
    "prmt": (frozenset({"b32"}), (SAME, SAME, SAME), SAME, _permute),
}

_TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _to_integer(mode: str, to: str, x: Values) -> Values:
    """What is outside of the range becomes its end, and NaN zero."""
    kind, limits = KINDS[to], np.iinfo(KINDS[to])
    whole = np.where(x != x, 0, _TO_INTEGRAL[mode](x))
    # As a number of the source's type the upper end may be one more than it is, which no number below that is.
    above, below = whole >= float(limits.max) + 1, whole < limits.min
    inside = np.where(above | below, 0, whole).astype(kind)
    return np.where(above, kind(limits.max), np.where(below, kind(limits.min), inside))


def conversion(mode: str, to: str, source: str) -> Callable[[Values], Values]:
    """Return what a cvt does (Data Movement and Conversion Instructions: cvt). mode: its rounding, or "". Raises
    UnknownPtxError for a rounding that its types have not, or must have."""
    if not {to, source} <= _INTEGERS | _FLOATS | {"u8", "s8"}:
        raise UnknownPtxError(f"cvt.{to}.{source}")
    larger = size_of(to) - size_of(source)
    if to in _FLOATS and source in _FLOATS:
        allowed = ("",) if larger > 0 else tuple(_TO_INTEGRAL) if larger == 0 else ("rn",)
    else:
        allowed = ("rn",) if to in _FLOATS else tuple(_TO_INTEGRAL) if source in _FLOATS else ("",)
    if mode not in allowed:
        raise UnknownPtxError(f"cvt.{mode}.{to}.{source}")
    if to not in _FLOATS:
        return partial(_to_integer, mode, to) if source in _FLOATS else lambda x: x.astype(KINDS[to])
    return _rounded(_TO_INTEGRAL[mode] if mode in _TO_INTEGRAL else lambda x: x.astype(KINDS[to]))
