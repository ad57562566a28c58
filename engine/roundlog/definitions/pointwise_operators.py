"""Definitions of the operators that work element by element. A new one begins with a row here (docs/contributing.md).

The codes are part of descriptors, and so of what the contract and every recorded program mean: a code that has been
given stays. Opcodes live no longer than a process."""

from __future__ import annotations

from roundlog.definitions.definition import FLOATS, Family, InputReads, OperatorDefinition, OperatorKind, Signature
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
    """An exact function of an element of every input, all of one dtype: codes of MAP by dtype, `floats` for all of
    FLOATS. gives: the output's dtype; None: that of the inputs."""
    dtypes = {dtype: code for name, code in codes.items() for dtype in (FLOATS if name == "floats" else (DType(name),))}
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


def _conversion(to: DType, words: str, opcode: int | None = None) -> OperatorDefinition:
    """The nearest number of a format."""
    others = tuple(dtype for dtype in FLOATS if dtype != to)
    codes = {_I64: 28, _BOOL: 29, **dict.fromkeys(others, 31)}
    return OperatorDefinition(
        name=f"to_{to}",
        meaning=f"to_{to}(x): a number of another format or an int64, rounded to nearest even, or a bool (0 or 1), as "
        f"{words}.",
        kind=OperatorKind.EXACT,
        family=Family.MAP,
        formats=tuple(Signature((dtype,), to, code) for dtype, code in codes.items()),
        reads=InputReads.PLACE,
        opcode=opcode,
    )


def _function(name: str, meaning: str, code: int) -> OperatorDefinition:
    """An elementary function of one number, correctly rounded; zero is +0."""
    return OperatorDefinition(
        name=name,
        meaning=meaning,
        kind=OperatorKind.INEXACT,
        family=Family.FUNCTION,
        formats=tuple(Signature((dtype,), dtype, code) for dtype in FLOATS),
        reads=InputReads.PLACE,
        relative_error=RELATIVE_ERROR,
    )


ELEMENTWISE = (
    _exact(
        "add",
        "add(a, b): a + b; a number rounded to nearest even, an int64 modulo 2^64.",
        2,
        opcode=0,
        floats=0,
        i64=13,
    ),
    _exact(
        "sub",
        "sub(a, b): a - b; a number rounded to nearest even, an int64 modulo 2^64.",
        2,
        opcode=1,
        floats=1,
        i64=14,
    ),
    _exact(
        "mul",
        "mul(a, b): a * b; a number rounded to nearest even, an int64 modulo 2^64.",
        2,
        opcode=2,
        floats=2,
        i64=15,
    ),
    _exact("div", "div(a, b): a / b, rounded to nearest even.", 2, opcode=3, floats=3),
    _exact("sqrt", "sqrt(x): the square root, rounded to nearest even.", 1, opcode=4, floats=4),
    _exact("neg", "neg(x): x with its sign flipped (int64: modulo 2^64).", 1, opcode=5, selects=True, floats=5, i64=16),
    _exact("abs", "abs(x): x with its sign cleared (int64: modulo 2^64).", 1, opcode=6, selects=True, floats=6, i64=17),
    _exact("floor", "floor(x): the largest integer not above x.", 1, opcode=7, selects=True, floats=7),
    _exact(
        "maximum",
        "maximum(a, b): a if a > b or a is NaN, else b; so NaN if an operand is.",
        2,
        opcode=8,
        selects=True,
        floats=8,
        i64=18,
    ),
    _exact(
        "minimum",
        "minimum(a, b): a if a < b or a is NaN, else b; so NaN if an operand is.",
        2,
        opcode=9,
        selects=True,
        floats=9,
        i64=19,
    ),
    _exact("eq", "eq(a, b): a = b, as bool.", 2, gives=_BOOL, opcode=10, floats=10, i64=20, bool=23),
    _exact("lt", "lt(a, b): a < b, as bool.", 2, gives=_BOOL, opcode=11, floats=11, i64=21),
    _exact("le", "le(a, b): a <= b, as bool.", 2, gives=_BOOL, opcode=12, floats=12, i64=22),
    _exact("logical_and", "logical_and(a, b).", 2, opcode=13, bool=24),
    _exact("logical_or", "logical_or(a, b).", 2, opcode=14, bool=25),
    _exact("logical_not", "logical_not(x).", 1, opcode=15, bool=26),
    # On a tape a bool is 1.0 or 0.0 already: its instruction copies.
    _conversion(_F32, "FP32", opcode=17),
    _conversion(DType.BF16, "BF16", opcode=18),
    _conversion(DType.F16, "FP16"),
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
    _function("exp", "exp(x): e to the power of x.", 0),
    _function("expm1", "expm1(x): e to the power of x, less one.", 1),
    _function("log", "log(x): the natural logarithm; x > 0.", 2),
    _function("log1p", "log1p(x): the natural logarithm of 1 + x; x > -1.", 3),
    _function("tanh", "tanh(x): the hyperbolic tangent.", 4),
    _function("erf", "erf(x): the error function.", 5),
    _function("sin", "sin(x): the sine of x radians.", 6),
    _function("cos", "cos(x): the cosine of x radians.", 7),
)
