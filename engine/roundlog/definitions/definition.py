"""Definitions of operators: what more than one part of the project has to know of one, said once; and the table of
those that work element by element.

The registry, the rules of descriptors and their checks, fusion, slicing and the pages are made from it. Not what an
operator computes: that is written three times, as a kernel, in the Python reference and in the contract, so that each
can be held against the others.

A new operator begins with a row (docs/contributing.md). The codes are part of descriptors, and so of what the contract
and every recorded program mean: a code that has been given stays. Opcodes live no longer than a process.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from roundlog.program import DType

FLOATS = tuple(dtype for dtype in DType if dtype.is_float)
"""Dtypes of numbers that are rounded, each to its format."""


class OperatorKind(enum.StrEnum):
    """Kind of an operator: its values are copied, exact, inexact, or come from a source."""

    SOURCE = "source"
    MOVEMENT = "movement"
    EXACT = "exact"
    INEXACT = "inexact"


class Family(enum.IntEnum):
    """Family of an operator: how an element of its output is computed. The numbers are part of the encoding of
    descriptors."""

    STATE = 0
    DATA = 1
    SCHEDULE = 2
    CONSTANT = 3
    IOTA = 4
    UNIFORM = 5
    COPY = 6
    GATHER = 7
    MAP = 8
    FUNCTION = 9
    SUM = 10
    SELECTED_SUM = 11
    EXTREME = 12
    ARGMAX = 13
    INTEGER_SUM = 14
    ANY = 15
    CHAIN = 16


class Copy(enum.IntEnum):
    """Codes of COPY."""

    ANY = 0
    FINITE = 1
    """The loss, and numbers that go into the next state: no run goes on with an infinity or NaN there."""


class Extreme(enum.IntEnum):
    """Codes of EXTREME."""

    MAX = 0
    MIN = 1


class InputReads(enum.Enum):
    """Elements of the inputs that an element of the output depends on, as far as rows and samples go."""

    PLACE = "place"
    """The elements at its own place, axes being aligned at the end, and an axis of size 1 being read at 0."""
    LINE = "line"
    """The elements whose index differs from its own along the attribute `dim`, or `dims`, alone."""
    OWN_RULE = "own rule"
    """The operator has a rule of its own, `roundlog.execution.slicing.RULES`."""
    WHOLE = "whole"
    """Anything: it is computed as a whole, as the loss and what is stored are, or comes from a source."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Dtypes that an operator takes and gives, and its code there in descriptors.

    None stands for a dtype T, any one, the same in the whole signature. The output is T only if it is None."""

    inputs: tuple[DType | None, ...]
    output: DType | None
    code: int = 0

    def fits(self, inputs: Sequence[DType], output: DType) -> bool:
        """Whether these are such dtypes."""
        wanted = tuple(output if dtype is None else dtype for dtype in self.inputs)
        return tuple(inputs) == wanted and self.output in (None, output)


@dataclass(frozen=True, slots=True, eq=False)
class OperatorDefinition:
    """One operator."""

    name: str
    """Name in programs."""
    meaning: str
    """Formula, shapes and dtypes, in a sentence or two: its line in docs/operators.md."""
    family: Family
    formats: tuple[Signature, ...]
    """Dtypes that it is defined for. All have as many inputs."""
    _: KW_ONLY
    kind: OperatorKind
    attributes: Mapping[str, type] = field(default_factory=dict)
    """Attributes that a node has to have (tuple: of integers)."""
    optional: Mapping[str, type] = field(default_factory=dict)
    """Attributes that it may have."""
    joins: bool = False
    """Whether it takes any number of inputs like its first one."""
    reads: InputReads
    opcode: int | None = None
    """Number of the instruction of tapes (`roundlog.kernels.tape`) that computes it on FP32 and bool, so that chains of
    such operators are computed together, those on BF16 among them; None: it is always computed by itself."""
    selects: bool = False
    """Whether an FP32 result is the mathematical value itself, which is not rounded before it is to fewer bits."""
    relative_error: float = 0.0
    """Error of its FP64 kernel at most, relatively, of a function."""
    bound: str = ""
    """Error of its FP64 kernel at most, of a sum: a formula."""

    @property
    def arity(self) -> int:
        """Number of inputs."""
        return len(self.formats[0].inputs)

    def signature(self, first: DType) -> Signature | None:
        """Signature for a first input of this dtype."""
        for one in self.formats:
            if one.inputs[0] in (None, first):
                return one
        return None

    def code_name(self, signature: Signature) -> str:
        """Name of a code of MAP or FUNCTION in the reference and the contract: of MAP with the dtype that it takes, or
        FLOAT for all of FLOATS, which share their codes."""
        if self.family is Family.FUNCTION:
            return self.name
        name = self.name.removeprefix("logical_")
        if signature.output is not None and name == f"to_{signature.output}":
            name = f"to_{_kind_of(signature.output)}"
        first = signature.inputs[0]
        return (name if first is None or None in signature.inputs else f"{_kind_of(first)}_{name}").upper()


def _kind_of(dtype: DType) -> str:
    return "float" if dtype.is_float else str(dtype)


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
    opcode: int | None = None,
    *,
    gives: DType | None = None,
    selects: bool = False,
    **codes: int,
) -> OperatorDefinition:
    """An exact function of an element of every input, all of one dtype: codes of MAP by dtype, `floats` for all of
    FLOATS. gives: the output's dtype; None: that of the inputs."""
    dtypes = {dtype: code for name, code in codes.items() for dtype in (FLOATS if name == "floats" else (DType(name),))}
    formats = tuple(Signature((dtype,) * arity, gives or dtype, code) for dtype, code in dtypes.items())
    how: Any = {"kind": OperatorKind.EXACT, "reads": InputReads.PLACE, "opcode": opcode, "selects": selects}
    return OperatorDefinition(name, meaning, Family.MAP, formats, **how)


def _conversion(to: DType, words: str, opcode: int | None = None) -> OperatorDefinition:
    """The nearest number of a format."""
    others = tuple(dtype for dtype in FLOATS if dtype != to)
    codes = {_I64: 28, _BOOL: 29, **dict.fromkeys(others, 31)}
    return OperatorDefinition(
        f"to_{to}",
        f"to_{to}(x): a number of another format or an int64, rounded to nearest even, or a bool (0 or 1), as {words}.",
        Family.MAP,
        tuple(Signature((dtype,), to, code) for dtype, code in codes.items()),
        kind=OperatorKind.EXACT,
        reads=InputReads.PLACE,
        opcode=opcode,
    )


def _function(name: str, meaning: str, code: int) -> OperatorDefinition:
    """An elementary function of one number, correctly rounded; zero is +0."""
    return OperatorDefinition(
        name,
        meaning,
        Family.FUNCTION,
        tuple(Signature((dtype,), dtype, code) for dtype in FLOATS),
        kind=OperatorKind.INEXACT,
        reads=InputReads.PLACE,
        relative_error=RELATIVE_ERROR,
    )


ELEMENTWISE = (
    _exact("add", "add(a, b): a + b; a number rounded to nearest even, an int64 modulo 2^64.", 2, 0, floats=0, i64=13),
    _exact("sub", "sub(a, b): a - b; a number rounded to nearest even, an int64 modulo 2^64.", 2, 1, floats=1, i64=14),
    _exact("mul", "mul(a, b): a * b; a number rounded to nearest even, an int64 modulo 2^64.", 2, 2, floats=2, i64=15),
    _exact("div", "div(a, b): a / b, rounded to nearest even.", 2, 3, floats=3),
    _exact("sqrt", "sqrt(x): the square root, rounded to nearest even.", 1, 4, floats=4),
    _exact("neg", "neg(x): x with its sign flipped (int64: modulo 2^64).", 1, 5, selects=True, floats=5, i64=16),
    _exact("abs", "abs(x): x with its sign cleared (int64: modulo 2^64).", 1, 6, selects=True, floats=6, i64=17),
    _exact("floor", "floor(x): the largest integer not above x.", 1, 7, selects=True, floats=7),
    _exact(
        "maximum",
        "maximum(a, b): a if a > b or a is NaN, else b; so NaN if an operand is.",
        2,
        8,
        selects=True,
        floats=8,
        i64=18,
    ),
    _exact(
        "minimum",
        "minimum(a, b): a if a < b or a is NaN, else b; so NaN if an operand is.",
        2,
        9,
        selects=True,
        floats=9,
        i64=19,
    ),
    _exact("eq", "eq(a, b): a = b, as bool.", 2, 10, gives=_BOOL, floats=10, i64=20, bool=23),
    _exact("lt", "lt(a, b): a < b, as bool.", 2, 11, gives=_BOOL, floats=11, i64=21),
    _exact("le", "le(a, b): a <= b, as bool.", 2, 12, gives=_BOOL, floats=12, i64=22),
    _exact("logical_and", "logical_and(a, b).", 2, 13, bool=24),
    _exact("logical_or", "logical_or(a, b).", 2, 14, bool=25),
    _exact("logical_not", "logical_not(x).", 1, 15, bool=26),
    # On a tape a bool is 1.0 or 0.0 already: its instruction copies.
    _conversion(_F32, "FP32", opcode=17),
    _conversion(DType.BF16, "BF16", opcode=18),
    _conversion(DType.F16, "FP16"),
    _exact("to_i64", "to_i64(x): a bool as 0 or 1.", 1, gives=_I64, bool=30),
    OperatorDefinition(
        "where",
        "where(c, a, b): a where c, else b, broadcast; c is bool, a and b have one dtype.",
        Family.MAP,
        (Signature((_BOOL, None, None), None, 27),),
        kind=OperatorKind.MOVEMENT,
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
