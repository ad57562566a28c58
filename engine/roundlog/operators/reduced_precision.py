"""Exact operators whose results have fewer than 32 bits: the mathematical value, rounded once.

FP32 first and the narrower format then would round twice. What FP64 holds exactly, or comes to by one correct rounding
that cannot land on a midpoint, is rounded from there; sums are rounded to odd in FP64 first (Boldo and Melquiond 2008),
because a 24-bit operand may itself be a midpoint of the narrower format, and the other operand too small to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from roundlog.arithmetic import FULL_BITS, round_signed
from roundlog.operators.elementwise import integer_as_f64
from roundlog.operators.registry import Attributes, Direct, Operator, OperatorKind, Tensors
from roundlog.program import DType, Program, ProgramError

_SELECTING = frozenset({"neg", "abs", "floor", "maximum", "minimum", "amax", "amin"})
"""Operators whose FP32 result is the mathematical value."""


def _add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    s = a + b
    # TwoSum (Knuth): s + error = a + b exactly.
    v = s - a
    error = (a - (s - v)) + (b - v)
    words = s.view(torch.int64)
    inexact = (error != 0) & error.isfinite() & (words & 1 == 0)
    # The odd one of the two FP64 numbers around the sum: away from zero if the rest has the sign of s, else towards.
    step = torch.where((error > 0) == (s > 0), 1, -1)
    return torch.where(inexact, words + step, words).view(torch.float64)


_WIDE: dict[str, Callable[..., torch.Tensor]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, -b),
    # 48 bits: exact.
    "mul": torch.mul,
    # With operands of 24 bits, a quotient or root that is no number of 25 bits is at least 2^-50 of itself away.
    "div": torch.div,
    "sqrt": torch.sqrt,
}


def check_narrow(program: Program, operators: Sequence[Operator], bits: int) -> None:
    """Raises ProgramError for an exact operator that is not known to round to so few bits."""
    if bits == FULL_BITS:
        return
    known = {*_SELECTING, *_WIDE, "to_f32"}
    for index, (node, op) in enumerate(zip(program.nodes, operators, strict=True)):
        if op.kind == OperatorKind.EXACT and node.type.dtype == DType.F32 and node.op not in known:
            raise ProgramError(f"{program.describe(index)} cannot be rounded to {bits} bits yet: use rounding_bits 32")


def compute_narrow(operator: Direct, inputs: Tensors, attributes: Attributes, bits: int) -> torch.Tensor:
    """`operator.compute`, and if the operator is exact and gives FP32, its mathematical value rounded once to `bits`
    bits, to nearest even. Movement copies bits as they are."""
    if bits == FULL_BITS or operator.kind != OperatorKind.EXACT:
        return operator.compute(inputs, attributes)
    if operator.name == "to_f32":
        return round_signed(integer_as_f64(inputs[0]), bits)
    wide = _WIDE.get(operator.name)
    if wide is not None and inputs[0].dtype == torch.float32:
        return round_signed(wide(*(x.to(torch.float64) for x in inputs)), bits)
    result = operator.compute(inputs, attributes)
    return round_signed(result.to(torch.float64), bits) if result.dtype == torch.float32 else result
