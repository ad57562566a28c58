"""Matrix products of FP32 numbers on the CPU. What they compute and how well: see `roundlog.operators.contraction`.

Where the processor has vectors with FMA, products are computed tile by tile (`roundlog.kernels.gemm_tiles`), elsewhere
panel by panel with numpy's BLAS (`roundlog.operators.cpu.gemm_blas`)."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels import gemm_microkernel
from roundlog.kernels.gemm_microkernel import TILES
from roundlog.kernels.gemm_tiles import OutputPlace, Product, certify_part, sum_part
from roundlog.kernels.marking import AmbiguousPart
from roundlog.kernels.scratch import empty
from roundlog.kernels.threads import one_by_one, threads_for
from roundlog.kernels.tile_packing import Operand, lines_of
from roundlog.kernels.to_f64 import storage_of
from roundlog.operators.bounds import Ambiguous
from roundlog.operators.cpu import gemm_blas
from roundlog.operators.summation import blocked_gamma, longest_block

MOST_ROWS, MOST_COLUMNS = 512, 1024
"""Most rows of a part, which one thread computes, and columns of so many rows: packed rows have to stay in the third
level of the cache."""

F32 = npt.NDArray[np.float32]
Range = tuple[int, int]


def certify_product(a: torch.Tensor, b: torch.Tensor, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """a: f32[B, M, K], b: f32[B, K, N], on the CPU, nothing empty. Returns f32[B, M, N] and what is marked in it."""
    lanes = gemm_microkernel.tile_lanes()
    if not lanes:
        return gemm_blas.certify_product(a, b, scale)
    (batches, rows, terms), columns = a.shape, b.shape[2]
    out = empty((batches, rows, columns), torch.float32)
    flat, factor, gamma, block = (
        out.view(-1).numpy(),
        interval_factor(scale),
        blocked_gamma(terms),
        longest_block(terms),
    )
    of_a, of_b, elements = storage_of(a), storage_of(b), out.numel() * terms // 16
    parts = parts_of(lanes, batches, rows, columns, threads_for(batches * rows * columns, elements))
    found: list[AmbiguousPart] = []

    def part(number: int) -> None:
        (first, last), row, column = parts[number]
        some = Product(_lines(a, of_a, 1, first), _lines(b, of_b, 2, first), row, column, terms, block, gamma)
        place = OutputPlace(flat, (first * rows + row[0]) * columns, columns, np.arange(*column), rows * columns)
        found.append(certify_part(lanes, some, factor, place, last - first))

    one_by_one(part, len(parts), elements)
    return out, Ambiguous.collect(found)


def sum_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a: f32[M, K], b: f32[K, N], on the CPU, nothing empty, Returns the product in FP64, and the sums of
    squares of the rows of a and of the columns of b: f64[M, N], f64[M], f64[N], in memory of their own."""
    lanes = gemm_microkernel.tile_lanes()
    if not lanes:
        return gemm_blas.sum_product(a, b)
    (rows, terms), columns = a.shape, b.shape[1]
    of_a, of_b, block = _lines(a[None], storage_of(a), 1), _lines(b[None], storage_of(b), 2), longest_block(terms)
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


def _lines(x: torch.Tensor, memory: F32, axis: int, batch: int = 0) -> Operand:
    """Lines of x: [B, M, K] along M (axis 1) or [B, K, N] along N (axis 2), from one batch on."""
    first = int(x.storage_offset()) + batch * x.stride(0)
    return lines_of(memory, first, x.stride(axis), x.stride(3 - axis), x.stride(0))


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
