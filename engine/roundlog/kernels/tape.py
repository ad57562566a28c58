"""Chains of exact elementwise operators in one pass over memory.

A tape is a list of instructions on registers of `BLOCK` elements. For one block of the output after the other, all
instructions run while it is in the cache: an elementwise chain of any length costs one read of its inputs and one
write of its outputs. Registers of FP32 inputs and outputs that lie as the output does are that memory itself; broadcast
inputs, bool (as 1.0 and 0.0) and BF16 (as the FP32 numbers that they are) are converted on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from roundlog.definitions import DEFINITIONS, opcodes
from roundlog.kernels.number_words import nearest_number, number, short_word
from roundlog.kernels.threads import in_parts

BLOCK = 1024
"""Elements of a register: 4 KiB, so that a chain's registers stay in the first or second level of the cache."""


_CODES = opcodes()
ADD, SUB, MUL, DIV, SQRT, NEG = (_CODES[name] for name in ("add", "sub", "mul", "div", "sqrt", "neg"))
ABS, FLOOR, MAXIMUM, MINIMUM = (_CODES[name] for name in ("abs", "floor", "maximum", "minimum"))
EQ, LT, LE, WHERE = (_CODES[name] for name in ("eq", "lt", "le", "where"))
AND, OR, NOT = (_CODES[name] for name in ("logical_and", "logical_or", "logical_not"))
COPY = _CODES["to_f32"]
"""Operations of instructions. A bool or a number of BF16 in a register is an FP32 number already, which `to_f32`
copies."""
ROUND = _CODES["to_bf16"]
"""Rounds to a number of BF16. What an operator on BF16 gives is what its instruction gives in FP32, rounded so."""

_SOURCES = {code: DEFINITIONS[name].arity for name, code in _CODES.items()}

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)

F32, BOOL, BF16 = 0, 1, 2
"""Kinds of memory that registers are loaded from and stored to."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A compiled chain. Registers are numbered; the first ones hold the inputs, in order, and are never overwritten."""

    instructions: npt.NDArray[np.int64]
    """[n, 6]: code, destination, three sources (those that the code has), and whether the result has to be finite."""
    outputs: npt.NDArray[np.int64]
    """Registers whose content is the result; none of them an input, each once."""
    registers: int


@dataclass(frozen=True, slots=True)
class Assignments:
    """A tape on which every instruction makes a new value: values are numbered, inputs first."""

    instructions: tuple[tuple[int, int, int, int, int], ...]
    """Opcode, three sources (the first one again where the code has fewer), and whether the result has to be finite."""
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, tape: Tape, inputs: int) -> Assignments:
        """inputs: how many registers hold inputs."""
        holds = [*range(inputs), *[0] * (tape.registers - inputs)]
        rows = []
        for code, to, *sources, checked in tape.instructions.tolist():
            used = sources[: _SOURCES[code]]
            a, b, c = (holds[register] for register in (used + used[:1] * 2)[:3])
            rows.append((code, a, b, c, checked))
            holds[to] = inputs + len(rows) - 1
        return cls(tuple(rows), tuple(holds[register] for register in tape.outputs.tolist()))


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    """An integer as a pointer: the only way to hand a compiled loop a list of arrays of different kinds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


pointer_to: Any = _pointer


@njit(cache=True, nogil=True, error_model="numpy")
def _load(register: Any, x: Any, inner: int, count: int, first: int, length: int) -> None:
    """Element i of the output reads element (i // inner) % count of x."""
    # Slices, because an index that might be negative keeps the compiler from using vector instructions.
    j = 0
    if inner == 1:
        at = first % count
        while j < length:
            run = min(length - j, count - at)
            target, source = register[j : j + run], x[at : at + run]
            for k in range(run):
                target[k] = number(source[k])
            j += run
            at = 0
    else:
        while j < length:
            i = first + j
            run = min(length - j, inner - i % inner)
            v = number(x[(i // inner) % count])
            target = register[j : j + run]
            for k in range(run):
                target[k] = v
            j += run


@njit(inline="always")
def _floats(address: int, n: int) -> Any:
    return carray(pointer_to(address), n, np.float32)


@njit(cache=True, nogil=True, error_model="numpy")
def _run(code: int, to: int, of_a: int, of_b: int, of_c: int, n: int) -> None:
    d, a, b, c = _floats(to, n), _floats(of_a, n), _floats(of_b, n), _floats(of_c, n)
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
            # The second, if it is NaN: nothing is greater.
            d[j] = a[j] if (a[j] > b[j]) | (a[j] != a[j]) else b[j]
    elif code == MINIMUM:
        for j in range(n):
            d[j] = a[j] if (a[j] < b[j]) | (a[j] != a[j]) else b[j]
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
            # Both are read: a read that depends on a condition is no vector instruction.
            yes, no = b[j], c[j]
            d[j] = yes if a[j] != zero else no
    elif code == ROUND:
        for j in range(n):
            d[j] = nearest_number(a[j])
    else:
        for j in range(n):
            d[j] = a[j]


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
    # Where a register lies: FP32 memory that has the output's order is read and written where it is.
    place = np.empty(registers, dtype=np.int64)
    step = np.zeros(registers, dtype=np.int64)
    for r in range(registers):
        place[r] = space[r].ctypes.data
    for slot in range(len(inputs)):
        address, kind, inner, count = inputs[slot]
        if kind == F32 and inner == 1 and count == size:
            place[slot], step[slot] = address, 4
    for slot in range(len(outputs)):
        r, address, kind = outputs[slot]
        if kind == F32:
            place[r], step[r] = address, 4
    for block in range(start, stop):
        first = block * BLOCK
        length = min(BLOCK, size - first)
        for slot in range(len(inputs)):
            address, kind, inner, count = inputs[slot]
            if step[slot] or (count == 1 and block > start):
                continue
            if count == 1:
                inner = BLOCK
            if kind == BOOL:
                _load(space[slot], carray(pointer_to(address), count, np.uint8), inner, count, first, length)
            elif kind == BF16:
                _load(space[slot], carray(pointer_to(address), count, np.uint16), inner, count, first, length)
            else:
                _load(space[slot], carray(pointer_to(address), count, np.float32), inner, count, first, length)
        for t in range(len(instructions)):
            code, d, a, b, c, checked = instructions[t]
            to, of_a = place[d] + step[d] * first, place[a] + step[a] * first
            of_b, of_c = place[b] + step[b] * first, place[c] + step[c] * first
            _run(code, to, of_a, of_b, of_c, length)
            if checked:
                # As integers, magnitudes compare like the numbers, and infinities and NaN come last.
                largest = np.int32(0)
                words = carray(pointer_to(to), length, np.int32)
                for j in range(length):
                    largest = max(largest, words[j] & _MAGNITUDE)
                if largest >= _INFINITY:
                    finite[0] = 0
        for slot in range(len(outputs)):
            r, address, kind = outputs[slot]
            if kind == BOOL:
                flags = carray(pointer_to(address), size, np.uint8)[first : first + length]
                register = space[r]
                for j in range(length):
                    flags[j] = np.uint8(register[j] != np.float32(0.0))
            elif kind == BF16:
                halves = carray(pointer_to(address), size, np.uint16)[first : first + length]
                register = space[r]
                for j in range(length):
                    halves[j] = short_word(register[j])


def play(tape: Tape, inputs: npt.NDArray[np.int64], outputs: npt.NDArray[np.int64], size: int) -> bool:
    """Run a tape over `size` elements.

    inputs: int64[i, 4], a row an input register: address, kind, inner, count; output element e reads input element
    (e // inner) % count. outputs: int64[o, 3]: register, address, kind. All memory is the caller's, contiguous, and
    has to outlive the call; no two outputs are one register. Returns False if a result that has to be finite is not."""
    finite = np.ones(1, dtype=np.int64)
    blocks = -(-size // BLOCK)
    if blocks == 1:
        _blocks(tape.instructions, inputs, outputs, tape.registers, size, finite, 0, 1)
        return bool(finite[0])
    in_parts(
        lambda start, stop: _blocks(tape.instructions, inputs, outputs, tape.registers, size, finite, start, stop),
        blocks,
        size * (1 + len(tape.instructions) // 4),
    )
    return bool(finite[0])
