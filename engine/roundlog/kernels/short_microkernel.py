"""Products of BF16 numbers in FP32 vectors, written as LLVM's instructions, as in `roundlog.kernels.gemm_microkernel`.

A product of two BF16 numbers has 16 bits: FP32 holds it exactly, unless it is too large or too small. A tile has the
rows and vectors of an FP64 one, and twice the columns. Terms are added up in FP32 in blocks of BLOCK, BLOCKS of them in
FP32 too, and what becomes of these in FP64. docs/numerics.md proves how far that is from the exact sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from roundlog.kernels.gemm_microkernel import (
    TILES,
    Tile,
    call_of_tiles,
    constant_of,
    loop_over,
)
from roundlog.kernels.number_words import (
    VectorCode,
    constant,
    everywhere,
    instructions,
    intrinsic_of,
    store_words,
    widen_pairs,
)

BLOCK, BLOCKS = 16, 4
TERMS = BLOCK * BLOCKS
"""Terms between two additions in FP64."""

ROUNDINGS = np.array(
    [min(BLOCK - 1, BLOCK - t) + min(BLOCKS - 1, BLOCKS - block) for block in range(BLOCKS) for t in range(BLOCK)],
    dtype=np.float64,
)
"""float64[TERMS]: how many FP32 roundings a term goes through, by its place."""

RELATIVE = 2.0**-22
"""Times the magnitude it is added to an error bound, for rounding the ends of the interval to FP32."""

_SINGLE, _DOUBLE, _INDEX, _WORD = ir.FloatType(), ir.DoubleType(), ir.IntType(64), ir.IntType(32)
_LARGEST = float(np.finfo(np.float32).max)


def width_of(lanes: int) -> int:
    """FP32 numbers in a vector of so many FP64 ones."""
    return 2 * lanes


short_columns = constant_of(lambda tile: tile.vectors * width_of(tile.lanes))
"""Columns of a tile, in compiled loops."""
left_width = constant_of(lambda tile: max(tile.rows, width_of(tile.lanes)))
"""Rows of a strip of the left operand: those of one or more tiles."""


class ShortCode(VectorCode):
    """Instructions for FP32 vectors."""

    def __init__(self, builder: Any, tile: Tile) -> None:
        super().__init__(builder)
        self.tile = tile
        self.width = width_of(tile.lanes)
        self.singles, self.doubles = (ir.VectorType(kind, self.width) for kind in (_SINGLE, _DOUBLE))
        self.words = ir.VectorType(_WORD, self.width)


@instructions(types.void)
def sum_short_block(
    builder: Any, lanes: Any, left: Any, right: Any, singles: Any, tile: Any, terms: Any, more: Any, done: Any, add: Any
) -> None:
    """The sums over at most BLOCK terms of left[k, r] * right[k, c], in FP32, plus those in `singles` if `more`. They
    go to `singles`, or if `done` to `tile`, added in FP64 to what is there if `add`. left: float32[terms, left_width],
    from a row on; right: float32[terms, short_columns]; singles, tile: float32 and float64[rows, short_columns]; all
    but left aligned to an FP32 vector."""
    call_of_tiles(
        builder, "sum_short_block", TILES[len(lanes)], _write_block, left, right, singles, tile, terms, more, done, add
    )


def _write_block(function: Any, tile: Tile) -> None:
    builder = ir.IRBuilder(function.append_basic_block())
    code = ShortCode(builder, tile)
    left, right, singles, sums_before, terms, more, done, add = function.args
    aligned, pitch = 4 * code.width, max(tile.rows, code.width)
    of_row = 4 * tile.vectors * code.width

    def term(k: Any, sums: list[Any]) -> list[Any]:
        of_left = builder.add(left, builder.mul(k, constant(4 * pitch)))
        of_right = builder.add(right, builder.mul(k, constant(of_row)))
        columns = [code.load(code.at(of_right, aligned * n), code.singles, aligned) for n in range(tile.vectors)]
        following = []
        for row in range(tile.rows):
            repeated = everywhere(builder, code.load(code.at(of_left, 4 * row), _SINGLE, 4), code.width)
            for n, column in enumerate(columns):
                total = sums[row * tile.vectors + n]
                following.append(code.multiply_add(repeated, column, total))
        return following

    count = tile.rows * tile.vectors
    totals = loop_over(builder, terms, [code.all(code.singles, 0.0)] * count, term)
    kept, finished = function.append_basic_block("kept"), function.append_basic_block("finished")
    builder.cbranch(done, finished, kept)
    for block in (kept, finished):
        builder.position_at_end(block)
        for n, total in enumerate(totals):
            place = code.at(singles, aligned * n)
            before = builder.select(more, code.load(place, code.singles, aligned), code.all(code.singles, 0.0))
            total = builder.fadd(before, total)
            if block is kept:
                code.store(place, total, aligned)
            else:
                place = code.at(sums_before, 2 * aligned * n)
                wide = builder.fpext(total, code.doubles)
                before = builder.select(add, code.load(place, code.doubles, aligned), code.all(code.doubles, 0.0))
                code.store(place, builder.fadd(before, wide), aligned)
        builder.ret_void()


@instructions(types.int64, scale=types.float32, least=types.float32)
def mark_short_row(builder: Any, lanes: Any, row: Any, norms: Any, scale: Any, least: Any, x: Any, out: Any) -> Any:
    """Rounds float64[short_columns] to an array such as x, BF16, and returns a bit for every element that may have to
    be rounded otherwise: the FP32 numbers that lie a little outside of y - d and y + d round to two numbers, or are not
    finite. d = scale * norms[c] + least, float32; norms is aligned to a vector."""
    code = ShortCode(builder, TILES[len(lanes)])
    scale, least = (everywhere(builder, number, code.width) for number in (scale, least))
    found, aligned = constant(0), 4 * code.width
    largest = code.all(code.singles, _LARGEST)
    for n in range(code.tile.vectors):
        wide = code.load(code.at(row, 2 * aligned * n), code.doubles, aligned)
        y = builder.fptrunc(wide, code.singles)
        magnitude = intrinsic_of(builder, "fabs", y)
        d = builder.fmul(scale, code.load(code.at(norms, aligned * n), code.singles, aligned))
        slack = builder.fadd(builder.fmul(magnitude, code.all(code.singles, RELATIVE)), least)
        reach = builder.fadd(d, slack)
        low, high = builder.fsub(y, reach), builder.fadd(y, reach)
        ends = [_nearest(code, end) for end in (low, high)]
        beyond = builder.fcmp_unordered(">", builder.fadd(magnitude, reach), largest)
        infinite = builder.fcmp_unordered(">", intrinsic_of(builder, "fabs", ends[0]), largest)
        differ = builder.icmp_unsigned("!=", *(builder.bitcast(end, code.words) for end in ends))
        marked = builder.or_(builder.or_(differ, beyond), infinite)
        bits = builder.zext(builder.bitcast(marked, ir.IntType(code.width)), _INDEX)
        found = builder.or_(found, builder.shl(bits, constant(n * code.width)))
        # No negative zero.
        target = code.at(out, 2 * code.width * n)
        store_words(builder, x, target, builder.fadd(ends[0], code.all(code.singles, 0.0)))
    return found


def _nearest(code: ShortCode, numbers: Any) -> Any:
    """FP32 numbers rounded to BF16, to nearest, ties to even, of finite ones; subnormal numbers are no exception."""
    builder, words = code.builder, code.builder.bitcast(numbers, code.words)
    odd = builder.and_(builder.lshr(words, code.all(code.words, 16)), code.all(code.words, 1))
    half = builder.add(odd, code.all(code.words, 0x7FFF))
    kept = builder.and_(builder.add(words, half), code.all(code.words, -0x10000))
    return builder.bitcast(kept, code.singles)


@instructions(types.int64)
def lowest_bit(builder: Any, bits: Any) -> Any:
    """Number of the lowest bit that is set; bits is not 0."""
    return builder.cttz(bits, ir.Constant(ir.IntType(1), 1))


@instructions(types.float64)
def dot_short(builder: Any, lanes: Any, left: Any, right: Any, pairs: Any) -> Any:
    """The sum over 2 * short vector * `pairs` terms of the products of BF16 words from two addresses, in FP64, in any
    order; pairs > 0."""
    code = ShortCode(builder, TILES[len(lanes)])

    def step(k: Any, sums: list[Any]) -> list[Any]:
        on = builder.mul(k, constant(4 * code.width))
        both = [widen_pairs(builder, code.load(builder.add(address, on), code.words, 2)) for address in (left, right)]
        return [
            builder.fadd(total, builder.fpext(builder.fmul(a, b), code.doubles))
            for total, a, b in zip(sums, *both, strict=True)
        ]

    even, odd = loop_over(builder, pairs, [code.all(code.doubles, 0.0)] * 2, step)
    return code.sum_of(builder.fadd(even, odd))
