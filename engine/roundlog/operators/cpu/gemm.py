"""Matrix products of FP32 or BF16 numbers on the CPU. What they compute and how well: see
`roundlog.operators.contraction`.

Products are computed tile by tile (`roundlog.kernels.gemm_tiles`), those of few rows row by row
(`roundlog.kernels.line_products`), those of BF16 in FP32 first (`roundlog.kernels.short_products`)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
import torch

from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels import gemm_microkernel
from roundlog.kernels.gemm_microkernel import TILES
from roundlog.kernels.gemm_tiles import OutputPlace, Product, certify_part, sum_part
from roundlog.kernels.line_products import certify_lines, takes
from roundlog.kernels.marking import AmbiguousPart
from roundlog.kernels.number_words import Words, words_around, words_of
from roundlog.kernels.pair_microkernel import adds_pairs
from roundlog.kernels.scratch import empty
from roundlog.kernels.short_packing import ShortLines, square_lines
from roundlog.kernels.short_products import (
    UNIT,
    ShortBounds,
    ShortProduct,
    certify_short,
    has_short_bounds,
    roundings_of,
    worth_it,
)
from roundlog.kernels.threads import one_by_one, threads_for
from roundlog.kernels.tile_packing import Operand, lines_of
from roundlog.operators.bounds import Ambiguous
from roundlog.operators.summation import blocked_gamma, longest_block

MOST_ROWS, MOST_COLUMNS = 512, 1024
"""Most rows of a part, which one thread computes, and columns of so many rows: packed rows have to stay in the third
level of the cache."""

Range = tuple[int, int]


def certify_product(a: torch.Tensor, b: torch.Tensor, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """a: f32[B, M, K], b: f32[B, K, N], on the CPU, nothing empty. Returns f32[B, M, N] and what is marked in it. Or a,
    b and the product are all of them bf16. Elements that are exact may be marked, too."""
    lanes = gemm_microkernel.tile_lanes()
    (batches, rows, terms), columns = a.shape, b.shape[2]
    out = empty((batches, rows, columns), a.dtype)
    flat, factor, block = words_of(out), interval_factor(scale), longest_block(terms)
    if takes(a, b):
        return out, Ambiguous.collect(certify_lines(lanes, a, b, block, blocked_gamma(terms), factor, flat))
    of_a, of_b, elements = words_around(a), words_around(b), out.numel() * terms // 16
    in_singles = a.dtype == torch.bfloat16 and has_short_bounds(terms, factor)
    short = _Short(lanes, a, b, factor) if in_singles else None
    parts = parts_of(lanes, batches, rows, columns, threads_for(batches * rows * columns, elements))
    found: list[AmbiguousPart] = []

    def part(number: int) -> None:
        (first, last), row, column = parts[number]
        some = Product(_lines(a, of_a, 1, first), _lines(b, of_b, 2, first), row, column, terms, block)
        if short is None:
            some = replace(some, gamma=blocked_gamma(terms))
        else:
            fast = short.certify(parts[number], flat)
            if fast is not None:
                found.append(fast)
                return
            some = short.bounded(some, (first, last))
        place = OutputPlace(flat, (first * rows + row[0]) * columns, columns, np.arange(*column), rows * columns)
        found.append(certify_part(lanes, some, factor, place, last - first))

    one_by_one(part, len(parts), elements)
    return out, Ambiguous.collect(found)


class _Short:
    """BF16 operands: the bounds of their products, and whether they are multiplied in FP32 first."""

    def __init__(self, lanes: int, a: torch.Tensor, b: torch.Tensor, factor: float) -> None:
        (_, self._rows, self._terms), self._columns = a.shape, b.shape[2]
        self._lanes, self._factor, self._at_once = lanes, factor, adds_pairs(lanes)
        self._left, self._of_rows = self._side(a, 1, blocked_gamma(self._terms), UNIT)
        self._right, self._of_columns = self._side(b, 2, 1.0, 1.0)

    def _side(self, x: torch.Tensor, axis: int, gamma: float, unit: float) -> tuple[ShortLines, ShortBounds]:
        batches, lines = x.shape[0], x.shape[axis]
        found = ShortLines.of(self._lanes, words_around(x), _how(x, axis), batches, lines, self._terms)
        weights = roundings_of(self._at_once)
        plain, weighted = square_lines(found, batches, lines, self._terms, weights).reshape(2, batches, lines)
        return found, ShortBounds.of(plain, weighted, gamma, unit, self._at_once)

    def certify(self, part: tuple[Range, Range, Range], out: Words) -> AmbiguousPart | None:
        """A part by FP32 sums, or None if FP64 tiles have to do it."""
        if not (fast_short_products() and worth_it(self._terms, self._at_once)):
            return None
        block = longest_block(self._terms)
        product = ShortProduct(self._left, self._right, *part, self._terms, block, self._of_rows, self._of_columns)
        return certify_short(self._lanes, self._at_once, product, self._factor, out, self._rows, self._columns)

    def bounded(self, part: Product, batches: Range) -> Product:
        """A part with its bounds."""
        of_rows = self._of_rows.double[slice(*batches), slice(*part.rows)]
        of_columns = self._of_columns.double[slice(*batches), slice(*part.columns)]
        return replace(part, rows_of_bound=of_rows.reshape(-1), columns_of_bound=of_columns.reshape(-1))


def fast_short_products() -> bool:
    """Whether BF16 matrices are multiplied in FP32 first: tests and measurements have it otherwise."""
    return True


def sum_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a: f32[M, K], b: f32[K, N], or both bf16; on the CPU, nothing empty. Returns the product in
    FP64, and the sums of squares of the rows of a and of the columns of b: f64[M, N], f64[M], f64[N], in memory of
    their own."""
    lanes = gemm_microkernel.tile_lanes()
    (rows, terms), columns = a.shape, b.shape[1]
    of_a, of_b, block = _lines(a[None], words_around(a), 1), _lines(b[None], words_around(b), 2), longest_block(terms)
    left, right = torch.empty(rows, dtype=torch.float64), torch.empty(columns, dtype=torch.float64)
    y = empty((rows, columns), torch.float64)
    elements = rows * columns * terms // 16
    parts = parts_of(lanes, 1, rows, columns, threads_for(rows * columns, elements))

    def part(number: int) -> None:
        _, row, column = parts[number]
        sums, *squared_norms = sum_part(lanes, Product(of_a, of_b, row, column, terms, block))
        # Several parts find the same squared norms, to the bit.
        for whole, places, found in zip((left, right), (row, column), squared_norms, strict=True):
            whole[slice(*places)] = torch.from_numpy(found)
        y[slice(*row), slice(*column)] = torch.from_numpy(sums)

    one_by_one(part, len(parts), elements)
    return y, left, right


def _how(x: torch.Tensor, axis: int, batch: int = 0) -> tuple[int, int, int, int]:
    """Where the lines of x lie: [B, M, K] along M (axis 1) or [B, K, N] along N (axis 2), from one batch on."""
    return int(x.storage_offset()) + batch * x.stride(0), x.stride(axis), x.stride(3 - axis), x.stride(0)


def _lines(x: torch.Tensor, memory: Words, axis: int, batch: int = 0) -> Operand:
    return lines_of(memory, *_how(x, axis, batch))


@lru_cache(maxsize=4096)
def parts_of(lanes: int, batches: int, rows: int, columns: int, threads: int) -> list[tuple[Range, Range, Range]]:
    """Parts of products by tiles: ranges of batches, rows and columns, as many for every thread if there are enough."""
    tile, in_rows = TILES[lanes], -(-rows // MOST_ROWS)
    in_columns = -(-columns * min(rows, MOST_ROWS) // (MOST_ROWS * MOST_COLUMNS))
    if batches >= threads or in_rows * in_columns * batches % threads == 0:
        several = 4 * threads if threads > 1 else 1
        shares = _cut(batches, 1, several if in_rows == in_columns == 1 else batches)
    else:
        shares = _cut(batches, 1, batches)
        if rows >= columns:
            in_rows = -(-in_rows // threads) * threads
        else:
            in_columns = -(-in_columns // threads) * threads
    return list(product(shares, _cut(rows, tile.rows, in_rows), _cut(columns, tile.columns, in_columns)))


def _cut(size: int, unit: int, parts: int) -> list[Range]:
    """range(size) in nearly equal parts of whole units, none of them empty."""
    units = -(-size // unit)
    parts = min(units, parts)
    return [(a * unit, min(b * unit, size)) for a, b in pairwise(units * i // parts for i in range(parts + 1))]
