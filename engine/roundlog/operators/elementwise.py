"""Exact elementwise operators: IEEE 754 gives one answer, and every backend is made to give it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from roundlog.operators.registry import (
    Attributes,
    Direct,
    OperatorKind,
    Tensors,
    Types,
    broadcast,
    need_attributes,
    need_inputs,
    register,
)
from roundlog.program import DType, ProgramError, TensorType

_NUMBERS = (DType.F32, DType.I64)


class Elementwise(Direct):
    """Inputs of one dtype, broadcast together."""

    kind = OperatorKind.EXACT
    arity = 2
    accepts: tuple[DType, ...] = _NUMBERS
    gives: DType | None = None
    """The output's dtype; None: that of the inputs."""

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_attributes(attributes)
        need_inputs(inputs, *[inputs[0].dtype if inputs else None] * self.arity)
        dtype = inputs[0].dtype
        if dtype not in self.accepts:
            raise ProgramError(f"does not apply to {inputs[0]}")
        return TensorType(broadcast(*(kind.shape for kind in inputs)), self.gives or dtype)


def _define(
    name: str,
    doc: str,
    function: Callable[..., torch.Tensor],
    *,
    inputs: int = 2,
    accepts: tuple[DType, ...] = _NUMBERS,
    gives: DType | None = None,
) -> None:
    class Defined(Elementwise):
        __doc__ = doc

        def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
            return function(*inputs)

    Defined.__name__ = Defined.__qualname__ = name.title()
    Defined.name, Defined.arity, Defined.accepts, Defined.gives = name, inputs, accepts, gives
    register(Defined)


def _sqrt(x: torch.Tensor) -> torch.Tensor:
    # PyTorch's FP32 sqrt on the CPU is not correctly rounded. FP64's, rounded to FP32, is: 53 >= 2 * 24 + 2.
    return x.to(torch.float64).sqrt_().to(torch.float32)


def _to_f32(x: torch.Tensor) -> torch.Tensor:
    return integer_as_f64(x).to(torch.float32)


def integer_as_f64(x: torch.Tensor) -> torch.Tensor:
    """An int64 or bool as an FP64 number that rounds to any format of at most 32 bits as the integer does."""
    if x.dtype != torch.int64:
        return x.to(torch.float64)
    # Beyond 2^53 a detour through FP64 would round twice, so the high and low halves are split: both are exact in
    # FP64, and folding the low half's non-zeroness into a sticky bit keeps the direction of the rounding.
    high = (x >> 11) << 11
    sticky = ((x - high) != 0).to(torch.int64) << 10
    wide = torch.where(x.abs() < 2**53, x, high + sticky)
    return wide.to(torch.float64)


_F = (DType.F32,)
_B = (DType.BOOL,)
_define("add", "add(a, b): a + b. FP32 rounded to nearest even, int64 modulo 2^64.", torch.add)
_define("sub", "sub(a, b): a - b. FP32 rounded to nearest even, int64 modulo 2^64.", torch.sub)
_define("mul", "mul(a, b): a * b. FP32 rounded to nearest even, int64 modulo 2^64.", torch.mul)
_define("div", "div(a, b): a / b, FP32, rounded to nearest even.", torch.div, accepts=_F)
_define("sqrt", "sqrt(x): the square root, FP32, rounded to nearest even.", _sqrt, inputs=1, accepts=_F)
_define("neg", "neg(x): x with its sign flipped (int64: modulo 2^64).", torch.neg, inputs=1)
_define("abs", "abs(x): x with its sign cleared (int64: modulo 2^64).", torch.abs, inputs=1)
_define("floor", "floor(x): the largest integer not above x, FP32.", torch.floor, inputs=1, accepts=_F)
# By comparisons, so that which zero comes out does not depend on the backend. Nothing is greater than NaN.
_define(
    "maximum",
    "maximum(a, b): a if a > b or a is NaN, else b; so NaN if an operand is.",
    lambda a, b: torch.where((a > b) | (a != a), a, b),
)
_define(
    "minimum",
    "minimum(a, b): a if a < b or a is NaN, else b; so NaN if an operand is.",
    lambda a, b: torch.where((a < b) | (a != a), a, b),
)
_define("eq", "eq(a, b): a = b, as bool.", torch.eq, accepts=(*_NUMBERS, DType.BOOL), gives=DType.BOOL)
_define("lt", "lt(a, b): a < b, as bool.", torch.lt, gives=DType.BOOL)
_define("le", "le(a, b): a <= b, as bool.", torch.le, gives=DType.BOOL)
_define("logical_and", "logical_and(a, b).", torch.logical_and, accepts=_B)
_define("logical_or", "logical_or(a, b).", torch.logical_or, accepts=_B)
_define("logical_not", "logical_not(x).", torch.logical_not, inputs=1, accepts=_B)
_define(
    "to_f32",
    "to_f32(x): an int64 (rounded to nearest even) or bool (0 or 1) as FP32.",
    _to_f32,
    inputs=1,
    accepts=(DType.I64, DType.BOOL),
    gives=DType.F32,
)
_define(
    "to_i64",
    "to_i64(x): a bool as 0 or 1.",
    lambda x: x.to(torch.int64),
    inputs=1,
    accepts=_B,
    gives=DType.I64,
)
