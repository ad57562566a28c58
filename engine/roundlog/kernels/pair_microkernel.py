"""Sums of products of BF16 numbers by the instruction that multiplies two pairs of them in every lane of a vector and
adds both products to an FP32 number: VDPBF16PS, on processors with AVX512_BF16.

It takes subnormal numbers as zeros, makes zeros of subnormal results, and rounds to nearest, whatever a thread's
environment says (Intel SDM, volume 2, VDPBF16PS: the upper product is added first, then the lower one, each rounded
once). docs/numerics.md proves a bound for any order of a pair's additions, and for one rounding less.

`paired` is a tuple with as many entries as products are added at once in a lane: `(0, 0)`, or `(0,)` where a processor
has no such instruction, for which only `roundlog.kernels.short_microkernel` has code. Its length is part of its type,
as that of `lanes`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types

from roundlog.kernels.gemm_microkernel import TILES, Tile, call_of_tiles, loop_over
from roundlog.kernels.machine_code import target_machine
from roundlog.kernels.number_words import call_by_name, constant, everywhere, instructions, widen_pairs
from roundlog.kernels.short_microkernel import ShortCode

PAIRS, BLOCKS = 4, 8
"""Pairs of terms that are added up from zero in one register, and how many such sums in FP32, before FP64."""
ROWS = 4
"""Rows of a tile. It has two registers for each of its vectors: a sum of PAIRS pairs, and one of BLOCKS such sums."""
LANES = 8

ROUNDINGS = np.array(
    [
        2 * (PAIRS - pair) - (pair == 0) + min(BLOCKS - 1, BLOCKS - block)
        for block in range(BLOCKS)
        for pair in range(PAIRS)
        for _ in range(2)
    ],
    dtype=np.float64,
)
"""float64[2 * PAIRS * BLOCKS]: how many FP32 roundings a term goes through, by its place, in any order of a pair's."""

_NARROW = """
define void @f(ptr %to, <16 x float> %x) {
  %y = fptrunc <16 x float> %x to <16 x bfloat>
  store <16 x bfloat> %y, ptr %to
  ret void
}
"""
_WORD = ir.IntType(32)


class _ShortFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's type of BF16 numbers, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ShortFloat)

    def __hash__(self) -> int:
        return hash(_ShortFloat)


@cache
def adds_pairs(lanes: int) -> int:
    """Products that tiles of so many lanes add at once in a lane: 2, or 1 if the processor that numba compiles for has
    no instruction for it."""
    return 2 if lanes == LANES and has_pairs(target_machine()) else 1


def has_pairs(machine: llvm.TargetMachine) -> bool:
    """Whether LLVM has the instruction for a machine, asked by another one of the same extension: it makes something
    else of that where a processor lacks it, or may not use it, whatever its list of features says."""
    lines = machine.emit_assembly(llvm.parse_assembly(_NARROW)).splitlines()
    return any("vcvtneps2bf16" in line and "%zmm" in line for line in lines)


def _add_pairs(builder: Any, sums: Any, left: Any, right: Any) -> Any:
    """sums: FP32 numbers; left, right: words, pairs of BF16 numbers."""
    count = sums.type.count
    kind = ir.VectorType(_ShortFloat(), 2 * count)
    pairs = (builder.bitcast(x, kind) for x in (left, right))
    return call_by_name(builder, f"llvm.x86.avx512bf16.dpbf16ps.{32 * count}", sums.type, sums, *pairs)


@instructions(types.int64)
def products_at_once(builder: Any, paired: Any) -> Any:
    """len(paired), which compiled loops know."""
    return constant(len(paired))


@instructions(types.void)
def sum_pair_tile(
    builder: Any, lanes: Any, paired: Any, left: Any, right: Any, tile: Any, blocks: Any, add: Any
) -> None:
    """tile[r, c] = the sum over PAIRS * `blocks` pairs of left[k, r] * right[k, c], added to what is there if `add`;
    blocks > 0. left: pairs of BF16 words, [k, left_width], from a row on; right: [k, short_columns]; tile:
    float64[ROWS, short_columns]; right and tile are aligned to an FP32 vector. Does nothing if not `paired`."""
    if len(paired) > 1:
        call_of_tiles(builder, "sum_pair_tile", TILES[len(lanes)], _write_tile, left, right, tile, blocks, add)


def _write_tile(function: Any, tile: Tile) -> None:
    builder = ir.IRBuilder(function.append_basic_block())
    code = ShortCode(builder, tile)
    left, right, sums_before, blocks, add = function.args
    aligned, pitch = 4 * code.width, 4 * max(tile.rows, code.width)
    of_row, count = tile.vectors * aligned, ROWS * tile.vectors
    zeros = [code.all(code.singles, 0.0)] * count

    def block(k: Any, totals: list[Any]) -> list[Any]:
        of_left = builder.add(left, builder.mul(k, constant(PAIRS * pitch)))
        of_right = builder.add(right, builder.mul(k, constant(PAIRS * of_row)))
        sums = zeros
        for pair in range(PAIRS):
            places = [code.at(of_right, pair * of_row + aligned * n) for n in range(tile.vectors)]
            columns = [code.load(place, code.words, aligned) for place in places]
            following = []
            for row in range(ROWS):
                word = code.load(code.at(of_left, pair * pitch + 4 * row), _WORD, 4)
                repeated = everywhere(builder, word, code.width)
                for n, column in enumerate(columns):
                    following.append(_add_pairs(builder, sums[row * tile.vectors + n], repeated, column))
            sums = following
        return [builder.fadd(total, some) for total, some in zip(totals, sums, strict=True)]

    def group(g: Any, _: list[Any]) -> list[Any]:
        first = builder.mul(g, constant(BLOCKS))
        rest = builder.sub(blocks, first)
        some = builder.select(builder.icmp_signed("<", rest, constant(BLOCKS)), rest, constant(BLOCKS))
        totals = loop_over(builder, some, zeros, lambda k, totals: block(builder.add(first, k), totals))
        more = builder.or_(add, builder.icmp_signed(">", g, constant(0)))
        for n, total in enumerate(totals):
            place = code.at(sums_before, 2 * aligned * n)
            before = builder.select(more, code.load(place, code.doubles, aligned), code.all(code.doubles, 0.0))
            code.store(place, builder.fadd(before, builder.fpext(total, code.doubles)), aligned)
        return []

    groups = builder.sdiv(builder.add(blocks, constant(BLOCKS - 1)), constant(BLOCKS))
    loop_over(builder, groups, [], group)
    builder.ret_void()


@instructions(types.float64)
def dot_pairs(builder: Any, lanes: Any, paired: Any, left: Any, right: Any, vectors: Any) -> Any:
    """The sum over 2 * short vector * `vectors` terms of the products of BF16 words from two addresses: two terms at a
    time in FP32, with one rounding, and what becomes of these in FP64, in any order; vectors > 0."""
    code = ShortCode(builder, TILES[len(lanes)])
    addresses = left, right

    def step(k: Any, sums: list[Any]) -> list[Any]:
        on = builder.mul(k, constant(4 * code.width))
        left, right = (code.load(builder.add(address, on), code.words, 2) for address in addresses)
        if len(paired) > 1:
            both = _add_pairs(builder, code.all(code.singles, 0.0), left, right)
        else:
            lower, upper = zip(widen_pairs(builder, left), widen_pairs(builder, right), strict=True)
            both = code.multiply_add(*upper, builder.fmul(*lower))
        return [builder.fadd(sums[0], builder.fpext(both, code.doubles))]

    (total,) = loop_over(builder, vectors, [code.all(code.doubles, 0.0)], step)
    return code.sum_of(total)
