"""Groups of products as tensor cores add them, for tiles of a matrix product, written as LLVM's instructions.

A group adds up to `terms` products to an FP32 number c: all are aligned to their largest exponent e, truncated toward
zero to F fractional bits, added exactly, and the sum is rounded toward zero to FP32. Operands come packed
(`roundlog.kernels.tensor_core_packing`): as FP32 numbers, scaled so that the product of the two largest of a row and a
column has the exponent field TOP, and as codes, unsigned bytes, whose saturating difference is a product's exponent
field, and 0 for a product with a zero. Why each step is exact:

1. A product of two numbers of at most 11 bits has at most 22, and so FP32 holds it; fields are in [LEAST, TOP], far
   from FP32's ends, where the line's spreads allow it (`roundlog.kernels.tensor_core_products` tests that).
2. e is the largest of the codes' differences and of c's exponent field: c is zero, whose field is 0, or normal, since
   it is a multiple of a group's 2^(e - F). Its field is at least LEAST - 25, so that s = 2^(F - e) is an FP32 number.
3. x * s is exact, or below 2^-126: a conversion to int32 truncates it toward zero, to what is kept of x in units of
   2^(e - F). |x| is below 2^(e + 2), so what is kept is below 2^(F + 2), and what is kept of c below 2^(F + 1).
4. int32 adds exactly modulo 2^32. For 8 products and F = 25 the sum is below 2^30 + 2^26. For 16, each at most (2 -
   2^-10)^2 2^25, they alone stay below 2^31, and c adds less than 2^26. So a sum may wrap, once, and is then, as int32
   has it, at least LIMIT in magnitude: the largest magnitude of an element's sums tells. What follows is wrong, but
   within the same limits.
5. A sum below 2^31 rounds toward zero to 24 bits by one conversion with that mode, or with any mode once the bits that
   will be lost are cleared where they decide: for a magnitude x with its first bit in place 24 + j, j >= 0, x & ~(x >>
   24) has bit j cleared, which is half of what x keeps last, so that rounding to nearest goes down.
6. It times 2^(e - F) is exact: the result is zero or at least 2^(e - F).

The least exponent field of an element's groups is kept, too: whatever rule there is about small numbers follows from
that. A group of zeros alone, c included, has none.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from roundlog.kernels.gemm_microkernel import TILES, Tile, call_of_tiles, loop_over
from roundlog.kernels.number_words import VectorCode, call_by_name, constant, everywhere, instructions, intrinsic_of
from roundlog.kernels.short_microkernel import width_of

TOP = 240
"""Exponent field of the product of a row's and a column's largest numbers. Sums have 13 more at most."""
LEAST = 51
"""Least exponent field of a product that is not zero."""
PANEL = 4
"""FP32 vectors in a row of a panel of columns: as many codes are one vector of bytes."""
LIMIT = (1 << 31) - (1 << 26)
"""Magnitude of a sum of 16 products from which it may have wrapped."""
_WRAPS = 16
"""Products of a group whose sum may wrap."""

_BYTE, _WORD, _INDEX, _SINGLE = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FRACTION = 23
_FIELD = 0xFF << _FRACTION
_TOWARD_ZERO = 3 | 8
"""Rounding toward zero, without exceptions, in an instruction of AVX-512."""


ROWS = 4
"""Rows of a tile: a vector's scales and sums are in registers for each."""


class GroupCode(VectorCode):
    """Instructions for vectors of a tile."""

    def __init__(self, builder: Any, lanes: int) -> None:
        super().__init__(builder)
        self.lanes, self.width = lanes, width_of(lanes)
        self.columns = PANEL * self.width
        self.singles = ir.VectorType(_SINGLE, self.width)
        self.words = ir.VectorType(_WORD, self.width)
        self.bytes = ir.VectorType(_BYTE, self.width)
        self.codes = ir.VectorType(_BYTE, self.columns)

    def magnitude(self, words: Any) -> Any:
        return intrinsic_of(self.builder, "abs", words, ir.Constant(ir.IntType(1), 0))

    def toward_zero(self, words: Any) -> Any:
        """FP32 numbers from int32, rounded toward zero; of -2^31 anything."""
        builder = self.builder
        if self.lanes == 8:
            mode = ir.Constant(_WORD, _TOWARD_ZERO)
            name = "llvm.x86.avx512.sitofp.round.v16f32.v16i32"
            return call_by_name(builder, name, self.singles, words, mode)
        magnitude = self.magnitude(words)
        late = builder.xor(builder.lshr(magnitude, self.all(self.words, 24)), self.all(self.words, -1))
        rounded = builder.bitcast(builder.sitofp(builder.and_(magnitude, late), self.singles), self.words)
        sign = builder.and_(words, self.all(self.words, -1 << 31))
        return builder.bitcast(builder.or_(rounded, sign), self.singles)


@instructions(types.void)
def sum_groups(
    builder: Any,
    lanes: Any,
    group: Any,
    left: Any,
    left_codes: Any,
    right: Any,
    right_codes: Any,
    tile: Any,
    scales: Any,
    magnitudes: Any,
    fields: Any,
    pitch: Any,
    groups: Any,
    fraction_bits: Any,
) -> None:
    """tile[r, c] = what `groups` > 0 groups of len(group) products make of it, for a tile's rows and a panel's columns.

    All but the last three are addresses. left: float32[k, vector], from a row on, and left_codes: uint8 likewise;
    right: float32[k, columns], and right_codes; tile: float32[rows, columns], rows `pitch` bytes apart, as those of
    scales, int32, the largest scale's bits so far, or less than 0, and of magnitudes, uint32, of 16 products only;
    fields: room for uint8[groups, rows, columns]. Vectors are aligned."""
    terms, operands = len(group), (left, left_codes, right, right_codes)
    results = tile, scales, magnitudes, fields, pitch, groups, fraction_bits
    call_of_tiles(
        builder,
        f"sum_groups_of_{terms}",
        TILES[len(lanes)],
        lambda made, tile: _write(made, tile, terms),
        *operands,
        *results,
    )


def _write(function: Any, tile: Tile, terms: int) -> None:
    code = GroupCode(ir.IRBuilder(function.append_basic_block()), tile.lanes)
    left, left_codes, right, right_codes, sums, scales, magnitudes, fields, pitch, groups, bits = function.args
    builder, width, columns = code.builder, code.width, code.columns
    aligned = 4 * width
    exponent = builder.shl(builder.trunc(bits, _WORD), ir.Constant(_WORD, _FRACTION))
    highest = everywhere(builder, builder.add(exponent, ir.Constant(_WORD, 254 << _FRACTION)), width)

    def largest(g: Any, _: list[Any]) -> list[Any]:
        of_left, of_right = code.on(left_codes, g, terms * width), code.on(right_codes, g, terms * columns)
        found = [code.all(code.codes, 0)] * ROWS
        for k in range(terms):
            column = code.load(code.at(of_right, k * columns), code.codes, columns)
            for row in range(ROWS):
                one = code.load(code.at(of_left, k * width + row), _BYTE, 1)
                field = intrinsic_of(builder, "usub.sat", everywhere(builder, one, columns), column)
                found[row] = intrinsic_of(builder, "umax", found[row], field)
        for row, field in enumerate(found):
            code.store(code.at(code.on(fields, g, ROWS * columns), row * columns), field, columns)
        return []

    def scale(field: Any, place: Any) -> tuple[Any, Any]:
        """2^(F - e), and what is kept of c."""
        wide = builder.shl(builder.zext(field, code.words), code.all(code.words, _FRACTION))
        c = code.load(builder.add(sums, place), code.singles, aligned)
        of_c = builder.and_(builder.bitcast(c, code.words), code.all(code.words, _FIELD))
        factor = builder.sub(highest, intrinsic_of(builder, "smax", wide, of_c))
        before = builder.add(scales, place)
        code.store(before, intrinsic_of(builder, "smax", factor, code.load(before, code.words, aligned)), aligned)
        factor = builder.bitcast(factor, code.singles)
        return factor, builder.fptosi(builder.fmul(c, factor), code.words)

    def finish(total: Any, factor: Any, place: Any) -> None:
        """Store the next c."""
        if terms >= _WRAPS:
            seen = builder.add(magnitudes, place)
            larger = intrinsic_of(builder, "umax", code.magnitude(total), code.load(seen, code.words, aligned))
            code.store(seen, larger, aligned)
        back = builder.sub(code.all(code.words, 254 << _FRACTION), builder.bitcast(factor, code.words))
        c = builder.fmul(code.toward_zero(total), builder.bitcast(back, code.singles))
        code.store(builder.add(sums, place), c, aligned)

    def add(step: Any, _: list[Any]) -> list[Any]:
        g, vector = builder.udiv(step, constant(PANEL)), builder.urem(step, constant(PANEL))
        of_left = code.on(left, g, terms * aligned)
        of_right = code.on(code.on(right, g, terms * PANEL * aligned), vector, aligned)
        of_field = code.on(code.on(fields, g, ROWS * columns), vector, width)
        of_vector = builder.mul(vector, constant(aligned))
        places = [builder.add(of_vector, builder.mul(pitch, constant(row))) for row in range(ROWS)]
        found = [code.load(code.at(of_field, row * columns), code.bytes, width) for row in range(ROWS)]
        factors, totals = map(list, zip(*map(scale, found, places), strict=True))
        for k in range(terms):
            column = code.load(code.at(of_right, k * PANEL * aligned), code.singles, aligned)
            for row in range(ROWS):
                repeated = everywhere(builder, code.load(code.at(of_left, k * aligned + row * 4), _SINGLE, 4), width)
                product = builder.fmul(builder.fmul(repeated, column), factors[row])
                totals[row] = builder.add(totals[row], builder.fptosi(product, code.words))
        for total, factor, place in zip(totals, factors, places, strict=True):
            finish(total, factor, place)
        return []

    # The loops do not wait for each other: a group's largest exponents do not depend on c.
    loop_over(builder, groups, [], largest)
    loop_over(builder, builder.mul(groups, constant(PANEL)), [], add)
    builder.ret_void()


@instructions(types.int64, factor=types.float64)
def finish_groups(
    builder: Any,
    lanes: Any,
    sums: Any,
    scales: Any,
    magnitudes: Any,
    columns: Any,
    factors: Any,
    row: Any,
    factor: Any,
    out: Any,
) -> Any:
    """A row of a tile, float32[columns], times `factor` and factors[c], float64, to `out`; and a bit for every element
    that may be wrong, the lowest for the first.

    columns: int32[3, columns], the address of what every column has as the row: the largest exponent, the exponents'
    spread, and the largest field that a scale may have. row: int32[4], the address of what a column's exponent may be
    at most, its spread, the field by the row, and the field by both, less the column's exponent."""
    code = GroupCode(builder, len(lanes))
    width = code.width
    doubles = ir.VectorType(ir.DoubleType(), width)
    factor, found = everywhere(builder, factor, width), constant(0)
    ends = [everywhere(builder, code.load(code.at(row, 4 * n), _WORD, 4), width) for n in range(4)]
    highest, widest, largest, together = ends
    for n in range(PANEL):
        on = 4 * width * n
        exponent, spread, limit = (
            code.load(code.at(columns, 4 * code.columns * place + on), code.words, 4) for place in range(3)
        )
        field = builder.ashr(code.load(code.at(scales, on), code.words, 4), code.all(code.words, _FRACTION))
        # An element of zeros alone has a field below 0, however small its row's and column's exponents are.
        both = intrinsic_of(builder, "smax", builder.add(together, exponent), code.all(code.words, -1))
        least = intrinsic_of(builder, "smin", limit, intrinsic_of(builder, "smin", largest, both))
        wrong = builder.icmp_signed(">", field, least)
        wrong = builder.or_(wrong, builder.icmp_signed(">", exponent, highest))
        wrong = builder.or_(wrong, builder.icmp_signed(">", spread, widest))
        seen = code.load(code.at(magnitudes, on), code.words, 4)
        wrong = builder.or_(wrong, builder.icmp_unsigned(">=", seen, code.all(code.words, LIMIT)))
        bits = builder.zext(builder.bitcast(wrong, ir.IntType(width)), _INDEX)
        found = builder.or_(found, builder.shl(bits, constant(n * width)))
        wide = builder.fpext(code.load(code.at(sums, on), code.singles, 4), doubles)
        wide = builder.fmul(builder.fmul(wide, factor), code.load(code.at(factors, 2 * on), doubles, 8))
        # No negative zero.
        single = builder.fadd(builder.fptrunc(wide, code.singles), code.all(code.singles, 0.0))
        code.store(code.at(out, on), single, 4)
    return found
