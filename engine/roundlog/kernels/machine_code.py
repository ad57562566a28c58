"""A tape as one loop of machine code: every value of it stays in the processor's registers.

LLVM compiles one loop for vectors of `LANES` elements, and one for the elements that are left over, without fast-math
flags: every operation is the one that IEEE 754 defines, and none is contracted to FMA. The result has the bits of the
operators one by one, which need no compiling, but read and write memory for each.

A tape is compiled once it has been used for some steps. Before, its operators are computed one by one, so that a
program that runs once takes no time for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import config
from numba.core.codegen import get_host_cpu_features

from roundlog.kernels import tape
from roundlog.kernels.number_words import (
    constant,
    everywhere,
    from_words,
    intrinsic_of,
    like,
    nearest_numbers,
    upper_halves,
)
from roundlog.kernels.tape import BF16, BOOL, F32, Tape
from roundlog.kernels.threads import in_parts

LANES = 16
"""Elements of a vector: a register of AVX-512. LLVM takes several registers where they are narrower."""

ALIGNMENT = 4 * LANES
"""Bytes of a vector."""

WHOLE, SCALAR, ROWS, COLUMNS = range(4)
"""Ways to read an input, element e of the output reading element (e // inner) % count of it: inner 1 and count the
output's size, count 1, inner more than 1, inner 1."""

_ARITHMETIC = {
    tape.ADD: ir.IRBuilder.fadd,
    tape.SUB: ir.IRBuilder.fsub,
    tape.MUL: ir.IRBuilder.fmul,
    tape.DIV: ir.IRBuilder.fdiv,
    # Both numbers are 1 or 0.
    tape.AND: ir.IRBuilder.fmul,
}
_FUNCTIONS = {tape.SQRT: "sqrt", tape.FLOOR: "floor", tape.ABS: "fabs"}
_COMPARISONS = {tape.EQ: "==", tape.LT: "<", tape.LE: "<="}
_CHOICES = {tape.MAXIMUM: ">", tape.MINIMUM: "<"}

_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000

_F32, _I1, _I8, _I16, _I32, _I64 = ir.FloatType(), *(ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
_MEMORY = {F32: (_F32, 4), BOOL: (_I8, 1), BF16: (_I16, 2)}
"""Type of an element in memory, and its bytes."""
_POINTER = ir.PointerType()


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a chain, all that its machine code is made of: chains of one form share the code, whatever their size."""

    tape: Tape
    inputs: tuple[tuple[int, int], ...]
    """(how it is read, F32, BOOL or BF16) of every input."""
    outputs: tuple[int, ...]
    """F32, BOOL or BF16."""
    streamed: bool = False
    """Write outputs, but of bool, past the cache: they begin at multiples of `ALIGNMENT` bytes, and no input is read in
    rows or columns."""


def target_machine() -> llvm.TargetMachine:
    """The machine that numba compiles for: its settings count here, too."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    settings: Any = config
    cpu = settings.CPU_NAME or llvm.get_host_cpu_name()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=target_features(), opt=2, jit=True)


def target_features() -> str:
    """Features that this machine's processor has beyond those of its name, or lacks, as LLVM takes them: `+name` or
    `-name`, comma-separated."""
    settings: Any = config
    features: str | None = settings.CPU_FEATURES
    return str(get_host_cpu_features()) if features is None else features  # type: ignore[no-untyped-call]


class MachineCode:
    """Compiled, as long as this object lives."""

    def __init__(self, form: Form) -> None:
        machine = target_machine()
        module = llvm.parse_assembly(str(_Loops(form).module))
        module.verify()
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._call = cast(Callable[[Any, Any, int, int], int], kind(self._engine.get_function_address("tape")))

    def __call__(self, addresses: Any, patterns: Any, start: int, stop: int) -> bool:
        """Compute the elements from start, a multiple of LANES, to stop, not empty. addresses: of int64[inputs +
        outputs] with the addresses of all of them; patterns: of int64[inputs, 2], inner and count. Returns False if a
        result that has to be finite is not. Does without Python's lock."""
        return self._call(addresses, patterns, start, stop) < _INFINITY


class _Loops:
    """LLVM module of a form: one function, two loops. The output is cut into segments, in which every broadcast input
    stays in its row or does not come to the end of its columns; each is computed in vectors, then what is left over in
    single elements."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self.module = ir.Module()
        kind = ir.FunctionType(_I32, [_POINTER, _POINTER, _I64, _I64])
        function = ir.Function(self.module, kind, "tape")
        addresses, self._patterns, start, stop = function.args
        blocks = ("entry", "segment", "vectors", "rest", "singles", "end", "done")
        entry, segment, vectors, rest, singles, end, done = map(function.append_basic_block, blocks)
        build = self._build = ir.IRBuilder(entry)
        slots = range(len(form.inputs) + len(form.outputs))
        self._memory = [build.load(build.gep(addresses, [constant(i)], source_etype=_I64), typ=_POINTER) for i in slots]
        patterns = {slot: self._pattern(slot) for slot, (read, _) in enumerate(form.inputs) if read in (ROWS, COLUMNS)}
        self._filled = {
            slot: self._fill(kind, self._memory[slot])
            for slot, (read, kind) in enumerate(form.inputs)
            if read == SCALAR
        }
        build.branch(segment)

        build.position_at_end(segment)
        first, vector_bad, single_bad = (build.phi(one) for one in (_I64, _type(_I32, LANES), _I32))
        last: Any = stop
        for slot, (inner, count) in patterns.items():
            last = self._segment(slot, inner, count, first, last)
        whole = build.sub(last, build.urem(build.sub(last, first), constant(LANES)))
        vector_worst = self._loop(LANES, first, whole, vector_bad, vectors, rest)
        single_worst = self._loop(1, whole, last, single_bad, singles, end)
        for value, begins, goes_on in (
            (first, start, last),
            (vector_bad, _zero(vector_bad.type), vector_worst),
            (single_bad, _zero(_I32), single_worst),
        ):
            value.add_incoming(begins, entry)
            value.add_incoming(goes_on, end)
        build.cbranch(build.icmp_unsigned("<", last, stop), segment, done)

        build.position_at_end(done)
        if form.streamed:
            # Stores past the cache are not ordered by what tells another thread that they are done.
            build.fence("seq_cst")
        largest = intrinsic_of(build, "vector.reduce.umax", vector_worst, result=_I32)
        build.ret(intrinsic_of(build, "umax", largest, single_worst))

    def _pattern(self, slot: int) -> tuple[Any, Any]:
        """Inner and count of an input."""
        build, places = self._build, (2 * slot, 2 * slot + 1)
        inner, count = (
            build.load(build.gep(self._patterns, [constant(place)], source_etype=_I64), typ=_I64) for place in places
        )
        return inner, count

    def _fill(self, kind: int, pointer: Any) -> dict[int, Any]:
        """A number of an input, alone and in all lanes of a vector, by the number of lanes."""
        build = self._build
        one = self._value(kind, build.load(pointer, typ=_MEMORY[kind][0]))
        return {1: one, LANES: everywhere(build, one, LANES)}

    def _segment(self, slot: int, inner: Any, count: Any, first: Any, last: Any) -> Any:
        """Make a broadcast input ready for the segment that begins at `first`, and ends at `last` or, because of this
        input, earlier. Returns where it ends."""
        build, (read, kind) = self._build, self._form.inputs[slot]
        if read == ROWS:
            row = build.udiv(first, inner)
            place = build.gep(self._memory[slot], [build.urem(row, count)], source_etype=_MEMORY[kind][0])
            self._filled[slot] = self._fill(kind, place)
            end = build.mul(build.add(row, constant(1)), inner)
        else:
            # Element i of the output reads what lies i behind this.
            before = build.sub(build.urem(first, count), first)
            self._memory[slot] = build.gep(self._memory[slot], [before], source_etype=_MEMORY[kind][0])
            end = build.sub(count, before)
        return build.select(build.icmp_unsigned("<", end, last), end, last)

    def _loop(self, lanes: int, first: Any, last: Any, bad: Any, loop: Any, after: Any) -> Any:
        """The tape from `first` to `last`, so many lanes at a time. Returns the largest magnitude so far among what has
        to be finite, `bad` before."""
        build, before = self._build, self._build.block
        build.cbranch(build.icmp_unsigned("<", first, last), loop, after)
        build.position_at_end(loop)
        element, worst = build.phi(_I64), build.phi(bad.type)
        found = self._body(element, lanes, worst)
        following = build.add(element, constant(lanes))
        for value, begins, goes_on in ((element, first, following), (worst, bad, found)):
            value.add_incoming(begins, before)
            value.add_incoming(goes_on, loop)
        build.cbranch(build.icmp_unsigned("<", following, last), loop, after)
        build.position_at_end(after)
        result = build.phi(bad.type)
        result.add_incoming(bad, before)
        result.add_incoming(found, loop)
        return result

    def _body(self, element: Any, lanes: int, bad: Any) -> Any:
        """The tape for some neighbouring elements. Returns the largest magnitude among what has to be finite, and
        `bad`."""
        form = self._form
        # Numbers are floats, bool values masks.
        values = [
            self._load(slot, kind, element, lanes) if read in (WHOLE, COLUMNS) else self._filled[slot][lanes]
            for slot, (read, kind) in enumerate(form.inputs)
        ]
        for code, a, b, c, checked in form.tape.instructions:
            values.append(self._do(code, values[a], values[b], values[c]))
            if checked:
                bad = intrinsic_of(self._build, "umax", bad, self._magnitude(values[-1]))
        for position, (value, kind) in enumerate(zip(form.tape.outputs, form.outputs, strict=True)):
            self._store(len(form.inputs) + position, values[value], kind, element, lanes)
        return bad

    def _do(self, code: int, a: Any, b: Any, c: Any) -> Any:
        build = self._build
        if code in (tape.AND, tape.OR, tape.NOT) and _is_mask(a) and _is_mask(b):
            if code == tape.NOT:
                return build.xor(a, ir.Constant(a.type, 1))
            return build.and_(a, b) if code == tape.AND else build.or_(a, b)
        if code == tape.WHERE:
            masks = _is_mask(b) and _is_mask(c)
            return build.select(self._mask(a), *((b, c) if masks else (self._float(b), self._float(c))))
        x, y = self._float(a), self._float(b)
        if code in _COMPARISONS:
            return build.fcmp_ordered(_COMPARISONS[code], x, y)
        if code in _ARITHMETIC:
            return _ARITHMETIC[code](build, x, y)
        if code in _FUNCTIONS:
            return intrinsic_of(build, _FUNCTIONS[code], x)
        if code == tape.OR:
            return build.select(build.fcmp_ordered(">", x, y), x, y)
        if code in _CHOICES:
            first = build.fcmp_ordered(_CHOICES[code], x, y)
            return build.select(build.or_(first, build.fcmp_unordered("uno", x, x)), x, y)
        if code == tape.NEG:
            return build.fneg(x)
        if code == tape.ROUND:
            return nearest_numbers(build, x)
        if code == tape.NOT:
            return build.fsub(ir.Constant(x.type, 1.0), x)
        assert code == tape.COPY
        return x

    def _float(self, value: Any) -> Any:
        if not _is_mask(value):
            return value
        floats = like(value.type, _F32)
        return self._build.select(value, ir.Constant(floats, 1.0), ir.Constant(floats, 0.0))

    def _mask(self, value: Any) -> Any:
        if _is_mask(value):
            return value
        # NaN counts as true.
        return self._build.fcmp_unordered("!=", value, ir.Constant(value.type, 0.0))

    def _magnitude(self, value: Any) -> Any:
        """Magnitude as an integer: magnitudes compare like the numbers, and infinities and NaN come last."""
        words = self._build.bitcast(self._float(value), like(value.type, _I32))
        return self._build.and_(words, ir.Constant(words.type, _MAGNITUDE))

    def _place(self, slot: int, kind: int, element: Any) -> Any:
        return self._build.gep(self._memory[slot], [element], source_etype=_MEMORY[kind][0])

    def _load(self, slot: int, kind: int, element: Any, lanes: int) -> Any:
        place, (element_type, size) = self._place(slot, kind, element), _MEMORY[kind]
        return self._value(kind, self._build.load(place, align=size, typ=_type(element_type, lanes)))

    def _value(self, kind: int, found: Any) -> Any:
        """The number to compute with, from its word in memory."""
        if kind == BOOL:
            return self._build.icmp_unsigned("!=", found, _zero(found.type))
        return from_words(self._build, found) if kind == BF16 else found

    def _store(self, slot: int, value: Any, kind: int, element: Any, lanes: int) -> None:
        build, place = self._build, self._place(slot, kind, element)
        if kind == BOOL:
            mask = self._mask(value)
            build.store(build.zext(mask, like(mask.type, _I8)), place, align=1)
            return
        numbers, size = self._float(value), _MEMORY[kind][1]
        if kind == BF16:
            numbers = upper_halves(build, numbers)
        if self._form.streamed and lanes > 1:
            store = build.store(numbers, place, align=lanes * size)
            store.set_metadata("nontemporal", self.module.add_metadata([ir.Constant(_I32, 1)]))
        else:
            build.store(numbers, place, align=size)


def _type(element: Any, lanes: int) -> Any:
    return ir.VectorType(element, lanes) if lanes > 1 else element


def _is_mask(value: Any) -> bool:
    return bool(like(value.type, _I1) == value.type)


def _zero(kind: Any) -> Any:
    return ir.Constant(kind, 0)


WORTH = 1 << 22
"""Elements times instructions of a chain that are computed one by one before it is compiled."""

BEGUN = 1 << 16
"""Elements that count for every use of an instruction, beside those that there are."""

_CACHED = 1 << 18
"""Elements of an output that could still be in the cache when it is needed."""

_GRAIN = 1 << 12
"""Elements between which threads may be given different parts."""


@dataclass(frozen=True, slots=True)
class TapeOperand:
    """Operand of a chain: element e of the output reads element (e // inner) % count."""

    kind: int
    """F32, BOOL or BF16."""
    inner: int
    count: int

    def read(self, size: int) -> int:
        if self.inner == 1 and self.count == size:
            return WHOLE
        if self.count == 1:
            return SCALAR
        return ROWS if self.inner > 1 else COLUMNS


_compiled = lru_cache(maxsize=256)(MachineCode)
"""Machine code of a form, which programs share."""


class Chain:
    """A tape over `size` > 0 elements: machine code divides by numbers of rows and columns."""

    def __init__(
        self, tape: Tape, inputs: Sequence[TapeOperand], outputs: Sequence[int], size: int, last: bool = False
    ) -> None:
        """outputs: F32, BOOL or BF16. last: nobody reads the outputs for a while; their memory begins at multiples of
        ALIGNMENT bytes."""
        self._size, self._instructions = size, len(tape.instructions)
        reads = tuple((operand.read(size), operand.kind) for operand in inputs)
        streamed = last and size >= _CACHED and all(read in (WHOLE, SCALAR) for read, _ in reads)
        self._form = Form(tape, reads, tuple(outputs), streamed)
        self._code: MachineCode | None = None
        self._work = 0
        patterns = [number for x in inputs for number in (x.inner, x.count)]
        self._patterns = (ctypes.c_int64 * len(patterns))(*patterns)
        self._addresses: Any = ctypes.c_int64 * (len(inputs) + len(outputs))

    def is_worth(self) -> bool:
        """Return whether the chain is to be played as machine code by now; to be asked before every use."""
        self._work += self._instructions * (BEGUN + self._size)
        return self._work > WORTH

    def play(self, inputs: list[int], outputs: list[int]) -> bool:
        """inputs, outputs: addresses of memory that is the caller's, contiguous, and outlives the call. Returns False
        if a result that has to be finite is not."""
        code = self._code = self._code or _compiled(self._form)
        addresses, results, size = self._addresses(*inputs, *outputs), [], self._size
        if size <= _GRAIN:
            return code(addresses, self._patterns, 0, size)

        def part(start: int, stop: int) -> None:
            results.append(code(addresses, self._patterns, start * _GRAIN, min(stop * _GRAIN, size)))

        in_parts(part, -(-size // _GRAIN), size * (1 + self._instructions // 8))
        return all(results)
