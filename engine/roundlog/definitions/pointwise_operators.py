"""Definitions of the operators that work element by element. A new one begins with a row here (docs/contributing.md).

The codes are part of descriptors, and so of what the contract and every recorded program mean: a code that has been
given stays. Opcodes live no longer than a process."""

from __future__ import annotations

from roundlog.definitions.definition import Family, InputReads, OperatorDefinition, OperatorKind, Signature
from roundlog.program import DType

_F32, _I64, _BOOL = DType.F32, DType.I64, DType.BOOL

RELATIVE_ERROR = 2.0**-49
"""Error that a vendor's FP64 function may have: 8 ulp. SLEEF and MKL promise 1 ulp (their high-accuracy variants, which
PyTorch uses), CUDA's math library at most 2 for these; glibc is below 1 except erf at 1. For sin and cos they promise
it of every argument, however large: by Payne and Hanek's reduction. Of the loops that stand in for them on the CPU
(`roundlog.kernels.elementary`) it is proven."""


def _exact(
    name: str,
    meaning: str,
    arity: int,
    *,
    gives: DType | None = None,
    opcode: int | None = None,
    selects: bool = False,
    **codes: int,
) -> OperatorDefinition:
    """An exact function of an element of every input, all of one dtype: codes of MAP by dtype. gives: the output's
    dtype; None: that of the inputs."""
    dtypes = {DType(dtype): code for dtype, code in codes.items()}
    return OperatorDefinition(
        name=name,
        meaning=meaning,
        kind=OperatorKind.EXACT,
        family=Family.MAP,
        formats=tuple(Signature((dtype,) * arity, gives or dtype, code) for dtype, code in dtypes.items()),
        reads=InputReads.PLACE,
        opcode=opcode,
        selects=selects,
    )


def _function(name: str, meaning: str, code: int) -> OperatorDefinition:
    """An elementary function of one FP32 number, correctly rounded; zero is +0."""
    return OperatorDefinition(
        name=name,
        meaning=meaning,
        kind=OperatorKind.INEXACT,
        family=Family.FUNCTION,
        formats=(Signature((_F32,), _F32, code),),
        reads=InputReads.PLACE,
        relative_error=RELATIVE_ERROR,
    )


ELEMENTWISE = (
    _exact("add", "add(a, b): a + b. FP32 rounded to nearest even, int64 modulo 2^64.", 2, opcode=0, f32=0, i64=13),
    _exact("sub", "sub(a, b): a - b. FP32 rounded to nearest even, int64 modulo 2^64.", 2, opcode=1, f32=1, i64=14),
    _exact("mul", "mul(a, b): a * b. FP32 rounded to nearest even, int64 modulo 2^64.", 2, opcode=2, f32=2, i64=15),
    _exact("div", "div(a, b): a / b, FP32, rounded to nearest even.", 2, opcode=3, f32=3),
    _exact("sqrt", "sqrt(x): the square root, FP32, rounded to nearest even.", 1, opcode=4, f32=4),
    _exact("neg", "neg(x): x with its sign flipped (int64: modulo 2^64).", 1, opcode=5, selects=True, f32=5, i64=16),
    _exact("abs", "abs(x): x with its sign cleared (int64: modulo 2^64).", 1, opcode=6, selects=True, f32=6, i64=17),
    _exact("floor", "floor(x): the largest integer not above x, FP32.", 1, opcode=7, selects=True, f32=7),
    _exact(
        "maximum",
        "maximum(a, b): a if a > b or a is NaN, else b; so NaN if an operand is.",
        2,
        opcode=8,
        selects=True,
        f32=8,
        i64=18,
    ),
    _exact(
        "minimum",
        "minimum(a, b): a if a < b or a is NaN, else b; so NaN if an operand is.",
        2,
        opcode=9,
        selects=True,
        f32=9,
        i64=19,
    ),
    _exact("eq", "eq(a, b): a = b, as bool.", 2, gives=_BOOL, opcode=10, f32=10, i64=20, bool=23),
    _exact("lt", "lt(a, b): a < b, as bool.", 2, gives=_BOOL, opcode=11, f32=11, i64=21),
    _exact("le", "le(a, b): a <= b, as bool.", 2, gives=_BOOL, opcode=12, f32=12, i64=22),
    _exact("logical_and", "logical_and(a, b).", 2, opcode=13, bool=24),
    _exact("logical_or", "logical_or(a, b).", 2, opcode=14, bool=25),
    _exact("logical_not", "logical_not(x).", 1, opcode=15, bool=26),
    # On a tape a bool is 1.0 or 0.0 already: its instruction copies.
    _exact(
        "to_f32",
        "to_f32(x): an int64 (rounded to nearest even) or bool (0 or 1) as FP32.",
        1,
        gives=_F32,
        opcode=17,
        i64=28,
        bool=29,
    ),
    _exact("to_i64", "to_i64(x): a bool as 0 or 1.", 1, gives=_I64, bool=30),
    OperatorDefinition(
        name="where",
        meaning="where(c, a, b): a where c, else b, broadcast; c is bool, a and b have one dtype.",
        kind=OperatorKind.MOVEMENT,
        family=Family.MAP,
        formats=(Signature((_BOOL, None, None), None, 27),),
        reads=InputReads.PLACE,
        opcode=16,
    ),
)

FUNCTIONS = (
    _function("exp", "exp(x): e to the power of x, FP32.", 0),
    _function("expm1", "expm1(x): e to the power of x, less one, FP32.", 1),
    _function("log", "log(x): the natural logarithm, FP32; x > 0.", 2),
    _function("log1p", "log1p(x): the natural logarithm of 1 + x, FP32; x > -1.", 3),
    _function("tanh", "tanh(x): the hyperbolic tangent, FP32.", 4),
    _function("erf", "erf(x): the error function, FP32.", 5),
    _function("sin", "sin(x): the sine of x radians, FP32.", 6),
    _function("cos", "cos(x): the cosine of x radians, FP32.", 7),
)
