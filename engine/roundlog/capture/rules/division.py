"""Quotients without their fraction, and what they leave over."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.powers import trunc
from roundlog.capture.rules.rule_table import Context, rule
from roundlog.program import DType

MAX_QUOTIENT = 2.0**24
"""Below, every integer is an FP32 number."""


@rule("remainder", at_capture=True)
def remainder(c: Context, a: Any, b: Any) -> Value:
    """a - floor(a / b) b, correctly rounded; FP32 quotients of 2^24 and more stop the run. Integers by a constant above
    zero. NaN as PyTorch has it."""
    a, b, divisor = _operands(c, a, b)
    if divisor is not None:
        return c.op("sub", a, c.op("mul", _floor_of_integers(c, a, divisor), c.i64(divisor)))
    _, rest = _divided(c, a, b, bounded=True)
    return c.op("where", _not_towards(c, rest, b), c.op("add", rest, b), rest)


@rule("fmod", at_capture=True)
def fmod(c: Context, a: Any, b: Any) -> Value:
    """a - trunc(a / b) b, exact; FP32 quotients of 2^24 and more stop the run. Integers by a constant above zero."""
    a, b, divisor = _operands(c, a, b)
    if divisor is not None:
        return c.op("sub", a, c.op("mul", _truncated_of_integers(c, a, divisor), c.i64(divisor)))
    return _divided(c, a, b, bounded=True)[1]


@rule("div.Tensor_mode", "div.Scalar_mode", at_capture=True)
def divide(c: Context, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    """trunc: of the rounded FP32 quotient; floor: of the exact one below 2^24. Integers by a constant above zero."""
    if rounding_mode is None:
        return c.op("div", *c.operands(a, b, floating=True))
    a, b, divisor = _operands(c, a, b)
    if divisor is not None:
        whole = _floor_of_integers if rounding_mode == "floor" else _truncated_of_integers
        return whole(c, a, divisor)
    if rounding_mode == "trunc":
        return trunc(c, c.op("div", a, b))
    quotient, rest = _divided(c, a, b, bounded=False)
    lower = c.op("sub", quotient, c.f32(1.0))
    below = c.op("logical_and", _not_towards(c, rest, b), _is_fine(c, quotient))
    return c.op("where", below, lower, quotient)


def _operands(c: Context, a: Any, b: Any) -> tuple[Value, Value, int | None]:
    """Both operands in one dtype, and the divisor if they are integers."""
    given = b
    a, b = c.operands(a, b)
    if c.dtype(a) == DType.F32:
        return a, b, None
    known = c.known(c.node.args[1])
    if not c.is_tensor(1):
        divisor = int(given)
    elif known is not None and known.numel() == 1:
        divisor = int(known)
    else:
        raise CaptureError("divides integers by a tensor: divide by a number, or convert to float32")
    if divisor <= 0:
        raise CaptureError(f"divides integers by {divisor}: only numbers above zero are supported")
    shape = torch.broadcast_shapes(c.shape(a), c.shape(b))
    return c.builder.expand(c.builder.convert(a, DType.I64), shape), b, divisor


def _divided(c: Context, a: Value, b: Value, *, bounded: bool) -> tuple[Value, Value]:
    """trunc(a / b) and a - trunc(a / b) b, both exact if the quotient is below 2^24. bounded: else the run stops, but
    for NaN, an infinite a or a zero b, where the rest is NaN. An infinite b leaves a finite a as it is.

    The rounded quotient is never below the integer that it should reach; where it was rounded up to one, what is left
    over has the wrong sign, and one divisor too much was taken off. What is left over is an FP32 number in both cases:
    a multiple of the last place of a or b, and not larger than either allows."""
    quotient = trunc(c, c.op("div", a, b))
    if bounded:
        number = c.op("logical_and", _is_finite(c, a), c.op("lt", c.f32(0.0), c.op("abs", b)))
        fine = c.op("logical_or", _is_fine(c, quotient), c.op("logical_not", number))
        quotient = c.op("mul", quotient, c.builder.required(fine, "a quotient of 2^24 or more"))
    rest = _add_product(c, a, c.op("neg", quotient), b)
    endless = c.op("logical_and", c.op("eq", c.op("abs", b), c.f32(float("inf"))), _is_finite(c, a))
    rest = c.op("where", endless, a, rest)
    zero, one = c.f32(0.0), c.f32(1.0)
    negative = c.op("lt", a, zero)
    beyond = c.op("where", negative, c.op("lt", zero, rest), c.op("lt", rest, zero))
    size = c.op("abs", b)
    step = c.op("where", c.op("lt", quotient, zero), c.op("neg", one), one)
    nearer = c.op("where", beyond, c.op("sub", quotient, step), quotient)
    return nearer, c.op("where", beyond, c.op("add", rest, c.op("where", negative, c.op("neg", size), size)), rest)


def _add_product(c: Context, a: Value, x: Value, y: Value) -> Value:
    """a + x y, rounded once: the contraction of (a, x) with (1, y)."""
    shape = torch.broadcast_shapes(c.shape(a), c.shape(x), c.shape(y))
    count = prod(shape)
    a, x, y = (c.builder.reshape(c.builder.expand(item, shape), (count, 1, 1)) for item in (a, x, y))
    ones = c.builder.constant(1.0, DType.F32, (count, 1, 1))
    left, right = c.op("cat", a, x, dim=2), c.op("cat", ones, y, dim=1)
    return c.builder.reshape(c.op("matmul", left, right), shape)


def _is_finite(c: Context, x: Value) -> Value:
    return c.op("lt", c.op("abs", x), c.f32(float("inf")))


def _is_fine(c: Context, quotient: Value) -> Value:
    return c.op("lt", c.op("abs", quotient), c.f32(MAX_QUOTIENT))


def _not_towards(c: Context, rest: Value, b: Value) -> Value:
    """Whether a rest other than zero has not the sign of the divisor."""
    zero = c.f32(0.0)
    return c.op("where", c.op("lt", b, zero), c.op("lt", zero, rest), c.op("lt", rest, zero))


def _floor_of_integers(c: Context, a: Value, divisor: int) -> Value:
    """Floor of a / divisor, by long division in hexadecimal: a digit is how many of 1 .. 15 times its worth fit into
    what is left. Below zero, floor(a / b) = -1 - floor((-1 - a) / b), which no int64 overflows."""
    if divisor == 1:
        return a
    minus = c.i64(-1)
    negative = c.op("lt", a, c.i64(0))
    rest = c.op("where", negative, c.op("sub", minus, a), a)
    shape, last = c.shape(a), c.rank(a)
    quotient = c.i64(0)
    for place in range(15, -1, -1):
        worth = divisor * 16**place
        multiples = [worth * digit for digit in range(1, 16) if worth * digit < 2**63]
        if not multiples:
            continue
        wide = c.builder.reshape(rest, (*shape, 1))
        fits = c.op("to_i64", c.op("le", c.literal(torch.tensor(multiples)), wide))
        digit = c.builder.reshape(c.op("sum_i64", fits, dims=(last,)), shape)
        rest = c.op("sub", rest, c.op("mul", digit, c.i64(worth)))
        quotient = c.op("add", quotient, c.op("mul", digit, c.i64(16**place)))
    return c.op("where", negative, c.op("sub", minus, quotient), quotient)


def _truncated_of_integers(c: Context, a: Value, divisor: int) -> Value:
    floor = _floor_of_integers(c, a, divisor)
    whole = c.op("eq", c.op("mul", floor, c.i64(divisor)), a)
    up = c.op("logical_and", c.op("lt", a, c.i64(0)), c.op("logical_not", whole))
    return c.op("add", floor, c.op("to_i64", up))
