"""Tapes: chains of exact elementwise operators, to be computed in one pass over memory.

A tape is a list of instructions, each of which makes a new value of earlier ones. Values are FP32 numbers: a bool is
1.0 or 0.0, and a number of BF16 the FP32 number that it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from roundlog.definitions import opcodes

_CODES = opcodes()
ADD, SUB, MUL, DIV, SQRT, NEG = (_CODES[name] for name in ("add", "sub", "mul", "div", "sqrt", "neg"))
ABS, FLOOR, MAXIMUM, MINIMUM = (_CODES[name] for name in ("abs", "floor", "maximum", "minimum"))
EQ, LT, LE, WHERE = (_CODES[name] for name in ("eq", "lt", "le", "where"))
AND, OR, NOT = (_CODES[name] for name in ("logical_and", "logical_or", "logical_not"))
COPY = _CODES["to_f32"]
"""Operations of instructions. A bool or a number of BF16 is an FP32 number already, which `to_f32` copies."""
ROUND = _CODES["to_bf16"]
"""Rounds to a number of BF16. What an operator on BF16 gives is what its instruction gives in FP32, rounded so."""

F32, BOOL, BF16 = 0, 1, 2
"""Kinds of memory that values are loaded from and stored to."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A chain of operators. Values are numbered: the inputs first, then one for every instruction."""

    instructions: tuple[tuple[int, int, int, int, int], ...]
    """Opcode, three sources (the first one again where the code has fewer), and whether the result has to be finite."""
    outputs: tuple[int, ...]
    """Values that are the result."""
