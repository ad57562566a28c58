"""Operators on the bits of integers, and on masks."""

from __future__ import annotations

from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.rules.elementwise import xor
from roundlog.capture.rules.table import Context, rule
from roundlog.program import DType

_BITS = 64


@rule("bitwise_and.Tensor", "bitwise_and.Scalar")
def bitwise_and(c: Context, a: Any, b: Any) -> Value:
    """Bits that both integers have, added up again: bit j is the sign of x * 2^(63 - j) modulo 2^64."""
    a, b = c.operands(a, b)
    return c.op("logical_and", a, b) if c.dtype(a) == DType.BOOL else _common(c, a, b)


@rule("bitwise_or.Tensor", "bitwise_or.Scalar")
def bitwise_or(c: Context, a: Any, b: Any) -> Value:
    """a + b - (a & b), in integers."""
    a, b = c.operands(a, b)
    if c.dtype(a) == DType.BOOL:
        return c.op("logical_or", a, b)
    return c.op("sub", c.op("add", a, b), _common(c, a, b))


@rule("bitwise_xor.Tensor", "bitwise_xor.Scalar")
def bitwise_xor(c: Context, a: Any, b: Any) -> Value:
    """a + b - 2 (a & b), in integers."""
    a, b = c.operands(a, b)
    if c.dtype(a) == DType.BOOL:
        return xor(c, a, b)
    return c.op("sub", c.op("add", a, b), c.op("mul", c.i64(2), _common(c, a, b)))


@rule("bitwise_not")
def bitwise_not(c: Context, x: Value) -> Value:
    """-1 - x of integers, 255 - x of unsigned bytes."""
    if c.dtype(x) == DType.BOOL:
        return c.op("logical_not", x)
    return c.op("sub", c.i64(255 if c.node.meta["val"].dtype == torch.uint8 else -1), x)


def _common(c: Context, a: Value, b: Value) -> Value:
    """a & b of int64."""
    worths = torch.ones(_BITS, dtype=torch.int64) << torch.arange(_BITS)
    in_both = c.op("logical_and", _bits(c, a, worths), _bits(c, b, worths))
    weighed = c.op("mul", c.op("to_i64", in_both), c.literal(worths))
    rank = c.rank(weighed)
    return c.squeeze(c.op("sum_i64", weighed, dims=(rank - 1,)), [rank - 1])


def _bits(c: Context, x: Value, worths: torch.Tensor) -> Value:
    """bool[..., 64], the lowest first."""
    wide = c.builder.reshape(x, (*c.shape(x), 1))
    return c.op("lt", c.op("mul", wide, c.literal(worths.flip(0))), c.i64(0))
