"""Products of small tiles in vector registers, written as LLVM's instructions: the compiler's own loops over them would
not keep a tile's sums in registers.

A strip is `terms` times so many FP64 numbers, one for every row or column of a tile: [terms, rows] of the left operand,
[terms, columns] of the right one, each term aligned to a vector. Addresses are integers, of bytes. `lanes` is a tuple
with an entry for every FP64 number of a vector register, `(0,) * 8` for AVX-512: its length is part of its type, so
that loops are compiled for each kind of registers, and kept beside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import torch
from llvmlite import ir
from numba import types

from roundlog.kernels.machine_code import target_machine
from roundlog.kernels.marking import LARGEST, TWO_UNITS
from roundlog.kernels.number_words import (
    VectorCode,
    constant,
    everywhere,
    instructions,
    intrinsic_of,
    load_numbers,
    rounded_words,
    size_of,
    store_words,
)

_DOUBLE, _INDEX, _WHOLE = ir.DoubleType(), ir.IntType(64), ir.IntType(32)


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of a tile. Its sums take rows * vectors registers, one term of the right operand `vectors`, and what is
    repeated of the left one another."""

    lanes: int
    """FP64 numbers in a vector register."""
    rows: int
    vectors: int
    """Registers for a row."""

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def kind(self) -> ir.VectorType:
        return ir.VectorType(_DOUBLE, self.lanes)

    @property
    def singles(self) -> ir.VectorType:
        return ir.VectorType(ir.FloatType(), self.lanes)

    @property
    def aligned(self) -> int:
        """Bytes of a vector."""
        return 8 * self.lanes


TILES = {tile.lanes: tile for tile in (Tile(8, 8, 3), Tile(4, 4, 3), Tile(2, 8, 3))}
"""By lanes: AVX-512 has 32 registers, AVX2 16, NEON 32. Older processors of x86 take tiles of two lanes, slowly."""


def constant_of(size: Callable[[Tile], int]) -> Any:
    """A number that follows from a tile, for compiled loops, which know it by the tile's lanes."""

    return instructions(types.int64)(lambda builder, lanes: constant(size(TILES[len(lanes)])))


tile_rows, tile_columns = constant_of(lambda tile: tile.rows), constant_of(lambda tile: tile.columns)
"""Rows and columns of a tile of so many `lanes`, in compiled loops."""


def loop_over(builder: Any, terms: Any, begin: Sequence[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """A loop over `terms` > 0 that keeps values in registers; step(k, values) gives the next ones, begin the first."""
    before = builder.block
    inside, after = builder.append_basic_block("terms"), builder.append_basic_block("summed")
    builder.branch(inside)
    builder.position_at_end(inside)
    k = builder.phi(_INDEX)
    values = [builder.phi(value.type) for value in begin]
    following = step(k, values)
    next_k = builder.add(k, constant(1))
    for phi, first, later in zip([k, *values], [constant(0), *begin], [next_k, *following], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.cbranch(builder.icmp_signed("<", next_k, terms), inside, after)
    builder.position_at_end(after)
    return following


def crossed(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """As many vectors as each has lanes, transposed: exchanges between vectors whose numbers differ by one, two, four
    and so on."""
    rows, count, apart = list(rows), len(rows), 1
    while apart < count:
        low = [lane if not lane & apart else lane - apart + count for lane in range(count)]
        masks = [ir.Constant(ir.VectorType(_WHOLE, count), [lane + more for lane in low]) for more in (0, apart)]
        for n in range(count):
            if not n & apart:
                pair = rows[n], rows[n + apart]
                rows[n], rows[n + apart] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        apart *= 2
    return rows


def at_step(builder: Any, first: Any, step: Any, number: int) -> Any:
    """An address that lies `number` steps of so many bytes behind the first."""
    return builder.add(first, builder.mul(step, constant(number)))


class _TileCode(VectorCode):
    """Instructions for a tile's vectors of FP64 numbers."""

    def __init__(self, builder: Any, tile: Tile) -> None:
        super().__init__(builder)
        self.tile, self.zeros = tile, self.all(tile.kind, 0.0)

    def vector(self, address: Any, number: int = 0) -> Any:
        """One of the aligned vectors from an address on."""
        return self.load(self.at(address, number * self.tile.aligned), self.tile.kind, self.tile.aligned)

    def put(self, address: Any, values: Any, number: int = 0) -> None:
        self.store(self.at(address, number * self.tile.aligned), values, self.tile.aligned)

    def sum_up(self, terms: Any, count: int, term: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """A loop over `terms` > 0 that keeps `count` vectors of sums in registers; term(k, sums) gives the next
        ones."""
        return loop_over(self.builder, terms, [self.zeros] * count, term)


@instructions(types.void)
def sum_products(builder: Any, lanes: Any, left: Any, right: Any, tile: Any, terms: Any, more: Any) -> None:
    """tile[r, c] = the sum over terms of left[k, r] * right[k, c], one term after the other, added to what is there if
    `more`; terms > 0. tile: float64[rows, columns], aligned to a vector."""
    call_of_tiles(builder, "sum_products", TILES[len(lanes)], _write_products, left, right, tile, terms, more)


def call_of_tiles(builder: Any, name: str, tile: Tile, write: Callable[[Any, Tile], None], *arguments: Any) -> None:
    """A call of a function of its own: among other code the compiler would keep tiles where registers are wanted.
    write: fills it, where the module has none of that name for such tiles."""
    name = f"roundlog.{name}_{tile.lanes}"
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [one.type for one in arguments])
        function = ir.Function(builder.module, kind, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        write(function, tile)
    builder.call(function, arguments)


def _write_products(function: Any, tile: Tile) -> None:
    code = _TileCode(ir.IRBuilder(function.append_basic_block()), tile)
    builder, (left, right, sums_before, terms, more) = code.builder, function.args

    def term(k: Any, sums: list[Any]) -> list[Any]:
        of_left, of_right = code.on(left, k, 8 * tile.rows), code.on(right, k, 8 * tile.columns)
        columns = [code.vector(of_right, number) for number in range(tile.vectors)]
        following = []
        for row in range(tile.rows):
            repeated = everywhere(builder, code.load(code.at(of_left, 8 * row), _DOUBLE, 8), tile.lanes)
            for number, column in enumerate(columns):
                following.append(code.multiply_add(repeated, column, sums[row * tile.vectors + number]))
        return following

    for number, total in enumerate(code.sum_up(terms, tile.rows * tile.vectors, term)):
        before = builder.select(more, code.vector(sums_before, number), code.zeros)
        code.put(sums_before, builder.fadd(before, total), number)
    builder.ret_void()


def _squares(together: int) -> Any:
    @instructions(types.void)
    def add(builder: Any, lanes: Any, strip: Any, squared_norms: Any, terms: Any, width: Any) -> None:
        code = _TileCode(builder, TILES[len(lanes)])
        line = builder.mul(width, constant(8))

        def term(k: Any, sums: list[Any]) -> list[Any]:
            following = []
            for number, total in enumerate(sums):
                of = builder.add(builder.mul(k, constant(together)), constant(number))
                x = code.vector(builder.add(strip, builder.mul(of, line)))
                following.append(code.multiply_add(x, x, total))
            return following

        total = code.vector(squared_norms)
        for some in code.sum_up(terms, together, term):
            total = builder.fadd(total, some)
        code.put(squared_norms, total)

    return add


add_squares, add_squares_of_four = _squares(1), _squares(4)
"""squared_norms[i] += the sum over terms, or over four times as many, of strip[k, i] squared, for a vector of a strip
of `width`; both addresses are those of the vector's first number; terms > 0. One sum alone would wait for itself."""


@instructions(types.void)
def widen(builder: Any, lanes: Any, x: Any, source: Any, target: Any) -> None:
    """A vector's numbers, of an array such as x (float32, or uint16 for BF16), as FP64 ones; only target is aligned."""
    code = _TileCode(builder, TILES[len(lanes)])
    code.put(target, builder.fpext(load_numbers(builder, x, source, len(lanes)), code.tile.kind))


@instructions(types.void)
def widen_transposed(builder: Any, lanes: Any, x: Any, source: Any, line: Any, target: Any, term: Any) -> None:
    """As many lines as a vector has lanes, of as many numbers as in `widen`, `line` bytes apart, as FP64 columns that
    lie `term` bytes apart; only these are aligned."""
    code = _TileCode(builder, TILES[len(lanes)])
    count = code.tile.lanes
    rows = [load_numbers(builder, x, at_step(builder, source, line, number), count) for number in range(count)]
    for number, vector in enumerate(crossed(builder, rows)):
        code.put(at_step(builder, target, term, number), builder.fpext(vector, code.tile.kind))


@instructions(types.int64, scale=types.float64, factor=types.float64)
def round_row(builder: Any, lanes: Any, row: Any, norms: Any, scale: Any, factor: Any, x: Any, out: Any) -> Any:
    """Rounds and tests float64[columns] as `roundlog.kernels.marking` says, with d = scale * norms[c]. Where scale is
    0, numbers are exact, and a tie is rounded and not marked. Writes the numbers to out, as an array such as x has
    them (float32, or uint16 for BF16), and returns a bit for every element that is marked, the lowest for the
    first."""
    code = _TileCode(builder, TILES[len(lanes)])
    tile = code.tile
    zero, two_units = (ir.Constant(tile.kind.element, number) for number in (0.0, TWO_UNITS))
    is_exact = builder.fcmp_ordered("==", scale, zero)
    two_units = everywhere(builder, builder.select(is_exact, zero, two_units), tile.lanes)
    largest = ir.Constant(tile.singles, [float(LARGEST)] * tile.lanes)
    scale, factor = (everywhere(builder, number, tile.lanes) for number in (scale, factor))
    found = constant(0)
    for number in range(tile.vectors):
        v = code.vector(row, number)
        d = builder.fmul(scale, code.vector(norms, number))
        magnitude = intrinsic_of(builder, "fabs", v)
        reach = builder.fadd(builder.fmul(d, factor), builder.fmul(magnitude, two_units))
        low = rounded_words(builder, x, builder.fsub(v, reach))
        high = rounded_words(builder, x, builder.fadd(v, reach))
        beyond = builder.fcmp_unordered(">", intrinsic_of(builder, "fabs", low), largest)
        marked = builder.or_(builder.fcmp_unordered("!=", low, high), beyond)
        bits = builder.zext(builder.bitcast(marked, ir.IntType(tile.lanes)), _INDEX)
        found = builder.or_(found, builder.shl(bits, constant(number * tile.lanes)))
        # No negative zero.
        at = builder.add(out, constant(number * tile.lanes * size_of(x)))
        store_words(builder, x, at, builder.fadd(low, code.all(tile.singles, 0.0)))
    return found


_MULTIPLY_ADD = """
declare <{0} x double> @llvm.fmuladd.v{0}f64(<{0} x double>, <{0} x double>, <{0} x double>)
define void @f(ptr %to, <{0} x double> %a, <{0} x double> %b, <{0} x double> %c) {{
  %d = call <{0} x double> @llvm.fmuladd.v{0}f64(<{0} x double> %a, <{0} x double> %b, <{0} x double> %c)
  store <{0} x double> %d, ptr %to
  ret void
}}
"""
_INSTRUCTIONS = {8: ("vfmadd", "%zmm"), 4: ("vfmadd", "%ymm")}
"""An instruction that multiplies and adds so many numbers, and its registers, in assembly."""

_BY_ATEN = {"AVX512": 8, "AVX2": 4}


def fused(machine: llvm.TargetMachine) -> int:
    """Return the most FP64 numbers that LLVM multiplies and adds by one instruction of AVX2 or AVX-512, else 2."""
    for lanes, (name, registers) in _INSTRUCTIONS.items():
        lines = machine.emit_assembly(llvm.parse_assembly(_MULTIPLY_ADD.format(lanes))).splitlines()
        if any(name in line and registers in line for line in lines):
            return lanes
    return 2


@cache
def tile_lanes() -> int:
    """Return the lanes of the tiles that this process multiplies by. ATEN_CPU_CAPABILITY, which decides for torch's
    kernels, may allow fewer than the processor that numba compiles for has."""
    return min(_BY_ATEN.get(torch.backends.cpu.get_cpu_capability(), 2), fused(target_machine()))
