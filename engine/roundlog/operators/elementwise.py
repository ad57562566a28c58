"""Elementwise operators: exact ones, and correctly rounded elementary functions of one FP32 number.

Exact ones have one answer by IEEE 754, and every backend is made to give it.

Results of fewer than 32 bits are the mathematical value, rounded once. FP32 first and the narrower format then would
round twice. What FP64 holds exactly, or comes to by one correct rounding that cannot land on a midpoint, is rounded
from there; sums are rounded to odd in FP64 first (Boldo and Melquiond 2008), because a 24-bit operand may itself be a
midpoint of the narrower format, and the other operand too small to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from roundlog.arithmetic import as_dtype, as_float32, round_function, round_signed
from roundlog.arithmetic.formats import interval_factor, torch_dtype
from roundlog.definitions import FLOATS, Family, OperatorKind, of_family
from roundlog.kernels import elementary
from roundlog.kernels.marking import AmbiguousPart, mark_flat
from roundlog.kernels.number_words import nearest_bf16
from roundlog.kernels.scratch import empty, scratch
from roundlog.kernels.threads import one_by_one
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format
from roundlog.operators.bounds import Ambiguous, Bound, RelativeBound
from roundlog.operators.registry import (
    ROUNDING_BYTES,
    Attributes,
    Direct,
    Inexact,
    Operator,
    Tensors,
    Types,
    broadcast,
    enter,
    short_bytes,
)
from roundlog.program import DType, Program, ProgramError, TensorType


class Elementwise(Direct):
    """Operators whose inputs are broadcast together, by a function of them."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self._function = function

    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        return broadcast(*(kind.shape for kind in inputs))

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        # Numbers of 16 bits are rounded a piece at a time.
        if output.dtype.is_short:
            return 2 * ROUNDING_BYTES * min(output.numel, _PIECE)
        return short_bytes(inputs, output)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return self._function(*inputs)


def _sqrt(x: torch.Tensor) -> torch.Tensor:
    # PyTorch's FP32 sqrt on the CPU is not correctly rounded. FP64's, rounded to FP32, is: 53 >= 2 * 24 + 2.
    return x.to(torch.float64).sqrt_().to(torch.float32)


def _to_f32(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32) if x.is_floating_point() else integer_as_f64(x).to(torch.float32)


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


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "sqrt": _sqrt,
    "neg": torch.neg,
    "abs": torch.abs,
    "floor": torch.floor,
    # Comparisons decide which zero comes out, so that it does not depend on the backend. Nothing is greater than NaN.
    "maximum": lambda a, b: torch.where((a > b) | (a != a), a, b),
    "minimum": lambda a, b: torch.where((a < b) | (a != a), a, b),
    "eq": torch.eq,
    "lt": torch.lt,
    "le": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_not": torch.logical_not,
    "where": torch.where,
    "to_f32": _to_f32,
    "to_i64": lambda x: x.to(torch.int64),
    "to_bf16": lambda x: convert(x, BFLOAT16),
    "to_f16": lambda x: convert(x, FLOAT16),
}

for _definition in of_family(Family.MAP):
    enter(Elementwise(KERNELS[_definition.name]), _definition)


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


_CONVERSIONS = {f"to_{dtype}" for dtype in FLOATS}

_PIECE = 1 << 15
"""Elements that are computed at once, where a result has more."""


def check_narrow(program: Program, operators: Sequence[Operator], f32: Format) -> None:
    """Raises ProgramError for an exact operator that is not known to round to the format of its output, if that is
    another one than FP32. f32: that of FP32 values."""
    known = {*_WIDE, *_CONVERSIONS}
    for index, (node, op) in enumerate(zip(program.nodes, operators, strict=True)):
        format = node.type.dtype.number_format(f32)
        if format in (None, FLOAT32) or op.kind != OperatorKind.EXACT or op.definition.selects or node.op in known:
            continue
        if isinstance(op, Direct) and op.reads_short:
            continue
        remedy = "use rounding_bits 32" if node.type.dtype is DType.F32 else "compute it in f32, and convert the result"
        raise ProgramError(f"{program.describe(index)} cannot be rounded to {format.width} bits yet: {remedy}")


def compute_narrow(operator: Direct, inputs: Tensors, attributes: Attributes, format: Format | None) -> torch.Tensor:
    """`operator.compute`, and if the operator is exact and gives numbers of a format, its mathematical value rounded
    once to it, to nearest even. The inputs may be of different formats. Movement copies bits as they are."""
    if operator.kind != OperatorKind.EXACT or operator.reads_short:
        return operator.compute(inputs, attributes)
    if format is None or format == FLOAT32:
        return operator.compute([as_float32(x) for x in inputs], attributes)
    if operator.name in _CONVERSIONS:
        return convert(as_float32(inputs[0]), format)
    wide = _WIDE.get(operator.name)

    def rounded(*inputs: torch.Tensor) -> torch.Tensor:
        exact = [as_float32(x) for x in inputs]
        value = wide(*(x.double() for x in exact)) if wide else operator.compute(exact, attributes).double()
        return as_dtype(round_signed(value, format), format)

    shape = torch.broadcast_shapes(*(x.shape for x in inputs))
    if not isinstance(operator, Elementwise) or shape.numel() <= _PIECE or inputs[0].device.type != "cpu":
        return rounded(*inputs)
    result = torch.empty(shape, dtype=torch_dtype(format))
    _fill(result, [x.expand(shape) for x in inputs], rounded)
    return result


def _fill(result: torch.Tensor, inputs: Tensors, function: Callable[..., torch.Tensor]) -> None:
    """Compute a result in pieces that stay in a processor's cache. inputs: of its shape."""
    rows = _PIECE * len(result) // result.numel()
    for part, *given in zip(*(x.split(max(rows, 1)) for x in (result, *inputs)), strict=True):
        if rows:
            part.copy_(function(*given))
        else:
            _fill(part[0], [x[0] for x in given], function)


def convert(x: torch.Tensor, format: Format) -> torch.Tensor:
    """Numbers of any format, integers or bool -> the nearest numbers of a format, ties to even; a zero keeps its
    sign."""
    if format == BFLOAT16 and x.dtype == torch.float32:
        return nearest_bf16(x) if x.device.type == "cpu" and x.is_contiguous() else _upper_halves(x)
    wide = x.to(torch.float64) if x.is_floating_point() else integer_as_f64(x)
    return as_dtype(round_signed(wide, format), format)


def _upper_halves(x: torch.Tensor) -> torch.Tensor:
    """FP32 numbers as the nearest of BF16, ties to even, whose words are upper halves of FP32's: a carry goes into the
    exponent, as rounding up does, and becomes an infinity behind the largest number."""
    words = x.view(torch.int32)
    nearest = (words >> 16).bitwise_and_(1).add_(words).add_(0x7FFF).bitwise_right_shift_(16)
    return nearest.masked_fill_(x != x, BFLOAT16.nan).to(torch.int16).view(torch.bfloat16)


ABSOLUTE_BOUND = 2.0**-1000
"""Magnitude below which FP64 itself underflows, far below anything that FP32 can see."""


_BLOCK = 1 << 16
"""Elements that are widened, computed and rounded while they are in the cache."""


class ElementaryFunction(Inexact):
    """An elementary function, by a function of PyTorch's of the FP64 argument, which takes `out`, too."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self._function = function

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        # PyTorch's functions give a transposed input's value transposed; what rounds it takes it element after element.
        return self._function(inputs[0].to(torch.float64)).contiguous()

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return RelativeBound(self.definition.relative_error, ABSOLUTE_BOUND)

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        x = inputs[0]
        if x.device.type != "cpu" or not x.numel():
            return super().certify(inputs, attributes, scale)
        rounded, relative = empty(x.shape, torch.float32), self.definition.relative_error
        source, out, factor = x.reshape(-1), rounded.view(-1).numpy(), interval_factor(scale)
        if self.name in elementary.FUNCTIONS:
            near = elementary.mark_function(
                self.name, source.numpy(), factor, out, relative=relative, absolute=ABSOLUTE_BOUND
            )
            return rounded, Ambiguous.collect(near)
        found: list[AmbiguousPart] = []

        def block(number: int) -> None:
            first, last = number * _BLOCK, min((number + 1) * _BLOCK, len(source))
            y = scratch("y", last - first)
            y.copy_(source[first:last])
            self._function(y, out=y)
            target = out[first:last]
            found.extend(
                mark_flat(y.numpy(), None, factor, target, first=first, relative=relative, absolute=ABSOLUTE_BOUND)
            )

        # Such a function costs about eight times what reading its argument does.
        one_by_one(block, -(-len(source) // _BLOCK), 8 * len(source))
        return rounded, Ambiguous.collect(found)

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        x = inputs[0]
        chosen = x.reshape(-1)[elements.to(x.device)].cpu().numpy()
        return torch.from_numpy(round_function(self.name, chosen, format))


FUNCTION_KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
}

for _definition in of_family(Family.FUNCTION):
    enter(ElementaryFunction(FUNCTION_KERNELS[_definition.name]), _definition)
