"""Definition of an operator: what more than one part of the project has to know of it, said once.

The registry, the rules of descriptors and their checks, fusion, slicing and the pages are made from it. Not what an
operator computes: that is written three times, as a kernel, in the Python reference and in the contract, so that each
can be held against the others."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """The operator has a rule of its own, `roundlog.execution.microbatch.slicing.RULES`."""
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OperatorDefinition:
    """One operator."""

    name: str
    """Name in programs."""
    meaning: str
    """Formula, shapes and dtypes, in a sentence or two: its line in docs/operators.md."""
    kind: OperatorKind
    family: Family
    formats: tuple[Signature, ...]
    """Dtypes that it is defined for. All have as many inputs."""
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
