"""Each instruction of the interpreter against what its section of the PTX ISA says, by tables of cases; and that the
tables notice interpretations that are wrong."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.devices import ptx_machine
from tests.devices.ptx_machine import Action, Machine, action_of
from tests.devices.ptx_memory import GlobalMemory
from tests.devices.ptx_program import KINDS, Instruction, PtxProgram, UnknownPtxError, instruction_of, size_of
from tests.devices.ptx_values import VALUES

REGISTERS = {"p": "pred", "rs": "b16", "r": "b32", "rd": "b64"}
INF, NAN, TINY, LEAST = math.inf, math.nan, 2.0**-149, 2.0**-1074
NAN32 = 0x7FFFFFFF
NAN64 = 0x7FFFFFFFFFFFFFFF
"""The NaN that the interpreter gives."""

Case = tuple[Any, ...]
"""The result, and the sources: integers, or floats as their bits."""

INTEGER = "Integer Arithmetic Instructions"
FLOATING = "Floating-Point Instructions"
COMPARISON = "Comparison and Selection Instructions"
LOGIC = "Logic and Shift Instructions"
CVT, PRMT, MOV = (f"Data Movement and Conversion Instructions: {name}" for name in ("cvt", "prmt", "mov"))

TABLE: list[tuple[str, str, str, list[Case]]] = [
    # section; opcode; kinds of the registers of the result and of the sources; cases
    (INTEGER, "add.s32", "r r r", [(-(2**31), 2**31 - 1, 1), (-3, -5, 2)]),
    (INTEGER, "add.s64", "rd rd rd", [(-(2**63), 2**63 - 1, 1), (2**32, 2**32 - 1, 1)]),
    (INTEGER, "sub.s32", "r r r", [(2**31 - 1, -(2**31), 1), (-3, 2, 5)]),
    (INTEGER, "sub.s64", "rd rd rd", [(2**63 - 1, -(2**63), 1), (-1, 0, 1)]),
    (INTEGER, "mul.lo.s32", "r r r", [(-6, 2, -3), (0, 2**16, 2**16), (1, -1, -1)]),
    (INTEGER, "mul.lo.s64", "rd rd rd", [(-6, 2, -3), (2**63, 2**62, 2)]),
    (INTEGER, "mul.hi.u64", "rd rd rd", [(2**64 - 2, 2**64 - 1, 2**64 - 1), (1, 2**63, 2), (0, 2**32 - 1, 2**32 - 1),
        (0xD2E7470EE14C6C93 * 0xFEDCBA9876543210 >> 64, 0xD2E7470EE14C6C93, 0xFEDCBA9876543210)]),
    (INTEGER, "mul.hi.u32", "r r r", [(2**32 - 2, 2**32 - 1, 2**32 - 1), (1, 2**31, 2)]),
    (INTEGER, "mul.hi.s32", "r r r", [(0, -1, -1), (-1, -1, 1), (2**30, -(2**31), -(2**31))]),
    (INTEGER, "mul.wide.s32", "rd r r", [(-6, 2, -3), (2**62, -(2**31), -(2**31))]),
    (INTEGER, "mul.wide.u32", "rd r r", [((2**32 - 1) ** 2, 2**32 - 1, 2**32 - 1), (6, 2, 3)]),
    (INTEGER, "mul.wide.u16", "r rs rs", [(65535**2, 65535, 65535)]),
    (INTEGER, "mul.wide.s16", "r rs rs", [(1, -1, -1), (-65534, 32767, -2)]),
    (INTEGER, "mad.lo.s32", "r r r r", [(-5, 2, -3, 1), (2**31 - 1, -1, 1, -(2**31))]),
    (INTEGER, "mad.lo.s64", "rd rd rd rd", [(-5, 2, -3, 1), (5, 2**63, 2, 5)]),
    (INTEGER, "mad.wide.s32", "rd r r rd", [(2**40 - 6, 2, -3, 2**40)]),
    (INTEGER, "mad.wide.u32", "rd r r rd", [(2**33 - 1, 2**32 - 1, 2, 1)]),
    (INTEGER, "div.s32", "r r r", [(-3, 7, -2), (-3, -7, 2), (3, -7, -2), (-(2**31), -(2**31), 1), (0, 1, 2)]),
    (INTEGER, "div.s64", "rd rd rd", [(-3, -7, 2), (-(2**63), -(2**63), -1)]),
    (INTEGER, "div.u32", "r r r", [(2**31 - 1, 2**32 - 1, 2), (0, 1, 2**31)]),
    (INTEGER, "rem.s32", "r r r", [(1, 7, -2), (-1, -7, 2), (-1, -7, -2), (0, 6, 3)]),
    (INTEGER, "rem.u32", "r r r", [(1, 2**32 - 1, 2), (3, 11, 4)]),
    (INTEGER, "abs.s64", "rd rd", [(5, -5), (2**62, -(2**62)), (7, 7)]),
    (INTEGER, "neg.s32", "r r", [(5, -5), (-(2**31), -(2**31)), (-7, 7)]),
    (INTEGER, "min.s32", "r r r", [(-1, -1, 1), (2, 3, 2), (-(2**31), 2**31 - 1, -(2**31))]),
    (INTEGER, "min.s64", "rd rd rd", [(-1, -1, 1), (2, 3, 2)]),
    (INTEGER, "max.s32", "r r r", [(1, -1, 1), (-2, -2, -3), (2**31 - 1, 2**31 - 1, -(2**31))]),
    (INTEGER, "max.relu.s32", "r r r", [(0, -3, -5), (5, -3, 5), (7, 7, 5)]),
    (INTEGER, "max.u32", "r r r", [(2**32 - 1, -1, 1), (3, 3, 2)]),
    (INTEGER, "max.u16", "rs rs rs", [(65535, -1, 1), (3, 2, 3)]),
    (INTEGER, "max.u16x2", "r r r", [(0x0002FFFF, 0x0001FFFF, 0x00020001), (0x80000005, 0x80000004, 0x7FFF0005)]),
    (INTEGER, "popc.b32", "r r", [(32, -1), (0, 0), (3, 0x80000101)]),
    (INTEGER, "bfe.u32", "r r r r", [(0xC, 0xABCD, 4, 12 - 8), (0, -1, 32, 8), (0, 255, 0, 0), (1, 2**31, 31, 8),
        (2**32 - 1, -1, 0, 32), (0xF, 0xF0, 260, 4), (0xFF, 0xFFFF, 8, 200)]),
    (INTEGER, "bfe.s32", "r r r r", [(-4, 0xABCD, 4, 4), (-1, 2**31, 31, 8), (0, -1, 3, 0), (7, 0x70, 4, 4),
        (-1, -1, 40, 4), (0, 2**31 - 1, 40, 4), (-5, -5, 0, 32), (-8, 0x80, 4, 4), (-1, 2, 1, 1)]),
    (INTEGER, "bfi.b32", "r r r r r", [(0xFFFF12FF, 0x12, -1, 8, 8), (2**31, -1, 0, 31, 8), (9, 5, 9, 3, 0),
        (9, 5, 9, 40, 4), (5, 5, -1, 0, 200), (0xF00, 0xFF, 0, 264, 260)]),
    (FLOATING, "add.rn.f32", "r r r", [(1.0, 1.0, 2.0**-24), (1 + 2.0**-22, 1 + 2.0**-23, 2.0**-24),
        (INF, 3.4e38, 1e38),
        (TINY, 2 * TINY, -TINY), (NAN32, INF, -INF), (NAN32, 0x7FC01234, 1.0), (0.0, -0.0, 0.0), (-0.0, -0.0, -0.0)]),
    (FLOATING, "add.rn.f64", "rd rd rd", [(1.0, 1.0, 2.0**-53), (LEAST, 2 * LEAST, -LEAST), (NAN64, INF, -INF)]),
    (FLOATING, "sub.rn.f32", "r r r", [(0.0, 1.0, 1.0), (-1.0, 1.0, 2.0), (NAN32, INF, INF)]),
    (FLOATING, "sub.rn.f64", "rd rd rd", [(1.0, 1.0, 2.0**-54), (1 - 2.0**-53, 1.0, 2.0**-53), (-1.0, 1.0, 2.0)]),
    (FLOATING, "mul.rn.f32", "r r r", [(TINY, 2.0**-75, 2.0**-74), (0.0, 2.0**-75, 2.0**-75), (NAN32, 0.0, INF),
        (1 + 2.0**-22, 1 + 2.0**-23, 1 + 2.0**-23), (-0.0, -1.0, 0.0), (INF, 2.0**127, 2.0)]),
    (FLOATING, "mul.rn.f64", "rd rd rd", [(LEAST, 2.0**-537, 2.0**-537), (1 + 2.0**-51, 1 + 2.0**-52, 1 + 2.0**-52)]),
    (FLOATING, "div.rn.f64", "rd rd rd", [(1 / 3, 1.0, 3.0), (INF, 1.0, 0.0), (-INF, 1.0, -0.0), (NAN64, 0.0, 0.0)]),
    (FLOATING, "sqrt.rn.f64", "rd rd", [(math.sqrt(2.0), 2.0), (-0.0, -0.0), (NAN64, -1.0), (INF, INF)]),
    (FLOATING, "abs.f32", "r r", [(1.5, 1.5), (1.5, -1.5), (0.0, -0.0), (0x7FC01234, 0xFFC01234), (INF, -INF)]),
    (FLOATING, "abs.f64", "rd rd", [(1.5, 1.5), (1.5, -1.5), (LEAST, -LEAST), (NAN64, 2**64 - 1)]),
    (FLOATING, "neg.f32", "r r", [(-0.0, 0.0), (TINY, -TINY), (0xFFC01234, 0x7FC01234), (-INF, INF)]),
    (FLOATING, "neg.f64", "rd rd", [(-0.0, 0.0), (LEAST, -LEAST), (-1.5, 1.5)]),
    (FLOATING, "add.rn.f32x2", "rd rd rd", [(0x3F80000000000001, 0x3F80000000000002, 0x3300000080000001)]),
    (FLOATING, "sub.rn.f32x2", "rd rd rd", [(0xBF8000007FFFFFFF, 0x3F8000007F800000, 0x400000007F800000)]),
    (FLOATING, "mul.rn.f32x2", "rd rd rd", [(0x3F80000200000001, 0x3F8000011A000000, 0x3F8000011A800000)]),
    (COMPARISON, "selp.b32", "r r r p", [(7, 7, 9, 1), (9, 7, 9, 0)]),
    (COMPARISON, "selp.b16", "rs rs rs p", [(7, 7, 9, 1), (9, 7, 9, 0)]),
    (COMPARISON, "selp.f32", "r r r p", [(1.5, 1.5, NAN, 1), (0x7FC01234, 1.5, 0x7FC01234, 0)]),
    (COMPARISON, "setp.eq.b32", "p r r", [(1, -1, 2**32 - 1), (0, 1, 2)]),
    (COMPARISON, "setp.ne.b64", "p rd rd", [(1, 0, 2**32), (0, 5, 5)]),
    (COMPARISON, "setp.lt.s32", "p r r", [(1, -1, 0), (0, 0, 0), (0, 1, 0)]),
    (COMPARISON, "setp.lt.u32", "p r r", [(0, -1, 0), (1, 0, 1), (0, 0, 0)]),
    (COMPARISON, "setp.le.s32", "p r r", [(1, -1, 0), (1, 0, 0), (0, 1, 0)]),
    (COMPARISON, "setp.gt.s32", "p r r", [(1, 0, -1), (0, 0, 0), (0, -1, 0)]),
    (COMPARISON, "setp.gt.u64", "p rd rd", [(1, -1, 0), (0, 0, 0), (0, 0, 1)]),
    (COMPARISON, "setp.ge.s64", "p rd rd", [(1, 0, -1), (1, 0, 0), (0, -1, 0)]),
    (COMPARISON, "setp.eq.f32", "p r r", [(1, 0.0, -0.0), (0, NAN, NAN), (0, 1.0, 2.0), (0, 2.0, 1.0)]),
    (COMPARISON, "setp.lt.f32", "p r r", [(1, -INF, TINY), (0, 1.0, NAN), (0, NAN, 1.0), (0, -0.0, 0.0),
        (0, 1.0, 0.0)]),
    (COMPARISON, "setp.le.f32", "p r r", [(1, -0.0, 0.0), (0, 1.0, NAN), (1, 0.0, 1.0), (0, 1.0, 0.0)]),
    (COMPARISON, "setp.gt.f32", "p r r", [(1, INF, 1.0), (0, 1.0, NAN), (0, 1.0, 1.0), (0, 0.0, 1.0)]),
    (COMPARISON, "setp.ge.f32", "p r r", [(1, 1.0, 1.0), (0, 1.0, NAN), (1, 2.0, 1.0), (0, 0.0, 1.0)]),
    (COMPARISON, "setp.ne.f32", "p r r", [(0, NAN, NAN), (0, 1.0, NAN), (0, 1.0, 1.0), (1, 1.0, 2.0), (1, 2.0, 1.0)]),
    (COMPARISON, "setp.equ.f32", "p r r", [(1, NAN, NAN), (1, 1.0, NAN), (1, 0.0, -0.0), (0, 1.0, 2.0), (0, 2.0, 1.0)]),
    (COMPARISON, "setp.neu.f64", "p rd rd", [(1, NAN, NAN), (0, -0.0, 0.0), (1, 1.0, 2.0), (1, 2.0, 1.0),
        (0, 2.0, 2.0)]),
    (COMPARISON, "setp.ltu.f64", "p rd rd", [(1, NAN, 1.0), (0, 1.0, 1.0), (1, 0.0, 1.0), (0, 1.0, 0.0)]),
    (COMPARISON, "setp.leu.f64", "p rd rd", [(1, NAN, 1.0), (1, 1.0, 1.0), (1, 0.0, 1.0), (0, 1.0, 0.0)]),
    (COMPARISON, "setp.gtu.f32", "p r r", [(1, NAN, 1.0), (0, 1.0, 1.0), (0, 0.0, 1.0), (1, 1.0, 0.0)]),
    (COMPARISON, "setp.geu.f32", "p r r", [(1, NAN, 1.0), (1, 1.0, 1.0), (0, 0.0, 1.0), (1, 1.0, 0.0)]),
    (COMPARISON, "setp.nan.f32", "p r r", [(0, 2.0, 1.0), (1, NAN, 1.0), (1, 1.0, NAN), (0, 1.0, INF), (0, 1.0, 1.0)]),
    (LOGIC, "and.b32", "r r r", [(0b1000, 0b1100, 0b1010)]),
    (LOGIC, "and.b64", "rd rd rd", [(1 << 40, 3 << 40, 1 << 40)]),
    (LOGIC, "and.pred", "p p p", [(1, 1, 1), (0, 1, 0), (0, 0, 0)]),
    (LOGIC, "or.b16", "rs rs rs", [(0b1110, 0b1100, 0b1010)]),
    (LOGIC, "or.pred", "p p p", [(1, 1, 1), (1, 1, 0), (0, 0, 0)]),
    (LOGIC, "xor.b32", "r r r", [(0b0110, 0b1100, 0b1010)]),
    (LOGIC, "xor.pred", "p p p", [(0, 1, 1), (1, 1, 0), (0, 0, 0)]),
    (LOGIC, "not.b32", "r r", [(-1, 0), (2**31 - 1, 2**31)]),
    (LOGIC, "not.b64", "rd rd", [(-1, 0)]),
    (LOGIC, "not.pred", "p p", [(0, 1), (1, 0)]),
    (LOGIC, "shl.b16", "rs rs r", [(0x8000, 1, 15), (0, 1, 16), (0xFF00, 0xFFFF, 8)]),
    (LOGIC, "shl.b32", "r r r", [(2**31, 1, 31), (0, 1, 32), (0, -1, 33), (0, -1, 2**31), (0, -1, -1), (5, 5, 0)]),
    (LOGIC, "shl.b64", "rd rd r", [(1 << 40, 1, 40), (0, 1, 64), (0, -1, 2**31 + 1)]),
    (LOGIC, "shr.u16", "rs rs r", [(1, 0x8000, 15), (0, 0x8000, 16)]),
    (LOGIC, "shr.u32", "r r r", [(1, 2**31, 31), (0, -1, 32), (0, -1, 2**32 - 1), (5, 5, 0)]),
    (LOGIC, "shr.s32", "r r r", [(-1, 2**31, 31), (-1, 2**31, 32), (-1, -5, 2**32 - 1), (0, 5, 40), (-2, -8, 2)]),
    (LOGIC, "shr.u64", "rd rd r", [(1, 2**63, 63), (0, -1, 64), (2**31, 2**63, 32)]),
    (LOGIC, "shr.s64", "rd rd r", [(-1, 2**63, 64), (-(2**31), 2**63, 32)]),
    (PRMT, "prmt.b32", "r r r r", [(0x33221100, 0x33221100, 0x77665544, 0x3210),
        (0x00774400, 0x33221100, 0x77665544, 0x0740), (0xFF0080FF, 0x80FF0080, 0x000000FF, 0xB90C),
        (0x55115511, 0x33221100, 0x77665544, 0x5151)]),
    (CVT, "cvt.rn.f32.f64", "r rd", [(1.0, 1 + 2.0**-24), (1 + 2.0**-22, 1 + 3 * 2.0**-24), (INF, 2.0**128),
        (TINY, 2.0**-149), (0.0, 2.0**-150), (TINY, 2.0**-150 * (1 + 2.0**-40)), (NAN32, NAN), (-0.0, -1e-300)]),
    (CVT, "cvt.f64.f32", "rd r", [(TINY, TINY), (-INF, -INF), (NAN64, NAN), (0.1 + 1.490116119384766e-09, 0.1)]),
    (CVT, "cvt.rmi.f64.f64", "rd rd", [(-2.0, -1.5), (1.0, 1.5), (-0.0, -0.0), (-1.0, -LEAST), (INF, INF)]),
    (CVT, "cvt.rni.f32.f32", "r r", [(2.0, 2.5), (4.0, 3.5), (-0.0, -0.5)]),
    (CVT, "cvt.rn.f32.s64", "r rd", [(2.0**24, 2**24 + 1), (2.0**24 + 4, 2**24 + 3), (2.0**63, 2**63 - 1),
        (-(2.0**63), -(2**63)), (2.0**40, 2**40 + 2**16), (2.0**40 + 2**17, 2**40 + 2**16 + 1),
        (2.0**62 + 2.0**39, 2**62 + 2**38 + 1)]),
    (CVT, "cvt.rn.f32.u64", "r rd", [(2.0**64, -1), (2.0**63, 2**63 + 2**39), (2.0**63 + 2**40, 2**63 + 2**39 + 1)]),
    (CVT, "cvt.rn.f32.u32", "r r", [(2.0**32, -1), (2.0**24, 2**24 + 1)]),
    (CVT, "cvt.rn.f32.s32", "r r", [(-1.0, -1), (-(2.0**24), -(2**24) - 1)]),
    (CVT, "cvt.rzi.s32.f32", "r r", [(-1, -1.9), (2**31 - 1, 2.0**31), (-(2**31), -INF), (0, NAN), (1, 1.9)]),
    (CVT, "cvt.rmi.s32.f64", "r rd", [(-2, -1.1), (2**31 - 1, 2.0**31 - 0.5), (-(2**31), -1e300)]),
    (CVT, "cvt.rzi.u32.f32", "r r", [(0, -5.0), (2**32 - 1, 1e20), (0, NAN), (2**31, 2.0**31)]),
    (CVT, "cvt.rni.s64.f64", "rd rd", [(2, 2.5), (-2, -1.5), (2**63 - 1, 2.0**63), (2**62, 2.0**62)]),
    (CVT, "cvt.s64.s32", "rd r", [(-1, -1), (2**31 - 1, 2**31 - 1)]),
    (CVT, "cvt.u64.u32", "rd r", [(2**32 - 1, -1)]),
    (CVT, "cvt.u32.u64", "r rd", [(5, 2**32 + 5)]),
    (CVT, "cvt.s32.s16", "r rs", [(-1, -1), (32767, 32767)]),
    (CVT, "cvt.u32.u16", "r rs", [(65535, -1)]),
    (CVT, "cvt.u16.u32", "rs r", [(5, 2**16 + 5)]),
    (CVT, "cvt.s32.s8", "r r", [(-1, 0x1FF), (127, 0x7F)]),
    (CVT, "cvt.u16.u8", "rs rs", [(255, 0x1FF)]),
    (MOV, "mov.b32", "r r", [(-5, -5)]),
    (MOV, "mov.u64", "rd rd", [(-5, -5)]),
    (MOV, "mov.pred", "p p", [(1, 1), (0, 0)]),
]  # fmt: skip


def bits_of(value: Any, kind: str) -> int:
    """The bits of a register that holds a number; floats as FP32 or FP64, by its size."""
    size = size_of(kind)
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f" if size == 4 else "<d", value), "little")
    return int(value) & (1 << 8 * size) - 1


def machine_of(instructions: Sequence[Instruction], threads: int, shared: int = 0, cores: Any = None) -> Machine:
    program = PtxProgram("test", (), threads, {f"%{x}": kind for x, kind in REGISTERS.items()}, tuple(instructions), {})
    return Machine(program, 1, range(1), (), GlobalMemory([]), shared, cores or {})


def wrong_cases(opcode: str, kinds: str, cases: list[Case], action: Action | None = None) -> list[str]:
    """Cases of which an instruction, or what is taken for it, makes something else."""
    prefixes = kinds.split()
    # One thread more than cases: it keeps what it has.
    names = [f"%{prefix}{place}" for place, prefix in enumerate(prefixes)]
    instruction = instruction_of(f"@%p9 {opcode} {', '.join(names)}")
    machine = machine_of([instruction, instruction_of("ret")], -(-(len(cases) + 1) // 32) * 32)
    if action is not None:
        machine._actions[0] = action
    machine.register("%p9", "pred")[:] = np.arange(machine.threads) < len(cases)
    for place, (name, prefix) in enumerate(zip(names, prefixes, strict=True)):
        if place:
            kind = REGISTERS[prefix]
            column = [bits_of(case[place], kind) for case in cases]
            machine.register(name, kind)[: len(cases)] = np.array(column, dtype=KINDS[kind])
    kind = REGISTERS[prefixes[0]]
    out = machine.register(names[0], kind)
    before = out[-1]
    machine.run(0)
    assert out[-1] == before
    found = [int(x) for x in out[: len(cases)]]
    return [f"{case}: {x:#x}" for case, x in zip(cases, found, strict=True) if x != bits_of(case[0], kind)]


@pytest.mark.parametrize(("section", "opcode", "kinds", "cases"), TABLE, ids=[row[1] for row in TABLE])
def test_an_instruction_does_what_its_section_says(section: str, opcode: str, kinds: str, cases: list[Case]) -> None:
    assert wrong_cases(opcode, kinds, cases) == []


def test_every_instruction_with_a_value_has_cases() -> None:
    named = {row[1].rpartition(".")[0] if not row[1].endswith("x2") else row[1] for row in TABLE}
    assert set(VALUES) <= named


def others(opcode: str) -> Iterator[tuple[str, Action]]:
    """Wrong interpretations of an opcode: each function of the table that takes as many values of such types, and types
    of the other sign."""
    name, _, kind = opcode.rpartition(".")
    if name in VALUES:
        kinds, sources, result, function = VALUES[name]
        for other, (its_kinds, its_sources, its_result, its_function) in VALUES.items():
            if (its_sources, its_result) == (sources, result) and kind in its_kinds and its_function is not function:
                yield other, partial(ptx_machine._evaluate, *_types(sources, result, kind), its_function)
        turned = {"s": "u", "u": "s"}.get(kind[0], "") + kind[1:]
        if turned in kinds and not name.startswith(("add", "sub", "mul.lo", "mad.lo")):
            yield turned, action_of(f"{name}.{turned}")


def _types(sources: tuple[str, ...], result: str, kind: str) -> tuple[tuple[str, ...], str]:
    action = action_of(
        next(f"{name}.{kind}" for name, row in VALUES.items() if row[1:3] == (sources, result) and kind in row[0])
    )
    assert isinstance(action, partial)
    return action.args[0], action.args[1]


def by_hand() -> dict[str, tuple[str, Callable[..., Any]]]:
    """Mistakes that an interpreter makes easily, by opcode."""
    bits, sign = np.uint32(31), np.int32(31)
    return {
        "a shift by the low bits of its amount": ("shl.b32", lambda a, n: a << (n & bits)),
        "the same to the right": ("shr.u32", lambda a, n: a >> (n & bits)),
        "the same of a signed number": ("shr.s32", lambda a, n: a >> (n & bits).astype(np.int32)),
        "a signed shift that is filled with zeros": (
            "shr.s32",
            lambda a, n: np.where(n > bits, 0, a >> (n.astype(np.int32) & sign)),
        ),
        "a field without its sign": (
            "bfe.s32",
            lambda a, p, n: a.view(np.uint32) >> p & (np.uint32(1) << n) - np.uint32(1),
        ),
        "a position that is not cut to eight bits": (
            "bfe.u32",
            lambda a, p, n: np.where(p > 31, 0, VALUES["bfe"][3](a, p, n)),
        ),
        "a quotient toward minus infinity": ("div.s32", np.floor_divide),
        "a remainder of the divisor's sign": ("rem.s32", np.mod),
        "the signed high half": ("mul.hi.u32", lambda a, b: a.view(np.int32).astype(np.int64) * b.view(np.int32) >> 32),
        "a sum that flushes subnormal numbers": ("add.rn.f32", lambda a, b: np.where(abs(a + b) < 2.0**-126, 0, a + b)),
        "a sum with the NaN of a processor": ("add.rn.f32", np.add),
        "a sum toward zero": ("add.rn.f64", lambda a, b: np.where(a + b - a == b, a + b, np.nextafter(a + b, 0))),
        "a product that flushes subnormal numbers": (
            "mul.rn.f32",
            lambda a, b: np.where(abs(a * b) < 2.0**-126, 0, a * b),
        ),
        "a comparison of bits": ("setp.eq.f32", lambda a, b: a.view(np.uint32) == b.view(np.uint32)),
        "an unordered comparison that is not": ("setp.ltu.f64", np.less),
        "a conversion toward zero": (
            "cvt.rn.f32.f64",
            lambda x: np.where(abs(x) > abs(x.astype(np.float32)), x, np.nextafter(x, 0)).astype(np.float32),
        ),
        "a conversion that wraps": (
            "cvt.rzi.u32.f32",
            lambda x: np.where(x != x, 0, x).astype(np.int64).astype(np.uint32),
        ),
        "a conversion through FP64": ("cvt.rn.f32.s64", lambda x: x.astype(np.float64).astype(np.float32)),
        "a conversion to nearest": ("cvt.rmi.s32.f64", lambda x: np.clip(np.rint(x), -(2**31), 2**31 - 1)),
        "a floor toward zero": ("cvt.rmi.f64.f64", np.trunc),
        "an integral number away from zero": (
            "cvt.rni.f32.f32",
            lambda x: np.trunc(x + np.copysign(np.float32(0.5), x)),
        ),
        "an extension without the sign": ("cvt.s64.s32", lambda x: x.view(np.uint32).astype(np.int64)),
        "bytes without their signs": ("prmt.b32", lambda a, b, s: VALUES["prmt"][3](a, b, s & 0x7777)),
        "a maximum of words": ("max.u16x2", np.maximum),
        "a magnitude that keeps the zero's sign": ("abs.f32", lambda x: np.where(x < 0, -x, x)),
    }


def test_wrong_interpretations_are_noticed() -> None:
    """A mutant of every instruction with a value, at least."""
    tried = 0
    rows = {opcode: (kinds, cases) for _, opcode, kinds, cases in TABLE}
    for opcode, (kinds, cases) in rows.items():
        for what, action in others(opcode):
            assert _is_noticed(opcode, kinds, cases, action), f"{opcode} as {what}"
            tried += 1
    for what, (opcode, function) in by_hand().items():
        right = action_of(opcode)
        assert isinstance(right, partial)
        assert _is_noticed(opcode, *rows[opcode], partial(ptx_machine._evaluate, *right.args[:2], function)), what
        tried += 1
    assert tried > 200, tried


def _is_noticed(opcode: str, kinds: str, cases: list[Case], action: Action) -> bool:
    try:
        return bool(wrong_cases(opcode, kinds, cases, action))
    except (UnknownPtxError, TypeError, ZeroDivisionError):
        return True


NOT_KNOWN = """
    add.f32 add.rn.ftz.f32 fma.rn.f32 div.full.f32 sqrt.approx.f32 mul.rz.f64 setp.ltu.s32 shl.u32 cvt.f32.f64
    cvt.rz.f32.f64 cvt.rn.f64.f32 cvt.s32.f32 cvt.rn.bf16.f32 mul.hi.s64 ld.local.b32 ld.global.nc.b32
    atom.global.add.u32 mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 bar.sync.x min.f32 shfl.bfly.b32
    stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 cp.async.bulk.commit_group lop3.b32
"""


@pytest.mark.parametrize("opcode", NOT_KNOWN.split())
def test_what_is_not_known_is_an_error_that_names_it(opcode: str) -> None:
    with pytest.raises(UnknownPtxError, match=opcode.split(".")[0]):
        machine_of([instruction_of(f"{opcode} %r1, %r2"), instruction_of("ret")], 32)


def test_operands_that_do_not_fit_are_errors() -> None:
    for text in (
        "add.s64 %r1, %rd2, %rd3",
        "add.s32 %r1, %r2",
        "add.s32 %r1, %q2, %r3",
        "mov.b32 %r1, 0f1234",
        "not.pred %r1, %p2",
    ):
        with pytest.raises((UnknownPtxError, ValueError)):
            machine_of([instruction_of(text), instruction_of("ret")], 32).run(0)
    with pytest.raises(ZeroDivisionError):
        machine_of([instruction_of("div.s32 %r1, 5, 0"), instruction_of("ret")], 32).run(0)


def test_constants_and_larger_registers() -> None:
    """Constants; Operand Size Exceeding Instruction-Type Size."""
    texts = [
        "mov.b32 %r1, -2",
        "mov.b32 %r2, 0x3340U",
        "mov.b64 %rd1, 0dBFF0000000000000",
        "mov.b32 %r3, 0f3F800000",
        "cvt.s32.s16 %rd2, -3",
        "cvt.u32.u16 %rd3, -3",
        "mov.pred %p1, -1",
        "cvt.u16.u32 %rs1, %rd1",
        "ret",
    ]
    machine = machine_of([instruction_of(text) for text in texts], 32)
    machine.run(0)
    expected = {
        "%r1": 2**32 - 2,
        "%r2": 0x3340,
        "%rd1": 0xBFF0 << 48,
        "%r3": 0x3F800000,
        "%rd2": 2**64 - 3,
        "%rd3": 65533,
        "%p1": 1,
        "%rs1": 0,
    }
    for name, value in expected.items():
        kind = machine.kind_of(name)
        assert {int(x) for x in machine.register(name, kind)} == {value}, name
