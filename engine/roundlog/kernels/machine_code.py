"""A tape as one loop of machine code: every value of it stays in the processor's registers.

The loop is written in LLVM's language, for vectors of `LANES` elements and once more for the elements that are left
over, and compiled without fast-math flags: every operation is the one that IEEE 754 defines, and none is contracted to
FMA. It gives the bits that `roundlog.kernels.tape` gives by going from instruction to instruction, which needs no
compiling, but reads and writes the cache for each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import llvmlite.binding as llvm
from numba.core import config

from roundlog.kernels.tape import BOOL, F32, Assignments, Code

LANES = 16
"""Elements of a vector: a register of AVX-512. LLVM takes several registers where they are narrower."""

ALIGNMENT = 4 * LANES
"""Bytes of a vector."""

WHOLE, SCALAR, ROWS, COLUMNS = range(4)
"""How an input is read, element e of the output reading element (e // inner) % count of it: inner 1 and count the
output's size, count 1, inner more than 1, inner 1."""

_ARITHMETIC = {Code.ADD: "fadd", Code.SUB: "fsub", Code.MUL: "fmul", Code.DIV: "fdiv"}
_FUNCTIONS = {Code.SQRT: "sqrt", Code.FLOOR: "floor", Code.ABS: "fabs"}
_COMPARISONS = {Code.EQ: "oeq", Code.LT: "olt", Code.LE: "ole"}
_CHOICES = {Code.MAXIMUM: "ogt", Code.MINIMUM: "olt"}

_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000


@dataclass(frozen=True, slots=True)
class Form:
    """All that machine code is made of. What has the same form shares it, whatever its size."""

    tape: Assignments
    inputs: tuple[tuple[int, int], ...]
    """(how it is read, F32 or BOOL) of every input."""
    outputs: tuple[int, ...]
    """F32 or BOOL."""
    streamed: bool = False
    """Write FP32 outputs past the cache: they begin at multiples of `ALIGNMENT` bytes, and no input is read in rows or
    columns."""


class MachineCode:
    """Compiled, as long as this object lives."""

    def __init__(self, form: Form) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(_Writer(form).text())
        module.verify()
        # The machine that numba compiles for: its settings count here, too.
        settings: Any = config
        cpu = settings.CPU_NAME or llvm.get_host_cpu_name()
        features = settings.CPU_FEATURES
        if features is None:
            features = llvm.get_host_cpu_features().flatten()
        machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=2, jit=True)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._call = cast(Callable[[Any, Any, int, int], int], kind(self._engine.get_function_address("tape")))

    def __call__(self, addresses: Any, patterns: Any, start: int, stop: int) -> bool:
        """Compute the elements from start, a multiple of LANES, to stop, not empty. addresses: of int64[inputs +
        outputs] with the addresses of all of them; patterns: of int64[inputs, 2], inner and count. Returns False if a
        result that has to be finite is not. Does without Python's lock."""
        return self._call(addresses, patterns, start, stop) < _INFINITY


class _Writer:
    """Writes a form's code down. Values are named after what they are: %v7 is value 7 of the tape in vectors, %s7 the
    same in single elements."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._lines: list[str] = []
        self._count = 0

    def text(self) -> str:
        form, put = self._form, self._put
        put("define i32 @tape(ptr %addresses, ptr %patterns, i64 %start, i64 %stop) {", "entry:")
        for slot in range(len(form.inputs) + len(form.outputs)):
            put(f"  %at{slot} = getelementptr i64, ptr %addresses, i64 {slot}", f"  %m{slot} = load ptr, ptr %at{slot}")
        varying = [slot for slot, (read, _) in enumerate(form.inputs) if read in (ROWS, COLUMNS)]
        for slot in varying:
            for field, name in enumerate(("inner", "count")):
                put(f"  %{name}at{slot} = getelementptr i64, ptr %patterns, i64 {2 * slot + field}")
                put(f"  %{name}{slot} = load i64, ptr %{name}at{slot}")
        for slot, (read, kind) in enumerate(form.inputs):
            if read == SCALAR:
                self._fill(slot, kind, f"%m{slot}")
        # A segment is as long as every broadcast input stays in its row, or comes to the end of its columns.
        integers = _type(LANES, "i32")
        put("  br label %segment", "segment:", "  %first = phi i64 [%start, %entry], [%last, %end]")
        put(f"  %vbad = phi {integers} [zeroinitializer, %entry], [%vbad2, %end]")
        put("  %sbad = phi i32 [0, %entry], [%sbad2, %end]", "  %last0 = add i64 %stop, 0")
        for position, slot in enumerate(varying):
            self._segment(slot, *form.inputs[slot], f"%last{position}", f"%last{position + 1}")
        put(f"  %last = add i64 %last{len(varying)}, 0", "  %length = sub i64 %last, %first")
        put(f"  %over = urem i64 %length, {LANES}", "  %whole = sub i64 %last, %over")
        self._loop("v", LANES, "%first", "%whole", "segment", "rest")
        self._loop("s", 1, "%whole", "%last", "rest", "end")
        put("  %more = icmp ult i64 %last, %stop", "  br i1 %more, label %segment, label %done", "done:")
        if form.streamed:
            # Stores past the cache are not ordered by what tells another thread that they are done.
            put("  fence seq_cst")
        put(f"  %largest = call i32 @llvm.vector.reduce.umax.v{LANES}i32({integers} %vbad2)")
        put("  %bad = call i32 @llvm.umax.i32(i32 %largest, i32 %sbad2)", "  ret i32 %bad", "}")
        put(f"declare i32 @llvm.vector.reduce.umax.v{LANES}i32({integers})")
        for lanes in (1, LANES):
            for name in _FUNCTIONS.values():
                floats = _type(lanes, "float")
                put(f"declare {floats} @llvm.{name}{_suffix(lanes, 'f32')}({floats})")
            integers = _type(lanes, "i32")
            put(f"declare {integers} @llvm.umax{_suffix(lanes, 'i32')}({integers}, {integers})")
        put("!0 = !{i32 1}")
        return "\n".join(self._lines)

    def _put(self, *lines: str) -> None:
        self._lines.extend(lines)

    def _new(self, operation: str) -> str:
        """The name of what an operation gives."""
        self._count += 1
        self._put(f"  %x{self._count} = {operation}")
        return f"%x{self._count}"

    def _fill(self, slot: int, kind: int, pointer: str) -> None:
        """An input that is one and the same number: %v and %s of it."""
        if kind == BOOL:
            byte = self._new(f"load i8, ptr {pointer}")
            self._put(f"  %s{slot} = icmp ne i8 {byte}, 0")
        else:
            self._put(f"  %s{slot} = load float, ptr {pointer}")
        vector = _type(LANES, _element(kind))
        one = self._new(f"insertelement {vector} poison, {_element(kind)} %s{slot}, i32 0")
        zeros = f"<{LANES} x i32> zeroinitializer"
        self._put(f"  %v{slot} = shufflevector {vector} {one}, {vector} poison, {zeros}")

    def _segment(self, slot: int, read: int, kind: int, last: str, earlier: str) -> None:
        """Make a broadcast input ready for the segment that begins at %first, and ends at `last` or, because of this
        input, earlier."""
        memory = "i8" if kind == BOOL else "float"
        if read == ROWS:
            row = self._new(f"udiv i64 %first, %inner{slot}")
            element = self._new(f"urem i64 {row}, %count{slot}")
            self._fill(slot, kind, self._new(f"getelementptr {memory}, ptr %m{slot}, i64 {element}"))
            following = self._new(f"add i64 {row}, 1")
            end = self._new(f"mul i64 {following}, %inner{slot}")
        else:
            element = self._new(f"urem i64 %first, %count{slot}")
            # Element i of the output reads what lies i behind this.
            before = self._new(f"sub i64 {element}, %first")
            self._put(f"  %c{slot} = getelementptr {memory}, ptr %m{slot}, i64 {before}")
            end = self._new(f"sub i64 %count{slot}, {before}")
        sooner = self._new(f"icmp ult i64 {end}, {last}")
        self._put(f"  {earlier} = select i1 {sooner}, i64 {end}, i64 {last}")

    def _loop(self, name: str, lanes: int, first: str, last: str, before: str, after: str) -> None:
        """The tape from `first` to `last`, so many lanes at a time. It comes from the block `before`, and ends at the
        beginning of the block `after`."""
        integers = _type(lanes, "i32")
        self._put(f"  %{name}any = icmp ult i64 {first}, {last}")
        self._put(f"  br i1 %{name}any, label %{name}loop, label %{after}", f"{name}loop:")
        self._put(f"  %{name}i = phi i64 [{first}, %{before}], [%{name}next, %{name}loop]")
        # What is wrong after this round is known when the round has been written.
        place = len(self._lines)
        self._put("")
        bad = _Body(self._form, self._put, self._new, name, lanes).write(f"%{name}bad1")
        self._lines[place] = f"  %{name}bad1 = phi {integers} [%{name}bad, %{before}], [{bad}, %{name}loop]"
        self._put(f"  %{name}next = add i64 %{name}i, {lanes}", f"  %{name}go = icmp ult i64 %{name}next, {last}")
        self._put(f"  br i1 %{name}go, label %{name}loop, label %{after}", f"{after}:")
        self._put(f"  %{name}bad2 = phi {integers} [%{name}bad, %{before}], [{bad}, %{name}loop]")


class _Body:
    """What is done to some neighbouring elements."""

    def __init__(self, form: Form, put: Callable[..., None], new: Callable[[str], str], name: str, lanes: int) -> None:
        self._form, self._put, self._new, self._name, self._lanes = form, put, new, name, lanes
        self._floats, self._masks, self._integers = (_type(lanes, kind) for kind in ("float", "i1", "i32"))
        self._values: list[tuple[str, int]] = []
        """(name, F32 or BOOL: a mask) of every value so far."""

    def write(self, bad: str) -> str:
        """Returns the largest magnitude among what has to be finite, and `bad`."""
        form = self._form
        for slot, (read, kind) in enumerate(form.inputs):
            if read == WHOLE:
                self._values.append((self._load(f"%m{slot}", kind), kind))
            elif read == COLUMNS:
                self._values.append((self._load(f"%c{slot}", kind), kind))
            else:
                self._values.append((f"%{self._name}{slot}", kind))
        for code, a, b, c, checked in form.tape.instructions:
            self._values.append(self._do(Code(code), a, b, c))
            if checked:
                bad = self._larger(bad)
        for position, (value, kind) in enumerate(zip(form.tape.outputs, form.outputs, strict=True)):
            self._store(f"%m{len(form.inputs) + position}", value, kind)
        return bad

    def _do(self, code: Code, a: int, b: int, c: int) -> tuple[str, int]:
        new, floats, masks = self._new, self._floats, self._masks
        as_masks = all(self._values[x][1] == BOOL for x in (a, b))
        if code in (Code.AND, Code.OR) and as_masks:
            return new(f"{code.name.lower()} {masks} {self._values[a][0]}, {self._values[b][0]}"), BOOL
        if code == Code.NOT and as_masks:
            return new(f"xor {masks} {self._values[a][0]}, {_splat(self._lanes, 'i1', 'true')}"), BOOL
        if code == Code.WHERE:
            kind = BOOL if all(self._values[x][1] == BOOL for x in (b, c)) else F32
            of = self._mask if kind == BOOL else self._float
            chosen = masks if kind == BOOL else floats
            return new(f"select {masks} {self._mask(a)}, {chosen} {of(b)}, {chosen} {of(c)}"), kind
        x, y = self._float(a), self._float(b)
        if code in _COMPARISONS:
            return new(f"fcmp {_COMPARISONS[code]} {floats} {x}, {y}"), BOOL
        if code in _ARITHMETIC:
            return new(f"{_ARITHMETIC[code]} {floats} {x}, {y}"), F32
        if code in _FUNCTIONS:
            return new(f"call {floats} @llvm.{_FUNCTIONS[code]}{_suffix(self._lanes, 'f32')}({floats} {x})"), F32
        if code in _CHOICES or code == Code.OR:
            first = new(f"fcmp {_CHOICES.get(code, 'ogt')} {floats} {x}, {y}")
            if code != Code.OR:
                nan = new(f"fcmp uno {floats} {x}, {x}")
                first = new(f"or {masks} {first}, {nan}")
            return new(f"select {masks} {first}, {floats} {x}, {floats} {y}"), F32
        if code == Code.AND:
            return new(f"fmul {floats} {x}, {y}"), F32
        if code == Code.NEG:
            return new(f"fneg {floats} {x}"), F32
        if code == Code.NOT:
            return new(f"fsub {floats} {_splat(self._lanes, 'float', '1.0')}, {x}"), F32
        assert code == Code.COPY
        return x, F32

    def _float(self, value: int) -> str:
        name, kind = self._values[value]
        if kind != BOOL:
            return name
        one, zero = (_splat(self._lanes, "float", number) for number in ("1.0", "0.0"))
        return self._new(f"select {self._masks} {name}, {self._floats} {one}, {self._floats} {zero}")

    def _mask(self, value: int) -> str:
        name, kind = self._values[value]
        if kind == BOOL:
            return name
        # NaN counts as true.
        return self._new(f"fcmp une {self._floats} {name}, {_splat(self._lanes, 'float', '0.0')}")

    def _magnitude(self, value: int) -> str:
        """As an integer: magnitudes compare like the numbers, and infinities and NaN come last."""
        integers = self._integers
        words = self._new(f"bitcast {self._floats} {self._float(value)} to {integers}")
        return self._new(f"and {integers} {words}, {_splat(self._lanes, 'i32', str(_MAGNITUDE))}")

    def _larger(self, bad: str) -> str:
        """The magnitude of the newest value where it is larger than `bad`."""
        found = self._magnitude(len(self._values) - 1)
        larger = f"@llvm.umax{_suffix(self._lanes, 'i32')}"
        return self._new(f"call {self._integers} {larger}({self._integers} {bad}, {self._integers} {found})")

    def _place(self, pointer: str, memory: str) -> str:
        return self._new(f"getelementptr {memory}, ptr {pointer}, i64 %{self._name}i")

    def _load(self, pointer: str, kind: int) -> str:
        if kind != BOOL:
            return self._new(f"load {self._floats}, ptr {self._place(pointer, 'float')}, align 4")
        bytes_ = _type(self._lanes, "i8")
        found = self._new(f"load {bytes_}, ptr {self._place(pointer, 'i8')}, align 1")
        return self._new(f"icmp ne {bytes_} {found}, {_splat(self._lanes, 'i8', '0')}")

    def _store(self, pointer: str, value: int, kind: int) -> None:
        if kind != BOOL:
            streamed = self._form.streamed and self._lanes > 1
            how = f"align {ALIGNMENT}, !nontemporal !0" if streamed else "align 4"
            self._put(f"  store {self._floats} {self._float(value)}, ptr {self._place(pointer, 'float')}, {how}")
            return
        bytes_ = _type(self._lanes, "i8")
        flags = self._new(f"zext {self._masks} {self._mask(value)} to {bytes_}")
        self._put(f"  store {bytes_} {flags}, ptr {self._place(pointer, 'i8')}, align 1")


def _element(kind: int) -> str:
    return "i1" if kind == BOOL else "float"


def _type(lanes: int, element: str) -> str:
    return f"<{lanes} x {element}>" if lanes > 1 else element


def _suffix(lanes: int, element: str) -> str:
    """Of the name of an intrinsic function."""
    return f".v{lanes}{element}" if lanes > 1 else f".{element}"


def _splat(lanes: int, element: str, number: str) -> str:
    return f"splat ({element} {number})" if lanes > 1 else number
