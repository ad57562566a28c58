"""An interpreter of PTX: many threads at once, by NumPy. A register is an array with an element for each thread, and an
instruction is executed by all threads that have come to it; those that are behind go first, so that they meet again.

What an instruction does is what the PTX ISA, version 9.0, says in the section that is named beside it. There is no
other: whatever opcode, modifier or type the tables do not have raises UnknownPtxError. Products of matrices are those
of docs/arithmetic.md (`tests.engine.kernels.tensor_core_devices`). Copies and products that are asynchronous take place
when they are waited for, which is as late as can be; memory knows what else would have been too early.

NaN: which one an operation gives is left open (9.7.3), and here it is one that no processor gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.devices.ptx_memory import UNSIGNED, WARP, GlobalMemory, SharedMemory, Words
from tests.devices.ptx_program import KINDS, Address, Instruction, Operand, PtxProgram, UnknownPtxError
from tests.engine.kernels.tensor_core_devices import TensorCores

Values = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]

WARPGROUP = 128
TOGETHER = 4096
"""Threads that are executed at once, at most, unless a block has more."""


class DivergenceError(RuntimeError):
    """Threads that have to execute an instruction together do not."""


# --- Integers (9.7.1), bits (9.7.8), comparisons (9.7.6): values of values -------------------------------------------


def _bits(x: Values) -> int:
    return 8 * x.itemsize


def _double(x: Values) -> Values:
    return x.astype(KINDS[f"{'s' if x.dtype.kind == 'i' else 'u'}{2 * _bits(x)}"])


def _high(a: Values, b: Values) -> Values:
    """mul.hi (9.7.1.3)."""
    if _bits(a) < 64:
        return (_double(a) * _double(b) >> _double(a).dtype.type(_bits(a))).astype(a.dtype)
    if a.dtype.kind == "i":
        raise UnknownPtxError("mul.hi.s64")
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    middle = (a >> half) * (b & low) + ((a & low) * (b & low) >> half)
    other = (a & low) * (b >> half) + (middle & low)
    return (a >> half) * (b >> half) + (middle >> half) + (other >> half)


def _divided(a: Values, b: Values) -> tuple[Values, Values]:
    """Quotient, toward zero, and remainder (9.7.1.8, 9.7.1.9). Raises ZeroDivisionError: the ISA leaves it open."""
    if not b.all():
        raise ZeroDivisionError("an integer divided by zero")
    unsigned = UNSIGNED[a.itemsize]
    size, by = (np.where(x < 0, -x, x).astype(x.dtype).view(unsigned) for x in (a, b))
    quotient = (size // by).view(a.dtype)
    quotient = np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype)
    return quotient, a - quotient * b


def _shl(a: Values, n: Values) -> Values:
    """9.7.8.8: an amount of more than the register's bits is taken as so many."""
    return np.where(n < _bits(a), a << np.minimum(n, _bits(a) - 1).astype(a.dtype), a.dtype.type(0))


def _shr(a: Values, n: Values) -> Values:
    """9.7.8.9: as shl; signed numbers are filled by their sign."""
    shifted = a >> np.minimum(n, _bits(a) - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(n < _bits(a), shifted, a.dtype.type(0))


def _bfe(a: Values, position: Values, length: Values) -> Values:
    """9.7.1.20: above the field, and above the number, there is the sign of the field."""
    position, length = position & 0xFF, length & 0xFF
    above = _bits(a) - np.minimum(position + length, _bits(a))
    field = (a << above.astype(a.dtype)) >> np.minimum(above + position, _bits(a) - 1).astype(a.dtype)
    beyond = (length == 0) if a.dtype.kind == "i" else (length == 0) | (position >= _bits(a))
    return np.where(beyond, a.dtype.type(0), field)


def _prmt(a: Values, b: Values, selector: Values) -> Values:
    """9.7.9.7, the general form: four bytes of eight, or of a byte the sign alone."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros(both.shape, dtype=np.uint64)
    for place in range(4):
        chosen = (selector >> (4 * place)) & 0xF
        byte = both >> (8 * (chosen & 7)).astype(np.uint64) & np.uint64(0xFF)
        byte = np.where(chosen & 8, np.where(byte & np.uint64(0x80), 0xFF, 0), byte).astype(np.uint64)
        out = out | byte << np.uint64(8 * place)
    return out.astype(np.uint32)


def _maximum_of_halves(a: Values, b: Values) -> Values:
    """max.u16x2 (9.7.1.13)."""
    two = (np.atleast_1d(x) for x in np.broadcast_arrays(a, b))
    left, right = (np.ascontiguousarray(x).view(np.uint16) for x in two)
    return np.maximum(left, right).view(np.uint32)


def _is_nan(*values: Values) -> Any:
    return np.logical_or.reduce(np.broadcast_arrays(*(x != x for x in values)))


def _ordered(compare: Callable[[Values, Values], Any]) -> Callable[..., Any]:
    return lambda a, b: compare(a, b) & ~_is_nan(a, b)


def _unordered(compare: Callable[[Values, Values], Any]) -> Callable[..., Any]:
    return lambda a, b: compare(a, b) | _is_nan(a, b)


_NAN = {np.dtype(np.float32): np.uint32(0x7FFFFFFF), np.dtype(np.float64): np.uint64(0x7FFFFFFFFFFFFFFF)}


def _with_nan(x: Values) -> Values:
    return np.where(_is_nan(x), _NAN[x.dtype].view(x.dtype), x)


def _ieee(operation: Callable[..., Values]) -> Callable[..., Values]:
    """An operation of 9.7.3 that rounds to nearest, ties to even, and keeps subnormal numbers, as NumPy's do."""
    return lambda *values: _with_nan(operation(*values))


def _magnitude(x: Values) -> Values:
    if x.dtype.kind == "i":
        return np.abs(x)
    unsigned = UNSIGNED[x.itemsize]
    return (x.view(unsigned) & unsigned((1 << (_bits(x) - 1)) - 1)).view(x.dtype)


ALL = frozenset(KINDS)
INTEGERS = frozenset(one for one in KINDS if one[0] in "us" and one[1:] != "8")
WIDE = INTEGERS - {"u64", "s64"}
LARGE = frozenset({"u32", "s32", "u64", "s64"})
FLOATS = frozenset({"f32", "f64"})
BITS = frozenset({"b16", "b32", "b64", "pred"})

SAME = ""
"""The instruction's own type."""

VALUES: dict[str, tuple[frozenset[str], tuple[str, ...], str, Callable[..., Any]]] = {
    # opcode without its type: (types; types of the sources; type of the result; what it does)
    "add": (INTEGERS, (SAME,) * 2, SAME, np.add),  # 9.7.1.1
    "sub": (INTEGERS, (SAME,) * 2, SAME, np.subtract),  # 9.7.1.2
    "mul.lo": (INTEGERS, (SAME,) * 2, SAME, np.multiply),  # 9.7.1.3
    "mul.hi": (LARGE, (SAME,) * 2, SAME, _high),
    "mul.wide": (WIDE, (SAME,) * 2, "double", lambda a, b: _double(a) * _double(b)),
    "mad.lo": (INTEGERS, (SAME,) * 3, SAME, lambda a, b, c: a * b + c),  # 9.7.1.4
    "mad.wide": (WIDE, (SAME, SAME, "double"), "double", lambda a, b, c: _double(a) * _double(b) + c),
    "div": (INTEGERS, (SAME,) * 2, SAME, lambda a, b: _divided(a, b)[0]),
    "rem": (INTEGERS, (SAME,) * 2, SAME, lambda a, b: _divided(a, b)[1]),
    "abs": (INTEGERS & {"s16", "s32", "s64"} | FLOATS, (SAME,), SAME, _magnitude),  # 9.7.1.10, 9.7.3.9
    "neg": (frozenset({"s16", "s32", "s64"}), (SAME,), SAME, np.negative),  # 9.7.1.11
    "min": (INTEGERS, (SAME,) * 2, SAME, np.minimum),  # 9.7.1.12
    "max": (INTEGERS, (SAME,) * 2, SAME, np.maximum),  # 9.7.1.13
    "max.u16x2": (frozenset({"b32"}), (SAME,) * 2, SAME, _maximum_of_halves),
    "popc": (frozenset({"b32", "b64"}), (SAME,), "u32", np.bitwise_count),  # 9.7.1.14
    "bfe": (LARGE, (SAME, "u32", "u32"), SAME, _bfe),
    "and": (BITS, (SAME,) * 2, SAME, np.bitwise_and),  # 9.7.8.1
    "or": (BITS, (SAME,) * 2, SAME, np.bitwise_or),  # 9.7.8.2
    "xor": (BITS, (SAME,) * 2, SAME, np.bitwise_xor),  # 9.7.8.3
    "not": (BITS, (SAME,), SAME, np.bitwise_not),  # 9.7.8.4
    "shl": (BITS - {"pred"}, (SAME, "u32"), SAME, _shl),
    "shr": (INTEGERS | BITS - {"pred"}, (SAME, "u32"), SAME, _shr),
    "prmt": (frozenset({"b32"}), ("u32",) * 3, "u32", _prmt),
    "selp": (ALL - {"pred"}, (SAME, SAME, "pred"), SAME, lambda a, b, c: np.where(c, a, b)),  # 9.7.6.3
    "setp.eq": (INTEGERS | BITS | FLOATS, (SAME,) * 2, "pred", np.equal),  # 9.7.6.2, 9.3.1.2
    "setp.ne": (INTEGERS | BITS, (SAME,) * 2, "pred", np.not_equal),
    "setp.lt": (INTEGERS | FLOATS, (SAME,) * 2, "pred", np.less),
    "setp.le": (INTEGERS | FLOATS, (SAME,) * 2, "pred", np.less_equal),
    "setp.gt": (INTEGERS | FLOATS, (SAME,) * 2, "pred", np.greater),
    "setp.ge": (INTEGERS | FLOATS, (SAME,) * 2, "pred", np.greater_equal),
    "setp.neu": (FLOATS, (SAME,) * 2, "pred", _unordered(np.not_equal)),
    "setp.ltu": (FLOATS, (SAME,) * 2, "pred", _unordered(np.less)),
    "setp.leu": (FLOATS, (SAME,) * 2, "pred", _unordered(np.less_equal)),
    "setp.gtu": (FLOATS, (SAME,) * 2, "pred", _unordered(np.greater)),
    "setp.geu": (FLOATS, (SAME,) * 2, "pred", _unordered(np.greater_equal)),
    "setp.num": (FLOATS, (SAME,) * 2, "pred", lambda a, b: ~_is_nan(a, b)),
    "setp.nan": (FLOATS, (SAME,) * 2, "pred", _is_nan),
    "add.rn": (FLOATS, (SAME,) * 2, SAME, _ieee(np.add)),  # 9.7.3.3
    "sub.rn": (FLOATS, (SAME,) * 2, SAME, _ieee(np.subtract)),  # 9.7.3.4
    "mul.rn": (FLOATS, (SAME,) * 2, SAME, _ieee(np.multiply)),  # 9.7.3.5
    "div.rn": (FLOATS, (SAME,) * 2, SAME, _ieee(np.divide)),  # 9.7.3.8
    "sqrt.rn": (FLOATS, (SAME,), SAME, _ieee(np.sqrt)),  # 9.7.3.15
}
"""No add, sub or mul of floating point without .rn: these may be contracted (9.7.3.3)."""

_TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _converted(mode: str, to: str, x: Values) -> Values:
    """cvt (9.7.9.21) of numbers that are not both integers, or not of both sizes alike."""
    kind = KINDS[to]
    if to not in FLOATS:
        limits = np.iinfo(kind)
        whole = np.where(_is_nan(x), 0, _TO_INTEGRAL[mode](x))
        # The limits as floating-point numbers: the upper one may be one too large, which no number below it is.
        inside = np.where((whole >= limits.min) & (whole < float(limits.max) + 1), whole, 0).astype(kind)
        return np.where(whole >= float(limits.max) + 1, limits.max, np.where(whole < limits.min, limits.min, inside))
    return _with_nan(_TO_INTEGRAL[mode](x) if mode in _TO_INTEGRAL else x.astype(kind))


def _conversion(mode: str, to: str, source: str) -> Callable[[Values], Values]:
    """Return what a cvt does. Raises UnknownPtxError for a modifier that the types do not have (table 16)."""
    number, was = to in FLOATS, source in FLOATS
    if not number and not was:
        allowed: tuple[str, ...] = ("",)
    elif number and was:
        wider = KINDS[to](0).itemsize - KINDS[source](0).itemsize
        allowed = ("",) if wider > 0 else tuple(_TO_INTEGRAL) if wider == 0 else ("rn",)
    else:
        allowed = ("rn",) if number else tuple(_TO_INTEGRAL)
    if mode not in allowed or "pred" in (to, source) or "b" in (to[0], source[0]):
        raise UnknownPtxError(f"cvt.{mode}.{to}.{source}")
    if not number and not was:
        return lambda x: x.astype(KINDS[to])
    return partial(_converted, mode, to)


# --- Threads ---------------------------------------------------------------------------------------------------------


@cache
def _constant(text: str, kind: str) -> Values:
    """A constant operand (4.5) as an array of one element."""
    hexadecimal = re.fullmatch(r"0([fFdD])([0-9A-Fa-f]{8}|[0-9A-Fa-f]{16})", text)
    if hexadecimal and len(hexadecimal[2]) == (8 if hexadecimal[1] in "fF" else 16):
        number = int(hexadecimal[2], 16)
    elif re.fullmatch(r"-?(?:\d+|0[xX][0-9A-Fa-f]+)U?", text):
        number = int(text.rstrip("U"), 0)
    else:
        raise UnknownPtxError(f"the operand {text}")
    if kind == "pred":
        return np.array([number != 0])
    size = KINDS[kind](0).itemsize
    return np.array([number & (1 << 8 * size) - 1], dtype=UNSIGNED[size]).view(KINDS[kind])


class Threads:
    """Threads that execute one instruction, and their registers."""

    def __init__(self, machine: Machine, ids: I64) -> None:
        self.machine, self.ids = machine, ids
        self._at: Any = slice(None) if len(ids) == machine.threads else ids

    def guarded(self, instruction: Instruction) -> Threads:
        if instruction.guard is None:
            return self
        chosen = self.read(instruction.guard, "pred") != instruction.negated
        return self if chosen.all() else Threads(self.machine, self.ids[chosen])

    def read(self, operand: Operand, kind: str) -> Values:
        """Return kind[n], or kind[1] of a constant: the low bits of a larger register (9.4.1)."""
        assert isinstance(operand, str)
        if operand == "global_smem":
            return np.zeros(1, dtype=KINDS[kind])
        if operand[0] != "%":
            return _constant(operand, kind)
        bits = self.machine.register(operand)[self._at]
        if kind == "pred":
            return bits
        unsigned = UNSIGNED[KINDS[kind](0).itemsize]
        if bits.dtype.itemsize < np.dtype(unsigned).itemsize or bits.dtype == np.bool_:
            raise UnknownPtxError(f"{operand} as {kind}")
        return np.ascontiguousarray(bits if bits.dtype == unsigned else bits.astype(unsigned)).view(KINDS[kind])

    def write(self, operand: Operand, value: Any, kind: str) -> None:
        """Write values; a larger register gets zeros above them, or the sign (9.4.1)."""
        assert isinstance(operand, str)
        if operand == "_":
            return
        register = self.machine.register(operand)
        if (register.dtype == np.bool_) != (kind == "pred") or register.dtype.itemsize < KINDS[kind](0).itemsize:
            raise UnknownPtxError(f"{operand} as {kind}")
        values = np.ascontiguousarray(value, dtype=KINDS[kind])
        if kind != "pred":
            values = values.view(UNSIGNED[values.itemsize]) if kind[0] != "s" else values
            values = values.astype(register.dtype)
        register[self._at] = values

    def addresses(self, operand: Operand) -> I64:
        """Return int64[n]."""
        assert isinstance(operand, Address)
        base = operand.base
        kind = "u64" if self.machine.kind_of(base) == "b64" else "u32"
        return np.broadcast_to(self.read(base, kind).astype(np.int64) + operand.offset, self.ids.shape)

    def warps(self, of: int = WARP) -> int:
        """Return the number of warps, or warpgroups. Raises DivergenceError where one is not whole (9.7.9.6)."""
        if len(self.ids) % of or (self.ids.reshape(-1, of) != self.ids[::of, None] // of * of + np.arange(of)).any():
            raise DivergenceError("not all threads of a warp are here")
        return len(self.ids) // of


def _vector(operand: Operand) -> tuple[str, ...]:
    if isinstance(operand, Address):
        raise UnknownPtxError(f"{operand} as a register")
    return operand if isinstance(operand, tuple) else (operand,)


# --- Instructions with other effects than a value --------------------------------------------------------------------

Action = Callable[[Threads, tuple[Operand, ...]], None]


def _evaluate(kinds: tuple[str, ...], result: str, function: Callable[..., Any], threads: Threads, operands: Any) -> None:
    to, *sources = operands
    values = (threads.read(one, kind) for one, kind in zip(sources, kinds, strict=True))
    threads.write(to, function(*values), result)


def _move(kind: str, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """mov (9.7.9.1), of a register, a constant, a special register (10) or an address; and of vectors."""
    to, source = operands
    if isinstance(to, tuple) or isinstance(source, tuple):
        parts = _vector(to if isinstance(to, tuple) else source)
        bits = 8 * KINDS[kind](0).itemsize // len(parts)
        shifts = [KINDS[kind](bits * place) for place in range(len(parts))]
        if isinstance(to, tuple):
            whole = threads.read(source, kind)
            for part, shift in zip(parts, shifts, strict=True):
                threads.write(part, (whole >> shift).astype(KINDS[f"b{bits}"]), f"b{bits}")
        else:
            values = (threads.read(part, f"b{bits}").astype(KINDS[kind]) for part in parts)
            shifted = [value << shift for value, shift in zip(values, shifts, strict=True)]
            threads.write(to, sum(shifted[1:], shifted[0]), kind)
    elif isinstance(source, str) and source in threads.machine.special:
        threads.write(to, threads.machine.special[source][threads.ids], kind)
    else:
        threads.write(to, threads.read(source, kind), kind)


def _load_parameter(kind: str, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """ld.param (9.7.9.8)."""
    to, source = operands
    assert isinstance(source, Address) and not source.offset
    threads.write(to, threads.machine.parameters[source.base][: KINDS[kind](0).itemsize].view(KINDS[kind]), kind)


def _load(space: str, many: int, kind: str, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """ld (9.7.9.8)."""
    to, source = operands
    addresses, width = threads.addresses(source), KINDS[kind](0).itemsize
    if (addresses % (many * width)).any():
        raise UnknownPtxError("a vector that is not aligned")
    for place, register in zip(range(many), _vector(to), strict=True):
        words = threads.machine.load(space, threads, addresses + place * width, width)
        threads.write(register, words.view(KINDS[kind]), kind)


def _store(space: str, many: int, kind: str, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """st (9.7.9.11)."""
    to, source = operands
    addresses, width = threads.addresses(to), KINDS[kind](0).itemsize
    if (addresses % (many * width)).any():
        raise UnknownPtxError("a vector that is not aligned")
    for place, register in zip(range(many), _vector(source), strict=True):
        values = np.broadcast_to(threads.read(register, kind).view(UNSIGNED[width]), threads.ids.shape)
        threads.machine.store(space, threads, addresses + place * width, width, values)


def _shuffle(mode: str, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """shfl.sync (9.7.9.6)."""
    to, source, b, c, members = operands
    warps = threads.warps()
    if members != "-1":
        raise UnknownPtxError(f"shfl.sync of {members}")
    values = np.broadcast_to(threads.read(source, "b32"), threads.ids.shape).reshape(warps, WARP)
    offset, ends = (np.broadcast_to(threads.read(x, "u32").astype(np.int64), threads.ids.shape) for x in (b, c))
    lane = np.tile(np.arange(WARP), warps)
    offset, clamp, segment = offset & 31, ends & 31, ends >> 8 & 31
    last = (lane & segment) | (clamp & ~segment)
    chosen = {
        "up": lane - offset,
        "down": lane + offset,
        "bfly": lane ^ offset,
        "idx": (lane & segment) | (offset & ~segment),
    }[mode]
    chosen = np.where(chosen >= last if mode == "up" else chosen <= last, chosen, lane)
    threads.write(to, np.take_along_axis(values, chosen.reshape(warps, WARP), axis=1).reshape(-1), "b32")


def _reduce(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """redux.sync.add.s32 (9.7.13.7)."""
    to, source, members = operands
    warps = threads.warps()
    if not (threads.read(members, "b32") == 0xFFFFFFFF).all():
        raise UnknownPtxError("redux.sync of some threads")
    values = np.broadcast_to(threads.read(source, "s32"), threads.ids.shape).reshape(warps, WARP)
    threads.write(to, values.sum(axis=1, dtype=np.int32).repeat(WARP), "s32")


_LANES = np.arange(WARP)
_ROW, _PAIR = _LANES // 4, _LANES % 4 * 2
"""Of a matrix of 8 by 8, the row of a thread's elements, and the column of the first of two (9.7.14.5.15)."""


def _matrix_places(threads: Threads, operand: Operand, matrices: int, transposed: bool) -> list[list[I64]]:
    """Addresses of each thread's elements of some matrices: one of 32 bits of each, or two of 16 bits."""
    rows = threads.addresses(operand).reshape(threads.warps(), WARP)[:, : 8 * matrices].reshape(-1, matrices, 8)
    if (rows % 16).any():
        raise UnknownPtxError("a row of a matrix that is not aligned")
    if transposed:
        return [[(rows[:, i, _PAIR + half] + 2 * _ROW).reshape(-1) for half in (0, 1)] for i in range(matrices)]
    return [[(rows[:, i, _ROW] + 2 * _PAIR).reshape(-1)] for i in range(matrices)]


def _load_matrices(matrices: int, transposed: bool, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """ldmatrix (9.7.14.5.15)."""
    to, source = operands
    places = _matrix_places(threads, source, matrices, transposed)
    for register, parts in zip(_vector(to), places, strict=True):
        words = [threads.machine.load("shared", threads, one, 4 // len(parts)).astype(np.uint32) for one in parts]
        threads.write(register, words[0] if len(words) == 1 else words[0] | words[1] << np.uint32(16), "b32")


def _store_matrices(matrices: int, transposed: bool, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """stmatrix (9.7.14.5.16)."""
    to, source = operands
    places = _matrix_places(threads, to, matrices, transposed)
    for register, parts in zip(_vector(source), places, strict=True):
        word = np.broadcast_to(threads.read(register, "b32"), threads.ids.shape)
        halves = [word] if len(parts) == 1 else [word.astype(np.uint16), (word >> np.uint32(16)).astype(np.uint16)]
        for one, half in zip(parts, halves, strict=True):
            threads.machine.store("shared", threads, one, half.itemsize, half)


def _number(words: Words, format: str) -> npt.NDArray[np.float64]:
    if format == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _multiply(format: str, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """mma.sync.aligned.m16n8k16.row.col.f32 (9.7.14.5.8)."""
    to, *sources = (_vector(one) for one in operands)
    warps = threads.warps()
    words = []
    for registers, rows in zip(sources[:2], (2, 1), strict=True):
        matrix = np.zeros((warps, 8 * rows, 16), dtype=np.uint16)
        for place, register in enumerate(registers):
            pair = threads.read(register, "b32").reshape(warps, WARP)
            for half in (0, 1):
                row, column = _ROW + 8 * (place % rows), _PAIR + half + 8 * (place // rows)
                matrix[:, row, column] = (pair >> np.uint32(16 * half)).astype(np.uint16)
        words.append(_number(matrix, format))
    c = np.zeros((warps, 16, 8), dtype=np.float32)
    of_sums = [(_ROW + 8 * (place // 2), _PAIR + place % 2) for place in range(4)]
    for register, (row, column) in zip(sources[2], of_sums, strict=True):
        c[:, row, column] = threads.read(register, "f32").reshape(-1, WARP)
    sums = threads.machine.cores[format].dot(c, words[0], words[1].swapaxes(1, 2))
    for register, (row, column) in zip(to, of_sums, strict=True):
        threads.write(register, sums[:, row, column].reshape(-1), "f32")


@dataclass(eq=False)
class _Copy:
    """cp.async of some threads that they have not waited for."""

    threads: I64
    group: I64
    places: I64
    data: npt.NDArray[np.uint8]


@dataclass(eq=False)
class _Product:
    """wgmma.mma_async of a warpgroup that it has not waited for."""

    threads: I64
    group: I64
    cells: list[I64]
    registers: tuple[str, ...]
    sums: npt.NDArray[np.float32]


def _swizzled(descriptor: int, lines: int, transposed: bool) -> I64:
    """Addresses of a matrix of so many lines and 16 terms, int64[lines, 16], by a descriptor (9.7.15.5.1.2)."""
    start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    if descriptor >> 49 & 7 or not descriptor >> 62:
        raise UnknownPtxError(f"the matrix descriptor {descriptor:#x}")
    swizzle = {1: 7, 2: 3, 3: 1}[descriptor >> 62]
    width = 16 * (swizzle + 1)
    line, term = np.arange(lines)[:, None], np.arange(16)[None, :]
    if transposed:
        some = width // 2
        places = start + line // some * leading + line % some * 2 + term // 8 * stride + term % 8 * width
    else:
        places = start + line // 8 * stride + line % 8 * width + term * 2
    return places ^ (places >> 7 & swizzle) << 4


def _multiply_in_warpgroup(columns: int, format: str, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """wgmma.mma_async.sync.aligned.m64nNk16.f32 of matrices in shared memory (9.7.15.5.2)."""
    to, left, right, scale, *immediates = operands
    machine = threads.machine
    if immediates[:2] != ["1", "1"]:
        raise UnknownPtxError("wgmma.mma_async with negated operands")
    descriptors = [np.broadcast_to(threads.read(one, "b64"), threads.ids.shape).reshape(-1, WARPGROUP) for one in (left, right)]
    counts = threads.read(scale, "pred")
    counts = np.broadcast_to(counts, threads.ids.shape).reshape(-1, WARPGROUP)
    if any((one != one[:, :1]).any() for one in (*descriptors, counts)):
        raise DivergenceError("threads of a warpgroup have different descriptors")
    for group in range(threads.warps(WARPGROUP)):
        ids = threads.ids[group * WARPGROUP :][:WARPGROUP]
        matrices, cells = [], []
        for one, lines, transposed in zip(descriptors, (64, columns), immediates[2:], strict=True):
            words, read = machine.shared.begin_product(ids, _swizzled(int(one[group, 0]), lines, transposed == "1"))
            matrices.append(_number(words, format))
            cells.append(read)
        before = np.zeros((64, columns), dtype=np.float32)
        if counts[group, 0]:
            waiting = [x for x in machine.products if x.registers == to and x.threads[0] == ids[0]]
            before = waiting[-1].sums if waiting else machine.sums_of(Threads(machine, ids), _vector(to))
        sums = machine.cores[format].dot(before, matrices[0], matrices[1].T)
        machine.products.append(_Product(ids, machine.product_groups[ids].copy(), cells, _vector(to), sums))


def _sum_places(registers: int) -> list[tuple[I64, I64]]:
    """Rows and columns of what a warpgroup's threads have of D (9.7.15.5.1.1)."""
    row = np.arange(WARPGROUP) // WARP * 16 + np.tile(_ROW, 4)
    pair = np.tile(_PAIR, 4)
    return [(row + 8 * (place // 2 % 2), pair + 8 * (place // 4) + place % 2) for place in range(registers)]


def _copy(size: int, threads: Threads, operands: tuple[Operand, ...]) -> None:
    """cp.async.ca, cp.async.cg (9.7.9.25.3.1): bytes beyond those of the source are zeros."""
    to, source, whole, *some = operands
    if whole not in (f"{size:#x}", str(size)):
        raise UnknownPtxError(f"cp.async of {whole} bytes")
    machine = threads.machine
    data = np.zeros((len(threads.ids), size), dtype=np.uint8)
    count = np.broadcast_to(threads.read(some[0], "u32") if some else np.array([size]), threads.ids.shape)
    addresses = threads.addresses(source)
    if (count > size).any() or not np.isin(count, (0, size)).all() or (addresses[count > 0] % size).any():
        raise UnknownPtxError("cp.async of some of its bytes, or of bytes that are not aligned")
    for place in range(0, size, 4):
        words = machine.memory.load(addresses[count > 0] + place, 4)
        data[count > 0, place : place + 4] = words.view(np.uint8).reshape(-1, 4)
    places = machine.shared.begin_copy(threads.ids, threads.addresses(to), size)
    machine.copies.append(_Copy(threads.ids, machine.copy_groups[threads.ids].copy(), places, data))


def _commit_copies(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """cp.async.commit_group (9.7.9.25.3.2)."""
    threads.machine.copy_groups[threads.ids] += 1


def _wait_for_copies(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """cp.async.wait_group (9.7.9.25.3.3)."""
    machine = threads.machine
    done = np.full(machine.threads, -1, dtype=np.int64)
    done[threads.ids] = machine.copy_groups[threads.ids] - int(str(operands[0]))
    left = []
    for one in machine.copies:
        ended = one.group < done[one.threads]
        machine.shared.end_copy(one.threads[ended], one.places[ended], one.data[ended])
        if not ended.all():
            left.append(_Copy(one.threads[~ended], one.group[~ended], one.places[~ended], one.data[~ended]))
    machine.copies = left


def _commit_products(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """wgmma.commit_group.sync.aligned (9.7.15.7.2)."""
    threads.warps()
    threads.machine.product_groups[threads.ids] += 1


def _wait_for_products(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """wgmma.wait_group.sync.aligned (9.7.15.7.3)."""
    machine = threads.machine
    threads.warps(WARPGROUP)
    left = []
    for one in machine.products:
        there = np.isin(one.threads, threads.ids)
        if not there.all() or (one.group >= machine.product_groups[one.threads] - int(str(operands[0]))).any():
            left.append(one)
            continue
        for cells in one.cells:
            machine.shared.end_product(one.threads, cells)
        its = Threads(machine, one.threads)
        for register, (row, column) in zip(one.registers, _sum_places(len(one.registers)), strict=True):
            its.write(register, one.sums[row, column], "f32")
    machine.products = left


def _fence_proxy(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """fence.proxy.async.shared::cta (9.7.13.4)."""
    threads.machine.shared.fenced[threads.ids // WARP] = threads.machine.shared.clock


def _order_warp(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """bar.warp.sync (9.7.13.2)."""
    threads.warps()
    if operands != ("-1",):
        raise UnknownPtxError(f"bar.warp.sync {operands}")
    threads.machine.shared.synced[threads.ids[::WARP] // WARP] += 1


def _nothing(threads: Threads, operands: tuple[Operand, ...]) -> None:
    """wgmma.fence (9.7.15.7.1) orders registers, which are written in order here."""


ACTIONS: dict[str, Action] = {
    "nothing": _nothing,
    "wgmma.fence.sync.aligned": _nothing,
    "bar.warp.sync": _order_warp,
    "fence.proxy.async.shared::cta": _fence_proxy,
    "cp.async.commit_group": _commit_copies,
    "cp.async.wait_group": _wait_for_copies,
    "wgmma.commit_group.sync.aligned": _commit_products,
    "wgmma.wait_group.sync.aligned": _wait_for_products,
    "redux.sync.add.s32": _reduce,
    **{f"mma.sync.aligned.m16n8k16.row.col.f32.{x}.{x}.f32": partial(_multiply, x) for x in ("bf16", "f16")},
    **{f"shfl.sync.{mode}.b32": partial(_shuffle, mode) for mode in ("up", "down", "bfly", "idx")},
}
CONTROL = "bra", "bra.uni", "ret", "bar.sync"


@cache
def action_of(opcode: str) -> Action:
    """Return what an opcode, with its modifiers and types, does. Raises UnknownPtxError."""
    if opcode in ACTIONS:
        return ACTIONS[opcode]
    name, _, kind = opcode.rpartition(".")
    if kind == "u16x2":
        name, kind = opcode, "b32"
    if name in VALUES and kind in VALUES[name][0]:
        _, sources, result, function = VALUES[name]
        types = {SAME: kind, "double": f"{kind[0]}{2 * 8 * KINDS[kind](0).itemsize}"}
        return partial(_evaluate, tuple(types.get(x, x) for x in sources), types.get(result, result), function)
    if found := re.fullmatch(r"cvt(?:\.(r[nzmp]i?))?\.(\w+)\.(\w+)", opcode):
        mode, to, source = found[1] or "", found[2], found[3]
        if to in KINDS and source in KINDS:
            return partial(_evaluate, (source,), to, _conversion(mode, to, source))
    if name == "mov" and kind in KINDS:
        return partial(_move, f"b{kind[1:]}" if kind != "pred" else kind)
    if name == "ld.param" and kind in KINDS:
        return partial(_load_parameter, kind)
    if (found := re.fullmatch(r"(ld|st)\.(global|shared)(?:\.v([24]))?", name)) and kind in KINDS and kind != "pred":
        return partial(_load if found[1] == "ld" else _store, found[2], int(found[3] or 1), kind)
    if found := re.fullmatch(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared\.b16", opcode):
        return partial(_load_matrices if found[1] == "ld" else _store_matrices, int(found[2]), found[3] is not None)
    if found := re.fullmatch(r"cp\.async\.c([ag])\.shared\.global", opcode):
        return _copy_of(found[1])
    if found := re.fullmatch(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(b?f16)\.\2", opcode):
        return partial(_multiply_in_warpgroup, int(found[1]), found[2])
    raise UnknownPtxError(opcode)


def _copy_of(level: str) -> Action:
    """cp.async.cg has 16 bytes, cp.async.ca 4, 8 or 16."""

    def copy(threads: Threads, operands: tuple[Operand, ...]) -> None:
        size = int(str(operands[2]), 0)
        if size not in ((16,) if level == "g" else (4, 8, 16)):
            raise UnknownPtxError(f"cp.async.c{level} of {size} bytes")
        _copy(size, threads, operands)

    return copy


# --- Execution -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Unit:
    """Threads that are executed until they wait for others, before any other threads are."""

    ready: dict[int, I64] = field(default_factory=dict)
    waiting: dict[int, list[I64]] = field(default_factory=dict)


class Machine:
    """Some blocks of a grid, which execute a program."""

    def __init__(
        self, program: PtxProgram, grid: int, blocks: range, parameters: Sequence[bytes], memory: GlobalMemory,
        shared: int, cores: dict[str, TensorCores],
    ) -> None:  # fmt: skip
        """shared: bytes of dynamic shared memory. cores: by formats of operands."""
        self.program, self.memory, self.cores = program, memory, cores
        self.threads = len(blocks) * program.threads
        ids = np.arange(self.threads)
        self.special = {
            "%tid.x": ids % program.threads,
            "%ctaid.x": ids // program.threads + blocks.start,
            "%nctaid.x": np.full(self.threads, grid),
            "%laneid": ids % WARP,
        }
        self.parameters = {
            name: np.frombuffer(value, dtype=np.uint8)
            for (name, _), value in zip(program.parameters, parameters, strict=True)
        }
        accesses = [one.opcode for one in program.instructions if re.match(r"(ld|st)\.shared|ldmatrix|stmatrix|wgmma", one.opcode)]
        widths = [2 if "matrix" in one or "wgmma" in one else int(one.rpartition(".")[2][1:]) // 8 for one in accesses]
        self.shared = SharedMemory(len(blocks), max(shared, 16), program.threads, min([*widths, 4]))
        self.copies: list[_Copy] = []
        self.products: list[_Product] = []
        self.copy_groups, self.product_groups = np.zeros((2, self.threads), dtype=np.int64)
        self._registers: dict[str, Values] = {}
        self._actions = [None if one.opcode in CONTROL else action_of(one.opcode) for one in program.instructions]

    def kind_of(self, register: str) -> str:
        """Return the type that a register was declared with."""
        return self.program.registers.get(register.rstrip("0123456789"), "")

    def register(self, name: str) -> Values:
        """Return a register of all threads. Before it is written it holds a pattern that no result is."""
        found = self._registers.get(name)
        if found is None:
            kind = self.kind_of(name)
            if not kind:
                raise UnknownPtxError(f"the register {name}")
            size = KINDS[kind](0).itemsize
            pattern = np.frombuffer(b"\xa5" * size, dtype=UNSIGNED[size])[0]
            found = np.full(self.threads, pattern) if kind != "pred" else np.zeros(self.threads, dtype=np.bool_)
            self._registers[name] = found
        return found

    def load(self, space: str, threads: Threads, addresses: I64, width: int) -> Words:
        if space == "global":
            return self.memory.load(addresses, width)
        return self.shared.load(threads.ids, addresses, width)

    def store(self, space: str, threads: Threads, addresses: I64, width: int, values: Words) -> None:
        if space == "global":
            self.memory.store(addresses, width, values)
        else:
            self.shared.store(threads.ids, addresses, width, values)

    def sums_of(self, threads: Threads, registers: tuple[str, ...]) -> npt.NDArray[np.float32]:
        """Return the matrix D that a warpgroup's registers hold."""
        sums = np.empty((64, 2 * len(registers)), dtype=np.float32)
        for register, (row, column) in zip(registers, _sum_places(len(registers)), strict=True):
            sums[row, column] = threads.read(register, "f32")
        return sums

    def run(self, order: int) -> None:
        """Execute all threads. order: 0, all at once; 1 or -1: warps, or warpgroups, one after the other, the first or
        the last one first."""
        every = np.arange(self.threads)
        size = self.threads if not order else WARPGROUP if any(one.opcode.startswith("wgmma") for one in self.program.instructions) else WARP
        units = [_Unit({0: every[first : first + size]}) for first in range(0, self.threads, size)]
        with np.errstate(all="ignore"):
            while any(unit.ready for unit in units):
                for unit in units if order >= 0 else reversed(units):
                    self._advance(unit)
                self._release(units)
        if self.copies or self.products:
            raise DivergenceError("the program ends before its copies, or its products, do")

    def _advance(self, unit: _Unit) -> None:
        while unit.ready:
            place = min(unit.ready)
            ids = unit.ready.pop(place)
            while True:
                others = unit.ready.pop(place, None)
                if others is not None:
                    ids = np.union1d(ids, others)
                instruction = self.program.instructions[place]
                threads = Threads(self, ids)
                acting = threads.guarded(instruction)
                if instruction.opcode in CONTROL:
                    if not self._jump(unit, place, ids, acting.ids):
                        break
                elif len(acting.ids):
                    self.shared.clock += 1
                    try:
                        self._actions[place](acting, instruction.operands)  # type: ignore[misc]
                    except Exception as error:
                        error.add_note(f"{self.program.name}, instruction {place}: {instruction.text}")
                        raise
                place += 1

    def _jump(self, unit: _Unit, place: int, ids: I64, acting: I64) -> bool:
        """Do an instruction of control flow (9.7.12, 9.7.13.1); return whether all threads go on behind it."""
        instruction = self.program.instructions[place]
        rest = np.setdiff1d(ids, acting, assume_unique=True)
        if instruction.opcode == "bar.sync":
            if instruction.operands != ("0",) or len(rest):
                raise UnknownPtxError(instruction.text)
            unit.waiting.setdefault(place, []).append(acting)
            return False
        if instruction.opcode != "ret" and len(acting):
            target = self.program.labels[str(instruction.operands[0])]
            unit.ready[target] = np.union1d(unit.ready.get(target, acting), acting)
        if not len(acting):
            return True
        if len(rest):
            unit.ready[place + 1] = np.union1d(unit.ready.get(place + 1, rest), rest)
        return False

    def _release(self, units: list[_Unit]) -> None:
        """Let threads go on whose blocks have come to a barrier as a whole (9.7.13.1)."""
        arrived: dict[int, list[I64]] = {}
        for unit in units:
            for place, sets in unit.waiting.items():
                arrived.setdefault(place, []).extend(sets)
        for place, sets in arrived.items():
            ids = np.sort(np.concatenate(sets))
            blocks, counts = np.unique(ids // self.program.threads, return_counts=True)
            if (counts != self.program.threads).any():
                raise DivergenceError(f"not all threads of a block come to the barrier at {place}")
            self.shared.barriers[blocks] += 1
            self.shared.synced[np.unique(ids // WARP)] += 1
        for unit in units:
            for place, sets in unit.waiting.items():
                unit.ready[place + 1] = np.sort(np.concatenate(sets))
            unit.waiting.clear()


def execute(
    program: PtxProgram, grid: int, parameters: Sequence[bytes], tensors: Sequence[torch.Tensor], shared: int,
    cores: dict[str, TensorCores], order: int = 0,
) -> None:  # fmt: skip
    """Execute a program on a grid of blocks in one dimension.

    parameters: values of the entry function's, in their order. tensors: all that it may access, on the CPU. shared:
    bytes of dynamic shared memory. cores: tensor cores, by formats. order: as `Machine.run` has it; of blocks, too."""
    memory = GlobalMemory(tensors)
    step = max(TOGETHER // program.threads, 1)
    batches = [range(first, min(first + step, grid)) for first in range(0, grid, step)]
    for blocks in batches if order >= 0 else reversed(batches):
        Machine(program, grid, blocks, parameters, memory, shared, cores).run(order)
