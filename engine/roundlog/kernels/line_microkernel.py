"""Sums of products of a few rows with one line, or with a few rows of a matrix, in vector registers: instructions of
LLVM for `roundlog.kernels.line_products`, which says what they are for. Addresses are integers, of bytes; `lanes` and
`group` are tuples with an entry for every FP64 number of a vector, and for every row of the left operand."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from roundlog.kernels.gemm_microkernel import TILES, loop_over
from roundlog.kernels.number_words import VectorCode, constant, everywhere, instructions, load_numbers, size_of

_DOUBLE = ir.DoubleType()

TOGETHER = 4
"""Rows of the left operand that are multiplied at once, if there are more than two: each number of the right one is
widened once for all of them."""
TERMS = 4
"""Rows of a matrix that are read at once, where its columns lie side by side: so many sums of a column need to be read
and written once."""


def vectors_at_once(rows: int) -> int:
    """Vectors of a line that are multiplied at once: sums of their own, because one would wait for itself."""
    return 4 if rows == 1 else 2


@instructions(types.int64)
def terms_at_once(builder: Any, lanes: Any, group: Any) -> Any:
    """Terms of a step of `add_line`."""
    return constant(len(lanes) * vectors_at_once(len(group)))


@instructions(types.void)
def add_line(
    builder: Any, lanes: Any, group: Any, x: Any, left: Any, pitch: Any, line: Any, steps: Any, sums: Any, apart: Any
) -> None:
    """Adds products with a line of numbers, of an array such as x (float32, or uint16 for BF16), that lie side by side:
    sums[r] += the sum over terms of left[r, k] * line[k], for every row of the group, and behind the last row that of
    the squares of line[k]. left: float64, rows `pitch` bytes apart, their terms side by side. steps: of `terms_at_once`
    terms, > 0. sums: float64, `apart` bytes apart."""
    rows, at_once = len(group), vectors_at_once(len(group))
    code, kind = VectorCode(builder), TILES[len(lanes)].kind

    def term(k: Any, totals: list[Any]) -> list[Any]:
        following, of = list(totals), builder.mul(k, constant(at_once))
        for n in range(at_once):
            vector = builder.mul(builder.add(of, constant(n)), constant(len(lanes)))
            w = builder.fpext(load_numbers(builder, x, code.on(line, vector, size_of(x)), len(lanes)), kind)
            for r in range(rows):
                a = code.load(builder.add(code.on(left, vector, 8), builder.mul(pitch, constant(r))), kind, 8)
                following[r * at_once + n] = code.multiply_add(a, w, totals[r * at_once + n])
            following[rows * at_once + n] = code.multiply_add(w, w, totals[rows * at_once + n])
        return following

    totals = loop_over(builder, steps, [code.all(kind, 0.0)] * (rows + 1) * at_once, term)
    for r in range(rows + 1):
        of_row = totals[r * at_once : (r + 1) * at_once]
        while len(of_row) > 1:
            of_row = [builder.fadd(a, b) for a, b in zip(of_row[::2], of_row[1::2], strict=True)]
        place = builder.add(sums, builder.mul(apart, constant(r)))
        code.store(place, builder.fadd(code.load(place, _DOUBLE, 8), code.sum_of(of_row[0])), 8)


def _rows_of_matrix(at_once: int) -> Any:
    @instructions(types.void)
    def add(
        builder: Any,
        lanes: Any,
        group: Any,
        x: Any,
        left: Any,
        pitch: Any,
        right: Any,
        of_term: Any,
        vectors: Any,
        sums: Any,
        apart: Any,
    ) -> None:
        rows = len(group)
        code, kind = VectorCode(builder), TILES[len(lanes)].kind
        lines = [builder.add(left, builder.mul(pitch, constant(r))) for r in range(rows)]
        factors = [
            [everywhere(builder, code.load(code.at(line, 8 * k), _DOUBLE, 8), len(lanes)) for k in range(at_once)]
            for line in lines
        ]

        def columns(n: Any, _: list[Any]) -> list[Any]:
            vector = builder.mul(n, constant(len(lanes)))
            places = [builder.add(code.on(sums, vector, 8), builder.mul(apart, constant(r))) for r in range(rows + 1)]
            totals, source = [code.load(place, kind, 8) for place in places], code.on(right, vector, size_of(x))
            for k in range(at_once):
                address = builder.add(source, builder.mul(of_term, constant(k)))
                w = builder.fpext(load_numbers(builder, x, address, len(lanes)), kind)
                for r in range(rows):
                    totals[r] = code.multiply_add(factors[r][k], w, totals[r])
                totals[rows] = code.multiply_add(w, w, totals[rows])
            for place, total in zip(places, totals, strict=True):
                code.store(place, total, 8)
            return []

        loop_over(builder, vectors, [], columns)

    return add


add_row, add_rows = _rows_of_matrix(1), _rows_of_matrix(TERMS)
"""Add products with one row of a matrix, or with `TERMS` of them, which lie `of_term` bytes apart, one after another:
sums[r, c] += left[r, k] * right[k, c] for every row r of the group and every column of `vectors` > 0 vectors, and after
the last row the squares of right[k, c]. right: numbers of an array such as x, columns side by side. left: float64, rows
`pitch` bytes apart, terms side by side. sums: float64, rows `apart` bytes apart."""
