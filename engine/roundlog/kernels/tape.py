"""Chains of exact elementwise operators in one pass over memory.

A tape is a list of instructions on registers of `BLOCK` elements. For one block of the output after the other, inputs
are loaded into registers, all instructions run on them while they are in the cache, and results are stored: an
elementwise chain of any length costs one read of its inputs and one write of its outputs. FP32 and bool (as 1.0 and
0.0) share the registers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from roundlog.kernels.threads import in_parts

BLOCK = 1024
"""Elements of a register: 4 KiB, so that a chain's registers stay in the first or second level of the cache."""


class Code(enum.IntEnum):
    """What an instruction does to its registers."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    SQRT = 4
    NEG = 5
    ABS = 6
    FLOOR = 7
    MAXIMUM = 8
    MINIMUM = 9
    EQ = 10
    LT = 11
    LE = 12
    AND = 13
    OR = 14
    NOT = 15
    WHERE = 16
    COPY = 17


_CODES = {code.name: int(code) for code in Code}
ADD, SUB, MUL, DIV, SQRT, NEG, ABS, FLOOR, MAXIMUM, MINIMUM = (
    _CODES[name] for name in ("ADD", "SUB", "MUL", "DIV", "SQRT", "NEG", "ABS", "FLOOR", "MAXIMUM", "MINIMUM")
)
EQ, LT, LE, AND, OR, NOT, WHERE, COPY = (
    _CODES[name] for name in ("EQ", "LT", "LE", "AND", "OR", "NOT", "WHERE", "COPY")
)


class Check(enum.IntEnum):
    """What has to hold of an instruction's result."""

    NONE = 0
    NEW = 1
    """It is not NaN, and infinite only if an operand is."""
    FINITE = 2
    """It is finite."""


UNCHECKED, FINITE = int(Check.NONE), int(Check.FINITE)

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)

F32, BOOL = 0, 1
"""Kinds of memory that registers are loaded from and stored to."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A compiled chain. Registers are numbered; the first ones hold the inputs, in order, and are never overwritten."""

    instructions: npt.NDArray[np.int64]
    """[n, 6]: code, destination, three sources (those that the code has), and a Check."""
    outputs: npt.NDArray[np.int64]
    """Registers whose content is stored."""
    registers: int


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    """An integer as a pointer: the only way to hand a compiled loop a list of arrays of different kinds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


pointer_to: Any = _pointer


@njit(cache=True, nogil=True, error_model="numpy")
def _load(register: Any, address: int, kind: int, inner: int, count: int, first: int, length: int, size: int) -> None:
    """Element i of the output reads element (i // inner) % count of the input."""
    if kind == BOOL:
        flags = carray(pointer_to(address), count, np.uint8)
        for j in range(length):
            register[j] = np.float32(flags[((first + j) // inner) % count])
        return
    x = carray(pointer_to(address), count, np.float32)
    if count == 1:
        for j in range(length):
            register[j] = x[0]
    elif count == size:
        for j in range(length):
            register[j] = x[first + j]
    elif inner == 1:
        at = first % count
        j = 0
        while j < length:
            run = min(length - j, count - at)
            for k in range(run):
                register[j + k] = x[at + k]
            j += run
            at = 0
    else:
        j = 0
        while j < length:
            i = first + j
            run = min(length - j, inner - i % inner)
            v = x[(i // inner) % count]
            for k in range(run):
                register[j + k] = v
            j += run


@njit(cache=True, nogil=True, error_model="numpy")
def _run(code: int, d: Any, a: Any, b: Any, c: Any, n: int) -> None:
    one, zero = np.float32(1.0), np.float32(0.0)
    if code == ADD:
        for j in range(n):
            d[j] = a[j] + b[j]
    elif code == MUL:
        for j in range(n):
            d[j] = a[j] * b[j]
    elif code == SUB:
        for j in range(n):
            d[j] = a[j] - b[j]
    elif code == DIV:
        for j in range(n):
            d[j] = a[j] / b[j]
    elif code == SQRT:
        for j in range(n):
            d[j] = np.sqrt(a[j])
    elif code == NEG:
        for j in range(n):
            d[j] = -a[j]
    elif code == ABS:
        for j in range(n):
            d[j] = abs(a[j])
    elif code == FLOOR:
        for j in range(n):
            d[j] = np.floor(a[j])
    elif code == MAXIMUM:
        for j in range(n):
            d[j] = a[j] if a[j] > b[j] else b[j]
    elif code == MINIMUM:
        for j in range(n):
            d[j] = a[j] if a[j] < b[j] else b[j]
    elif code == EQ:
        for j in range(n):
            d[j] = one if a[j] == b[j] else zero
    elif code == LT:
        for j in range(n):
            d[j] = one if a[j] < b[j] else zero
    elif code == LE:
        for j in range(n):
            d[j] = one if a[j] <= b[j] else zero
    elif code == AND:
        for j in range(n):
            d[j] = a[j] * b[j]
    elif code == OR:
        for j in range(n):
            d[j] = a[j] if a[j] > b[j] else b[j]
    elif code == NOT:
        for j in range(n):
            d[j] = one - a[j]
    elif code == WHERE:
        for j in range(n):
            d[j] = b[j] if a[j] != zero else c[j]
    else:
        for j in range(n):
            d[j] = a[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _is_new(result: Any, a: Any, b: Any, length: int, limit: Any) -> bool:
    """Whether some element is NaN, or infinite although its operands are not."""
    for j in range(length):
        v = result[j]
        if v != v or (abs(v) > limit and abs(a[j]) <= limit and abs(b[j]) <= limit):
            return True
    return False


@njit(cache=True, nogil=True, error_model="numpy")
def _blocks(
    instructions: Any,
    inputs: Any,
    outputs: Any,
    registers: int,
    size: int,
    finite: Any,
    start: int,
    stop: int,
) -> None:
    space = np.empty((registers, BLOCK), dtype=np.float32)
    words = space.view(np.int32)
    limit = np.float32(np.finfo(np.float32).max)
    for slot in range(len(inputs)):
        address, kind, inner, count = inputs[slot]
        if count == 1:
            _load(space[slot], address, kind, inner, count, 0, BLOCK, size)
    for block in range(start, stop):
        first = block * BLOCK
        length = min(BLOCK, size - first)
        for slot in range(len(inputs)):
            address, kind, inner, count = inputs[slot]
            if count != 1:
                _load(space[slot], address, kind, inner, count, first, length, size)
        for t in range(len(instructions)):
            code, d, a, b, c, check = instructions[t]
            _run(code, space[d], space[a], space[b], space[c], length)
            if check != UNCHECKED:
                # As integers, magnitudes compare like the numbers, and infinities and NaN come last.
                largest = np.int32(0)
                for j in range(length):
                    largest = max(largest, words[d, j] & _MAGNITUDE)
                if largest >= _INFINITY and (
                    check == FINITE
                    or _is_new(space[d], space[a], space[a] if SQRT <= code <= FLOOR else space[b], length, limit)
                ):
                    finite[0] = 0
        for slot in range(len(outputs)):
            register_number, address, kind = outputs[slot]
            register = space[register_number]
            if kind == BOOL:
                flags = carray(pointer_to(address), size, np.uint8)
                for j in range(length):
                    flags[first + j] = np.uint8(register[j] != np.float32(0.0))
            else:
                y = carray(pointer_to(address), size, np.float32)
                for j in range(length):
                    y[first + j] = register[j]


def play(tape: Tape, inputs: npt.NDArray[np.int64], outputs: npt.NDArray[np.int64], size: int) -> bool:
    """Run a tape over `size` elements.

    inputs: int64[i, 4], a row an input register: address, kind, inner, count; output element e reads input element
    (e // inner) % count. outputs: int64[o, 3]: register, address, kind. All memory is the caller's, contiguous, and
    has to outlive the call. Returns False if a check failed."""
    finite = np.ones(1, dtype=np.int64)
    blocks = -(-size // BLOCK)
    in_parts(
        lambda start, stop: _blocks(tape.instructions, inputs, outputs, tape.registers, size, finite, start, stop),
        blocks,
        size * (1 + len(tape.instructions) // 4),
    )
    return bool(finite[0])
