"""Numbers of Python that a step takes out of its tensors (`.item()`), and what it computes from them.

Such a number is a value without axes: FP32, int64 or bool. A comparison with a constant is that of the exact numbers,
as Python's is; arithmetic is that of tensors, each result rounded to FP32, where Python's has FP64."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.rule_table import Context, rule, scalar_dtype, wider
from roundlog.program import DType

Operand = Value | float | int | bool
Operation = Callable[..., Value]

_TAKERS = ("add", "sub", "rsub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "full", "full_like", "scalar_tensor")
"""ATen operators that take such a number as one of their first two arguments."""


@rule("_local_scalar_dense")
def number_of(c: Context, x: Value) -> Value:
    return c.builder.reshape(x, ())


def is_number(node: Any) -> bool:
    """Whether a graph node stands for a number of Python."""
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), kinds)


def refuse_numbers(node: fx.Node, base: str) -> None:
    """Raises CaptureError for an operator that takes a number out of a tensor where only one that is known can stand.
    base: the name of the operator, without its overload."""
    numbers = [source for source in node.all_input_nodes if is_number(source)]
    at_places = [argument for argument in node.args[:2] if is_number(argument)]
    divides = base == "div" and (len(node.args) > 2 or bool(node.kwargs))
    if numbers and (base not in _TAKERS or len(at_places) != len(numbers) or divides):
        raise CaptureError(
            "takes a number out of a tensor (.item(), float(), .tolist()): compute with the tensor itself"
        )


def _both(c: Context, a: Operand, b: Operand) -> tuple[Value, Value]:
    dtype = wider(*(c.dtype(x) if isinstance(x, Value) else scalar_dtype(x) for x in (a, b)))
    one, two = (c.builder.convert(x, dtype) if isinstance(x, Value) else c.builder.constant(x, dtype) for x in (a, b))
    return one, two


def _arithmetic(name: str) -> Operation:
    def compute(c: Context, a: Operand, b: Operand) -> Value:
        a, b = _both(c, a, b)
        if c.dtype(a) == DType.BOOL:  # Python counts with them
            a, b = c.builder.convert(a, DType.I64), c.builder.convert(b, DType.I64)
        return c.op(name, a, b)

    return compute


def _quotient(c: Context, a: Operand, b: Operand) -> Value:
    if isinstance(b, Value):  # Python raises an error for a zero
        raise CaptureError("divides by a number that it takes out of a tensor: divide by the tensor itself")
    a = c.builder.convert(a, DType.F32) if isinstance(a, Value) else c.f32(a)
    return c.op("div", a, c.f32(b))


def _compared(name: str, *, swap: bool = False, negate: bool = False) -> Operation:
    """a < b, a <= b or a == b; swap: b and a instead."""

    def compute(c: Context, a: Operand, b: Operand) -> Value:
        if swap:
            a, b = b, a
        if isinstance(a, Value) and not isinstance(b, Value) and c.dtype(a) == DType.F32:
            result = _below(c, name, a, float(b))
        elif isinstance(b, Value) and not isinstance(a, Value) and c.dtype(b) == DType.F32:
            result = _above(c, name, float(a), b)
        else:
            result = c.op(name, *_both(c, a, b))
        return c.op("logical_not", result) if negate else result

    return compute


def _below(c: Context, name: str, x: Value, limit: float) -> Value:
    """x < limit, x <= limit or x == limit. FP32 numbers below a limit are those below the next FP32 number above it."""
    if name == "eq" and _rounded(limit, up=True) != limit:
        return c.builder.constant(False, DType.BOOL)
    return c.op(name, x, c.f32(_rounded(limit, up=name == "lt")))


def _above(c: Context, name: str, limit: float, x: Value) -> Value:
    if name == "eq":
        return _below(c, name, x, limit)
    return c.op(name, c.f32(_rounded(limit, up=name == "le")), x)


def _rounded(number: float, *, up: bool) -> float:
    """The next FP32 number that is not below, or not above."""
    with np.errstate(over="ignore"):
        near = np.float32(number)
    if up and float(near) < number:
        near = np.nextafter(near, np.float32(np.inf))
    if not up and float(near) > number:
        near = np.nextafter(near, np.float32(-np.inf))
    return float(near)


def _logical(name: str) -> Operation:
    def compute(c: Context, *xs: Operand) -> Value:
        values = [x if isinstance(x, Value) else c.builder.constant(x, scalar_dtype(x)) for x in xs]
        if any(c.dtype(x) != DType.BOOL for x in values):
            raise CaptureError("combines the bits of numbers that it takes out of tensors: compute with the tensors")
        return c.op(name, *values)

    return compute


def _of_one(name: str) -> Operation:
    return lambda c, x: c.op(name, c.builder.convert(x, DType.I64) if c.dtype(x) == DType.BOOL else x)


OF_NUMBERS: dict[Any, Operation] = {
    operator.add: _arithmetic("add"),
    operator.sub: _arithmetic("sub"),
    operator.mul: _arithmetic("mul"),
    operator.truediv: _quotient,
    operator.neg: _of_one("neg"),
    operator.pos: lambda c, x: x,
    operator.abs: _of_one("abs"),
    operator.lt: _compared("lt"),
    operator.le: _compared("le"),
    operator.gt: _compared("lt", swap=True),
    operator.ge: _compared("le", swap=True),
    operator.eq: _compared("eq"),
    operator.ne: _compared("eq", negate=True),
    operator.and_: _logical("logical_and"),
    operator.or_: _logical("logical_or"),
    torch.sym_not: _logical("logical_not"),
    torch.sym_float: lambda c, x: c.builder.convert(x, DType.F32),
}
"""Function of Python's, or of PyTorch's for its symbols -> rule(context, *operands)."""
