"""An interpreter of PTX: many threads at once, by NumPy. A register is an array with an element for each thread, and an
instruction is executed by all threads that have come to it; those that are behind go first, so that they meet again.

What an instruction does is what the PTX ISA says in the section that is named beside it. An opcode, a modifier or a
type that the tables have not raises UnknownPtxError. Products of matrices are those of docs/arithmetic.md, as
`tests.engine.kernels.tensor_core_devices` computes them. Asynchronous copies and products take place when they are
waited for, which is as late as can be; memory finds who came too early."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.devices.ptx_memory import (
    I64,
    WARP,
    GlobalMemory,
    MemoryFaultError,
    SharedMemory,
    TensorMemory,
    Words,
    aligned,
)
from tests.devices.ptx_program import KINDS, UNSIGNED, Address, Operand, PtxProgram, UnknownPtxError, size_of
from tests.devices.ptx_values import DOUBLE, PACKED, SAME, VALUES, Values, conversion
from tests.engine.kernels.tensor_core_devices import TensorCores

WARPGROUP = 128
TOGETHER = 4096
"""Threads that are executed at once, at most, unless a block has more."""


class DivergenceError(RuntimeError):
    """Threads that have to execute an instruction together do not."""


@cache
def _constant(text: str, kind: str) -> Values:
    """A constant (Constants) as an array of one element."""
    if found := re.fullmatch(r"0[fF]([0-9A-Fa-f]{8})|0[dD]([0-9A-Fa-f]{16})", text):
        number = int(found[1] or found[2], 16)
    elif re.fullmatch(r"-?(?:\d+|0[xX][0-9A-Fa-f]+)U?", text):
        number = int(text.rstrip("U"), 0)
    else:
        raise UnknownPtxError(f"the operand {text}")
    if kind == "pred":
        return np.array([number != 0])
    size = size_of(kind)
    return np.array([number & (1 << 8 * size) - 1], dtype=UNSIGNED[size]).view(KINDS[kind])


class Threads:
    """Threads that execute one instruction, and their registers."""

    def __init__(self, machine: Machine, ids: I64) -> None:
        self.machine, self.ids = machine, ids
        self._at: Any = slice(None) if len(ids) == machine.threads else ids

    def guarded(self, guard: str | None, negated: bool) -> Threads:
        """Return those whose predicate is as it has to be (Predicated Execution)."""
        if guard is None:
            return self
        chosen = self.read(guard, "pred") != negated
        return self if chosen.all() else Threads(self.machine, self.ids[chosen])

    def read(self, operand: Operand, kind: str) -> Values:
        """Return kind[n], or kind[1] of a constant: of a larger register the low bits (Operand Size Exceeding
        Instruction-Type Size)."""
        assert isinstance(operand, str)
        if operand == "global_smem":
            return np.zeros(1, dtype=KINDS[kind])
        if operand[0] != "%":
            return _constant(operand, kind)
        bits = self.machine.register(operand, kind)[self._at]
        return bits if kind == "pred" else bits.astype(UNSIGNED[size_of(kind)], copy=False).view(KINDS[kind])

    def read_all(self, operand: Operand, kind: str) -> Values:
        """Return kind[n]."""
        return np.broadcast_to(self.read(operand, kind), self.ids.shape)

    def write(self, operand: Operand, value: Any, kind: str) -> None:
        """Write values; a larger register has zeros above them, or their sign."""
        assert isinstance(operand, str)
        if operand != "_":
            values = np.asarray(value, dtype=KINDS[kind])
            # NumPy converts integers as registers do; numbers of floating point are written as their bits.
            register = self.machine.register(operand, kind)
            register[self._at] = values.view(UNSIGNED[values.itemsize]) if kind[0] == "f" else values

    def addresses(self, operand: Operand) -> I64:
        """Return int64[n]."""
        assert isinstance(operand, Address)
        kind = "u64" if self.machine.kind_of(operand.base) == "b64" else "u32"
        return self.read_all(operand.base, kind).astype(np.int64) + operand.offset

    def sets(self, of: int = WARP) -> int:
        """Return the number of warps, or warpgroups. Raises DivergenceError where one is not whole."""
        if len(self.ids) % of or (self.ids.reshape(-1, of) != self.ids[::of, None] // of * of + np.arange(of)).any():
            raise DivergenceError("not all threads of a warp are here")
        return len(self.ids) // of


def _vector(operand: Operand) -> tuple[str, ...]:
    assert not isinstance(operand, Address)
    return operand if isinstance(operand, tuple) else (operand,)


Action = Callable[..., None]
"""Called with threads and operands."""


def _evaluate(
    kinds: tuple[str, ...], result: str, function: Callable[..., Any], threads: Threads, to: Operand, *sources: Operand
) -> None:
    values = (threads.read(one, kind) for one, kind in zip(sources, kinds, strict=True))
    threads.write(to, function(*values), result)


# Data Movement and Conversion Instructions


def _move(kind: str, threads: Threads, to: Operand, source: Operand) -> None:
    """mov: of a register, a constant, a special register or an address; of a vector to a scalar, or back."""
    if isinstance(to, str) and isinstance(source, str):
        special = threads.machine.special.get(source)
        threads.write(to, threads.read(source, kind) if special is None else special[threads.ids], kind)
        return
    parts = _vector(source if isinstance(to, str) else to)
    bits = 8 * size_of(kind) // len(parts)
    whole = np.zeros(1, KINDS[kind]) if isinstance(to, str) else threads.read(source, kind)
    for place, part in enumerate(parts):
        shift = KINDS[kind](bits * place)
        if isinstance(to, str):
            whole = whole | threads.read(part, f"b{bits}").astype(KINDS[kind]) << shift
        else:
            threads.write(part, (whole >> shift).astype(KINDS[f"b{bits}"]), f"b{bits}")
    if isinstance(to, str):
        threads.write(to, whole, kind)


def _load_parameter(kind: str, threads: Threads, to: Operand, source: Address) -> None:
    """ld.param."""
    threads.write(to, threads.machine.parameters[source.base][: size_of(kind)].view(KINDS[kind]), kind)


def _load(space: str, many: int, kind: str, threads: Threads, to: Operand, source: Operand) -> None:
    """ld."""
    width = size_of(kind)
    addresses = aligned(threads.addresses(source), many * width)
    for place, register in zip(range(many), _vector(to), strict=True):
        words = threads.machine.spaces[space].load(threads.ids, addresses + place * width, width)
        threads.write(register, words.view(KINDS[kind]), kind)


def _store(space: str, many: int, kind: str, threads: Threads, to: Operand, source: Operand) -> None:
    """st."""
    width = size_of(kind)
    addresses = aligned(threads.addresses(to), many * width)
    for place, register in zip(range(many), _vector(source), strict=True):
        words = threads.read_all(register, f"b{8 * width}")
        threads.machine.spaces[space].store(threads.ids, addresses + place * width, width, words)


def _shuffle(mode: str, threads: Threads, to: Operand, source: Operand, b: Operand, c: Operand, members: str) -> None:
    """shfl.sync."""
    warps = threads.sets()
    if members != "-1":
        raise UnknownPtxError(f"shfl.sync of {members}")
    offset, ends = (threads.read_all(x, "u32").astype(np.int64).reshape(warps, WARP) for x in (b, c))
    lane, offset, clamp, segment = np.arange(WARP), offset & 31, ends & 31, ends >> 8 & 31
    last = lane & segment | clamp & ~segment
    modes = {"up": lane - offset, "down": lane + offset, "bfly": lane ^ offset}
    chosen = modes.get(mode, lane & segment | offset & ~segment)
    chosen = np.where(chosen >= last if mode == "up" else chosen <= last, chosen, lane)
    values = threads.read_all(source, "b32").reshape(warps, WARP)
    threads.write(to, np.take_along_axis(values, chosen, axis=1).reshape(-1), "b32")


@dataclass(eq=False)
class _Copy:
    """cp.async of some threads that they have not waited for. data: uint8[n, bytes]."""

    threads: I64
    group: I64
    places: I64
    data: npt.NDArray[np.uint8]

    def of(self, which: npt.NDArray[np.bool_]) -> _Copy:
        return _Copy(self.threads[which], self.group[which], self.places[which], self.data[which])


def _copy(
    sizes: tuple[str, ...], threads: Threads, to: Operand, source: Operand, size: str, some: Operand = ""
) -> None:
    """cp.async: all of some bytes, or instead of them zeros."""
    width, machine = int(size, 0), threads.machine
    count = threads.read_all(some or size, "u32")
    if size not in sizes or not np.isin(count, (0, width)).all():
        raise UnknownPtxError(f"cp.async of {size} bytes, or a part of them")
    data = np.zeros((len(threads.ids), width), dtype=np.uint8)
    addresses = aligned(threads.addresses(source)[count > 0], width)
    for place in range(0, width, 4):
        words = machine.spaces["global"].load(threads.ids, addresses + place, 4)
        data[count > 0, place : place + 4] = words.view(np.uint8).reshape(-1, 4)
    places = machine.shared.begin_copy(threads.ids, threads.addresses(to), width)
    machine.copies.append(_Copy(threads.ids, machine.groups["copies"][threads.ids], places, data))


def _commit(what: str, threads: Threads) -> None:
    """cp.async.commit_group, wgmma.commit_group."""
    threads.machine.groups[what][threads.ids] += 1


def _wait_for_copies(threads: Threads, pending: str) -> None:
    """cp.async.wait_group."""
    machine = threads.machine
    done = np.full(machine.threads, -1)
    done[threads.ids] = machine.groups["copies"][threads.ids] - int(pending)
    copies, machine.copies = machine.copies, []
    for one in copies:
        ended = one.of(one.group < done[one.threads])
        machine.shared.end_copy(ended.threads, ended.places, ended.data)
        machine.copies.append(one.of(one.group >= done[one.threads]))
    machine.copies = [one for one in machine.copies if len(one.threads)]


# Warp Level Matrix Instructions

_LANES = np.arange(WARP)
_ROW, _PAIR = _LANES // 4, _LANES % 4 * 2
"""Of a matrix of 8 by 8, the row of a thread's elements, and the column of the first of two (Matrix Fragments)."""


def _parts_of_matrices(threads: Threads, operand: Operand, many: int, transposed: bool) -> list[list[I64]]:
    """Addresses of each thread's elements of some matrices of 8 by 8: of a pair in a row, or of two in a column."""
    rows = aligned(threads.addresses(operand).reshape(threads.sets(), WARP)[:, : 8 * many], 16).reshape(-1, many, 8)
    if transposed:
        return [[(rows[:, i, _PAIR + half] + 2 * _ROW).reshape(-1) for half in (0, 1)] for i in range(many)]
    return [[(rows[:, i, _ROW] + 2 * _PAIR).reshape(-1)] for i in range(many)]


def _load_matrices(many: int, transposed: bool, threads: Threads, to: Operand, source: Operand) -> None:
    """ldmatrix."""
    for register, parts in zip(_vector(to), _parts_of_matrices(threads, source, many, transposed), strict=True):
        words = [threads.machine.shared.load(threads.ids, one, 4 // len(parts)).astype(np.uint32) for one in parts]
        threads.write(register, words[0] | words[-1] << np.uint32(16) if transposed else words[0], "b32")


def _store_matrices(many: int, threads: Threads, to: Operand, source: Operand) -> None:
    """stmatrix."""
    for register, (part,) in zip(_vector(source), _parts_of_matrices(threads, to, many, False), strict=True):
        threads.machine.shared.store(threads.ids, part, 4, threads.read_all(register, "b32"))


def _numbers(words: Words, format: str) -> npt.NDArray[np.float64]:
    """Terms of words of 16 bits, on the last axis; two of 8 bits in each."""
    if format == "s8":
        return np.ascontiguousarray(words).view(np.int8).astype(np.float64)
    if format == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _dot(threads: Threads, format: str, c: Values, a: Values, b: Values) -> Values:
    """c + a @ b: as tensor cores add; of integers exactly, which no kernel may exceed int32 by."""
    if format != "s8":
        return threads.machine.cores[format].dot(c, a, b)
    sums = c + a @ b
    if np.abs(sums).max() >= 2**31:
        raise OverflowError("a sum of products of integers is not below 2^31")
    return sums.astype(np.int32)


def _multiply(format: str, threads: Threads, to: Operand, *sources: Operand) -> None:
    """mma.m16n8k16, mma.m16n8k32."""
    warps, matrices, kind = threads.sets(), [], "s32" if format == "s8" else "f32"
    for operand, blocks in zip(sources[:2], (2, 1), strict=True):
        words = np.zeros((warps, 8 * blocks, 16), dtype=np.uint16)
        for place, register in enumerate(_vector(operand)):
            pair = threads.read_all(register, "b32").reshape(warps, WARP)
            for half in (0, 1):
                row, column = _ROW + 8 * (place % blocks), _PAIR + half + 8 * (place // blocks)
                words[:, row, column] = pair >> np.uint32(16 * half) & np.uint32(0xFFFF)
        matrices.append(_numbers(words, format))
    of_sums = [(slice(None), _ROW + 8 * (place // 2), _PAIR + place % 2) for place in range(4)]
    c = np.empty((warps, 16, 8), dtype=KINDS[kind])
    for register, at in zip(_vector(sources[2]), of_sums, strict=True):
        c[at] = threads.read_all(register, kind).reshape(warps, WARP)
    sums = _dot(threads, format, c, matrices[0], matrices[1].swapaxes(1, 2))
    for register, at in zip(_vector(to), of_sums, strict=True):
        threads.write(register, sums[at].reshape(-1), kind)


# Asynchronous Warpgroup Level Matrix Instructions


@dataclass(eq=False)
class _Product:
    """wgmma.mma_async of a warpgroup that it has not waited for. sums: f32[64, N] or s32[64, N]."""

    threads: I64
    group: int
    cells: list[I64]
    registers: tuple[str, ...]
    kind: str
    sums: Values


def _of_sums(registers: tuple[str, ...]) -> list[tuple[I64, I64]]:
    """Rows and columns of D that a warpgroup's threads have in some registers."""
    row, pair = np.arange(WARPGROUP) // WARP * 16 + np.tile(_ROW, 4), np.tile(_PAIR, 4)
    return [(row + 8 * (at // 2 % 2), pair + 8 * (at // 4) + at % 2) for at in range(len(registers))]


def _swizzled(descriptor: int, lines: int, transposed: bool) -> I64:
    """Addresses of a matrix of some lines and 16 terms, int64[lines, 16] (Matrix Descriptor Format)."""
    start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    if descriptor >> 49 & 7 or not descriptor >> 62:
        raise UnknownPtxError(f"the matrix descriptor {descriptor:#x}")
    swizzle = {1: 7, 2: 3, 3: 1}[descriptor >> 62]
    width = 16 * (swizzle + 1)
    line, term = np.ogrid[:lines, :16]
    if transposed:
        some = width // 2
        places = start + line // some * leading + line % some * 2 + term // 8 * stride + term % 8 * width
    else:
        places = start + line // 8 * stride + line % 8 * width + term * 2
    return places ^ (places >> 7 & swizzle) << 4


def _multiply_in_group(
    columns: int, format: str, threads: Threads, to: Operand, left: Operand, right: Operand, scale: Operand,
    *immediates: str,
) -> None:  # fmt: skip
    """wgmma.mma_async.m64nNk16 and .m64nNk32, of matrices in shared memory. immediates: signs; which are transposed.
    Integers have none."""
    machine, groups, registers = threads.machine, threads.sets(WARPGROUP), _vector(to)
    kind, immediates = ("s32", ("1", "1", "0", "0")) if format == "s8" else ("f32", immediates)
    kinds = ((left, "b64"), (right, "b64"), (scale, "pred"))
    uniform = [threads.read_all(one, kind).reshape(groups, WARPGROUP) for one, kind in kinds]
    if immediates[:2] != ("1", "1") or any((one != one[:, :1]).any() for one in uniform):
        raise UnknownPtxError("wgmma.mma_async that is negated, or whose threads have different descriptors")
    for group, ids in enumerate(threads.ids.reshape(groups, WARPGROUP)):
        matrices, cells = [], []
        for one, lines, transposed in zip(uniform, (64, columns), immediates[2:], strict=False):
            words, read = machine.shared.begin_product(ids, _swizzled(int(one[group, 0]), lines, transposed == "1"))
            matrices.append(_numbers(words, format))
            cells.append(read)
        before = np.zeros((64, columns), dtype=KINDS[kind])
        if uniform[2][group, 0]:
            for register, at in zip(registers, _of_sums(registers), strict=True):
                before[at] = Threads(machine, ids).read(register, kind)
            same = (x.sums for x in machine.products if x.registers == registers and x.threads[0] == ids[0])
            before = next(reversed([before, *same]))
        sums = _dot(threads, format, before, matrices[0], matrices[1].T)
        machine.products.append(_Product(ids, int(machine.groups["products"][ids[0]]), cells, registers, kind, sums))


def _wait_for_products(threads: Threads, pending: str) -> None:
    """wgmma.wait_group."""
    machine = threads.machine
    threads.sets(WARPGROUP)
    products, machine.products = machine.products, []
    for one in products:
        if one.threads[0] not in threads.ids or one.group >= machine.groups["products"][one.threads[0]] - int(pending):
            machine.products.append(one)
            continue
        for cells in one.cells:
            machine.shared.end_product(one.threads, cells)
        for register, at in zip(one.registers, _of_sums(one.registers), strict=True):
            Threads(machine, one.threads).write(register, one.sums[at], one.kind)


def _nothing(threads: Threads, *operands: Operand) -> None:
    """wgmma.fence, and waits for accesses of tensor memory: they are in order here. The ends of what was allocated."""


# TensorCore 5th Generation Instructions


def _of_blocks(threads: Threads, operand: Operand) -> list[tuple[int, int]]:
    """Each thread's block, and its address."""
    blocks = threads.ids // threads.machine.program.threads
    return list(zip(blocks.tolist(), threads.addresses(operand).tolist(), strict=True))


def _elect(threads: Threads, to: str, members: str) -> None:
    """elect.sync: any one of a warp."""
    threads.sets()
    register, predicate = to.split("|")
    threads.write(register, WARP - 1, "b32")
    threads.write(predicate, threads.ids % WARP == WARP - 1, "pred")


def _allocate(threads: Threads, to: Operand, columns: str) -> None:
    """tcgen05.alloc, by a warp of each block."""
    threads.sets()
    machine, first = threads.machine, threads.ids[::WARP]
    found = machine.tensors.allocate(first // machine.program.threads, int(columns))
    machine.shared.store(first, threads.addresses(to)[::WARP], 4, found)


def _move_tensor(many: int, loads: bool, threads: Threads, *operands: Operand) -> None:
    """tcgen05.ld and tcgen05.st, .32x32b: a warp has a quarter of the lanes, a thread one."""
    tensors, blocks = threads.machine.tensors, threads.ids // threads.machine.program.threads
    registers, at = operands if loads else operands[::-1]
    threads.sets()
    first = threads.addresses(at)
    if (first >> 16 != threads.ids // WARP % 4 * WARP).any():
        raise MemoryFaultError("a warp accesses lanes of tensor memory that are not its quarter")
    for place, register in zip(range(many), _vector(registers), strict=True):
        where = tensors.places(blocks, first + (threads.ids % WARP << 16) + place)
        if loads:
            threads.write(register, tensors.words[where], "b32")
        else:
            tensors.words[where] = threads.read_all(register, "b32")


def _multiply_in_tensors(
    threads: Threads, to: Operand, left: Operand, right: Operand, form: Operand, added: Operand
) -> None:
    """tcgen05.mma.kind::f16, of matrices in shared memory (Instruction descriptor)."""
    machine, size = threads.machine, threads.machine.program.threads
    kinds = ((left, "b64"), (right, "b64"), (form, "b32"), (added, "pred"))
    values = zip(*(threads.read_all(one, kind).tolist() for one, kind in kinds), strict=True)
    for (block, place), (*descriptors, form_of, adds) in zip(_of_blocks(threads, to), values, strict=True):
        format, columns = {0: "f16", 1: "bf16"}[form_of >> 7 & 7], (form_of >> 17 & 63) * 8
        if form_of & ~(63 << 17 | 3 << 15) != 128 // 16 << 24 | (format == "bf16") * (1 << 10 | 1 << 7) | 1 << 4:
            raise UnknownPtxError(f"the instruction descriptor {form_of:#x}")
        every, matrices, cells = np.arange(block * size, (block + 1) * size), [], []
        for one, lines, bit in zip(descriptors, (128, columns), (15, 16), strict=True):
            words, read = machine.shared.begin_product(every, _swizzled(one, lines, bool(form_of >> bit & 1)))
            matrices.append(_numbers(words, format))
            cells.append(read)
        sums = machine.tensors.words[block, :, place : place + columns].view(np.float32)
        machine.tensors.products[block].append(
            partial(_add_product, machine, every, cells, sums, adds, machine.cores[format], matrices)
        )


def _add_product(
    machine: Machine, threads: I64, cells: list[I64], sums: npt.NDArray[np.float32], adds: bool, cores: TensorCores,
    matrices: list[npt.NDArray[np.float64]],
) -> None:  # fmt: skip
    sums[:] = cores.dot(sums if adds else np.zeros_like(sums), matrices[0], matrices[1].T)
    for read in cells:
        machine.shared.end_product(threads, read)


def _commit_products(threads: Threads, barrier: Operand) -> None:
    """tcgen05.commit."""
    for block, address in _of_blocks(threads, barrier):
        threads.machine.tensors.commit(block, address)


def _begin_barrier(threads: Threads, barrier: Operand, count: str) -> None:
    """mbarrier.init: of one arrival."""
    if count != "1":
        raise UnknownPtxError(f"mbarrier.init of {count}")
    threads.machine.tensors.phases.update(dict.fromkeys(_of_blocks(threads, barrier), 0))


def _has_ended(threads: Threads, barrier: Operand, parity: Operand) -> npt.NDArray[np.bool_]:
    """mbarrier.try_wait.parity: whether it succeeds, for each thread."""
    asked = list(zip(_of_blocks(threads, barrier), threads.read_all(parity, "b32").tolist(), strict=True))
    found = {one: threads.machine.tensors.has_ended(*one[0], one[1]) for one in set(asked)}
    return np.array([found[one] for one in asked], dtype=bool)


# Parallel Synchronization and Communication Instructions


def _reduce(threads: Threads, to: Operand, source: Operand, members: Operand) -> None:
    """redux.sync.add."""
    values = threads.read_all(source, "s32").reshape(threads.sets(), WARP)
    if not (threads.read(members, "b32") == 0xFFFFFFFF).all():
        raise UnknownPtxError("redux.sync of some threads")
    threads.write(to, values.sum(axis=1, dtype=np.int32).repeat(WARP), "s32")


def _fence_proxy(threads: Threads) -> None:
    """fence.proxy.async."""
    threads.machine.shared.fenced[threads.ids // WARP] = threads.machine.shared.clock


def _order_warp(threads: Threads, members: str) -> None:
    """bar.warp.sync."""
    threads.sets()
    if members != "-1":
        raise UnknownPtxError(f"bar.warp.sync of {members}")
    threads.machine.shared.synced[threads.ids[::WARP] // WARP] += 1


ACTIONS: dict[str, Action] = {
    "nothing": _nothing,
    "bar.warp.sync": _order_warp,
    "cp.async.ca.shared.global": partial(_copy, ("0x4", "0x8", "0x10")),
    "cp.async.cg.shared.global": partial(_copy, ("0x10",)),
    "cp.async.commit_group": partial(_commit, "copies"),
    "cp.async.wait_group": _wait_for_copies,
    "fence.proxy.async.shared::cta": _fence_proxy,
    "redux.sync.add.s32": _reduce,
    "elect.sync": _elect,
    "mbarrier.init.shared::cta.b64": _begin_barrier,
    "mbarrier.inval.shared::cta.b64": _nothing,
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32": _allocate,
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64": _commit_products,
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32": _nothing,
    "tcgen05.mma.cta_group::1.kind::f16": _multiply_in_tensors,
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned": _nothing,
    **{f"tcgen05.wait::{what}.sync.aligned": _nothing for what in ("ld", "st")},
    "wgmma.fence.sync.aligned": _nothing,
    "wgmma.commit_group.sync.aligned": partial(_commit, "products"),
    "wgmma.wait_group.sync.aligned": _wait_for_products,
    "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32": partial(_multiply, "s8"),
    **{f"mma.sync.aligned.m16n8k16.row.col.f32.{x}.{x}.f32": partial(_multiply, x) for x in ("bf16", "f16")},
    **{f"shfl.sync.{mode}.b32": partial(_shuffle, mode) for mode in ("up", "down", "bfly", "idx")},
}
TRY_WAIT = "mbarrier.try_wait.parity.shared::cta.b64"
CONTROL = "bra", "bra.uni", "ret", "bar.sync", TRY_WAIT


@cache
def action_of(opcode: str) -> Action:
    """Return what an opcode, with its modifiers and types, does. Raises UnknownPtxError."""
    name, _, kind = opcode.rpartition(".")
    if kind in PACKED:
        name, kind = opcode, PACKED[kind]
    if opcode in ACTIONS:
        return ACTIONS[opcode]
    if name in VALUES and kind in VALUES[name][0]:
        _, sources, result, function = VALUES[name]
        types = {SAME: kind, DOUBLE: f"{kind[0]}{16 * size_of(kind)}"}
        return partial(_evaluate, tuple(types.get(x, x) for x in sources), types.get(result, result), function)
    if found := re.fullmatch(r"cvt(?:\.(r[a-z]+))?\.(\w+)\.(\w+)", opcode):
        return partial(_evaluate, (found[3],), found[2], conversion(found[1] or "", found[2], found[3]))
    if name in ("mov", "ld.param") and kind in KINDS:
        return (
            partial(_move, f"b{kind[1:]}" if kind != "pred" else kind)
            if name == "mov"
            else partial(_load_parameter, kind)
        )
    if (found := re.fullmatch(r"(ld|st)\.(global|shared)(?:\.v([24]))?", name)) and kind in KINDS:
        return partial(_load if found[1] == "ld" else _store, found[2], int(found[3] or 1), kind)
    if found := re.fullmatch(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared\.b16", opcode):
        return partial(_load_matrices, int(found[1]), found[2] is not None)
    if found := re.fullmatch(r"stmatrix\.sync\.aligned\.m8n8\.x([124])\.shared\.b16", opcode):
        return partial(_store_matrices, int(found[1]))
    if found := re.fullmatch(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(b?f16)\.\2", opcode):
        return partial(_multiply_in_group, int(found[1]), found[2])
    if found := re.fullmatch(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k32\.s32\.s8\.s8", opcode):
        return partial(_multiply_in_group, int(found[1]), "s8")
    if found := re.fullmatch(r"tcgen05\.(ld|st)\.sync\.aligned\.32x32b\.x(\d+)\.b32", opcode):
        return partial(_move_tensor, int(found[2]), found[1] == "ld")
    raise UnknownPtxError(opcode)


@dataclass(eq=False)
class _Unit:
    """Threads that are executed until they wait for others, before any other threads are; by where they are."""

    ready: dict[int, I64] = field(default_factory=dict)
    waiting: dict[int, I64] = field(default_factory=dict)
    trying: dict[int, I64] = field(default_factory=dict)
    """Those that wait for a barrier of the block, and for a phase of an mbarrier."""

    def add(self, place: int, ids: I64, sets: dict[int, I64] | None = None) -> None:
        sets = self.ready if sets is None else sets
        if len(ids):
            sets[place] = np.union1d(sets[place], ids) if place in sets else ids


class Machine:
    """Some blocks of a grid, which execute a program."""

    def __init__(
        self, program: PtxProgram, grid: int, blocks: range, parameters: Sequence[bytes], memory: GlobalMemory,
        shared: int, cores: dict[str, TensorCores],
    ) -> None:  # fmt: skip
        """shared: bytes of dynamic shared memory. cores: by formats of operands."""
        self.program, self.cores = program, cores
        self.threads = len(blocks) * program.threads
        ids = np.arange(self.threads)
        block = ids // program.threads + blocks.start
        grids = np.full(self.threads, grid)
        self.special = {"%tid.x": ids % program.threads, "%ctaid.x": block, "%nctaid.x": grids}
        values = (np.frombuffer(one, dtype=np.uint8) for one in parameters)
        self.parameters = dict(zip(program.parameters, values, strict=True))
        opcodes = {one.opcode for one in program.instructions}
        widths = [size_of(one[-3:].strip(".")) for one in opcodes if re.match(r"(ld|st)(\.shared|matrix)", one)]
        granule = min([*widths, 4, *(2 for one in opcodes if "mma" in one)])
        self.shared = SharedMemory(len(blocks), max(shared, 16), program.threads, granule)
        self.spaces = {"global": memory, "shared": self.shared}
        with_tensors = any("tcgen05" in one for one in opcodes)
        self.tensors = TensorMemory(len(blocks) if with_tensors else 0)
        self.copies: list[_Copy] = []
        self.products: list[_Product] = []
        self.groups = {what: np.zeros(self.threads, dtype=np.int64) for what in ("copies", "products")}
        self._registers: dict[str, Values] = {}
        self._actions = [_nothing if one.opcode in CONTROL else action_of(one.opcode) for one in program.instructions]
        self._unit_of = WARPGROUP if any("wgmma" in one for one in opcodes) else WARP

    def kind_of(self, register: str) -> str:
        """Return the type that a register was declared with."""
        return self.program.registers.get(register.rstrip("0123456789"), "")

    def register(self, name: str, kind: str) -> Values:
        """Return a register of all threads, for accesses of a type. Before it is written it holds a pattern that no
        result is. Raises UnknownPtxError if it has not that many bits."""
        declared = self.kind_of(name)
        if not declared or (declared == "pred") != (kind == "pred") or size_of(declared) < size_of(kind):
            raise UnknownPtxError(f"the register {name} as {kind}")
        if name not in self._registers:
            pattern = 0xA5A5A5A5A5A5A5A5 & (1 << 8 * size_of(declared)) - 1
            self._registers[name] = np.full(self.threads, pattern, dtype=KINDS[declared])
        return self._registers[name]

    def run(self, order: int) -> None:
        """Execute all threads. order: 0, all at once; 1 or -1: warps, or warpgroups, one after the other, the first or
        the last one first. Raises what accesses raise, with a note of the instruction."""
        every = np.arange(self.threads)
        size = self._unit_of if order else self.threads
        units = [_Unit({0: every[first : first + size]}) for first in range(0, self.threads, size)][:: order or 1]
        with np.errstate(all="ignore"):
            while any(unit.ready for unit in units):
                for unit in units:
                    while unit.ready:
                        self._advance(unit)
                self._release(units)
        if self.copies or self.products:
            raise DivergenceError("the program ends before its copies, or its products, do")

    def _advance(self, unit: _Unit) -> None:
        """Execute those threads of a unit that are furthest behind, until they part or wait."""
        place = min(unit.ready)
        ids = unit.ready[place]
        while len(ids):
            if place in unit.ready:
                unit.add(place, ids)
                ids = unit.ready.pop(place)
            instruction, threads = self.program.instructions[place], Threads(self, ids)
            acting = threads.guarded(instruction.guard, instruction.negated)
            self.shared.clock += 1
            if instruction.opcode in CONTROL:
                ids = self._part(unit, place, ids, acting.ids)
            elif len(acting.ids):
                try:
                    self._actions[place](acting, *instruction.operands)
                except Exception as error:
                    error.add_note(f"{self.program.name}, instruction {place}: {instruction.text}")
                    raise
            place += 1

    def _part(self, unit: _Unit, place: int, ids: I64, acting: I64) -> I64:
        """Send threads where control flow has them go (Control Flow Instructions), and return those that go on."""
        instruction = self.program.instructions[place]
        rest = np.setdiff1d(ids, acting, assume_unique=True)
        if instruction.opcode == "bar.sync":
            if instruction.operands != ("0",):
                raise UnknownPtxError(instruction.text)
            unit.add(place, acting, unit.waiting)
        elif instruction.opcode == TRY_WAIT:
            unit.add(place, acting, unit.trying)
        elif instruction.opcode != "ret" and len(acting):
            unit.add(self.program.labels[str(instruction.operands[0])], acting)
        if len(rest) and len(acting):
            unit.add(place + 1, rest)
            return rest[:0]
        return rest

    def _release(self, units: list[_Unit]) -> None:
        """Let threads go on whose phase has ended, or else whose blocks have come to a barrier as a whole."""
        for unit in units:
            tried, unit.trying = unit.trying, {}
            for place, ids in tried.items():
                ended = _has_ended(Threads(self, ids), *self.program.instructions[place].operands)
                unit.add(place + 1, ids[ended])
                unit.add(place, ids[~ended], unit.trying)
        if any(unit.ready for unit in units):
            return
        for place in {place for unit in units for place in unit.waiting}:
            ids = np.concatenate([unit.waiting[place] for unit in units if place in unit.waiting])
            blocks, counts = np.unique(ids // self.program.threads, return_counts=True)
            if (counts != self.program.threads).any():
                raise DivergenceError(f"not all threads of a block come to the barrier at {place}")
            self.shared.barriers[blocks] += 1
            self.shared.synced[np.unique(ids // WARP)] += 1
        for unit in units:
            unit.ready = {place + 1: ids for place, ids in unit.waiting.items()}
            unit.waiting = {}
            if unit.trying and not unit.ready:
                raise DivergenceError("threads wait for a phase of an mbarrier that nothing ends")


def execute(
    program: PtxProgram, blocks: range, parameters: Sequence[bytes], tensors: Sequence[torch.Tensor], shared: int,
    cores: dict[str, TensorCores], order: int = 0,
) -> None:  # fmt: skip
    """Execute some last blocks of a grid, which has one dimension.

    parameters: values of the entry function's, in their order. tensors: all that it may access, on the CPU. shared,
    cores, order: as `Machine` has them; of blocks, too."""
    memory = GlobalMemory(tensors)
    step = max(TOGETHER // program.threads, 1)
    for first in blocks[::step][:: order or 1]:
        some = range(first, min(first + step, blocks.stop))
        Machine(program, blocks.stop, some, parameters, memory, shared, cores).run(order)
