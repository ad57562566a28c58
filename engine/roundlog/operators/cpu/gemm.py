"""Matrix products of FP32 numbers on the CPU. What they compute and how well: see `roundlog.operators.contraction`.

Processors with AVX-512 multiply tile by tile (`roundlog.kernels.gemm_avx512`), others panel by panel with numpy's BLAS
(`roundlog.operators.cpu.gemm_blas`)."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic.interval import interval_factor
from roundlog.kernels.gemm_avx512 import Lines, OutputPlace, certify_part, sum_part
from roundlog.kernels.gemm_microkernel import COLUMNS, ROWS
from roundlog.kernels.marking import AmbiguousPart
from roundlog.kernels.scratch import empty
from roundlog.kernels.threads import one_by_one, threads_for
from roundlog.kernels.to_f64 import storage_of
from roundlog.operators.cpu import gemm_blas
from roundlog.operators.marking import Ambiguous
from roundlog.operators.terms import blocked_gamma, blocks

MOST_ROWS, MOST_COLUMNS = 512, 1024
"""Most rows and columns of a part, which one thread computes: packed rows have to stay in the third level of the
cache."""

F32 = npt.NDArray[np.float32]
Range = tuple[int, int]


@cache
def by_tiles() -> bool:
    """Whether this process may use AVX-512: ATEN_CPU_CAPABILITY decides for torch's kernels, and for these."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def certify_product(a: torch.Tensor, b: torch.Tensor, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """a: f32[B, M, K], b: f32[B, K, N], on the CPU, nothing empty. Returns f32[B, M, N] and what is marked in it."""
    if not by_tiles():
        return gemm_blas.certify_product(a, b, scale)
    (batches, rows, terms), columns = a.shape, b.shape[2]
    out = empty((batches, rows, columns), torch.float32)
    flat, factor, gamma, block = out.view(-1).numpy(), interval_factor(scale), blocked_gamma(terms), _block(terms)
    of_a, of_b = storage_of(a), storage_of(b)
    elements = out.numel() * terms // 16
    parts = _parts(batches, rows, columns, threads_for(batches * rows * columns, elements))
    found: list[AmbiguousPart] = []

    def part(number: int) -> None:
        batch, row, column = parts[number]
        found.append(
            certify_part(
                _lines(a, of_a, batch[0], row, 1),
                _lines(b, of_b, batch[0], column, 2),
                terms,
                block,
                gamma,
                factor,
                OutputPlace(flat, (batch[0] * rows + row[0]) * columns + column[0], columns, rows * columns),
                batch[1] - batch[0],
            )
        )

    one_by_one(part, len(parts), elements)
    return out, Ambiguous.collect(found)


def sum_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a: f32[M, K], b: f32[K, N], on the CPU, nothing empty, Returns the product in FP64, and the sums of
    squares of the rows of a and of the columns of b: f64[M, N], f64[M], f64[N], in memory of their own."""
    if not by_tiles():
        return gemm_blas.sum_product(a, b)
    (rows, terms), columns = a.shape, b.shape[1]
    of_a, of_b = storage_of(a), storage_of(b)
    left, right = torch.empty(rows, dtype=torch.float64), torch.empty(columns, dtype=torch.float64)
    y = empty((rows, columns), torch.float64)
    elements = rows * columns * terms // 16
    parts = _parts(1, rows, columns, threads_for(rows * columns, elements))

    def part(number: int) -> None:
        _, row, column = parts[number]
        sums, *squared_norms = sum_part(
            _lines(a[None], of_a, 0, row, 1), _lines(b[None], of_b, 0, column, 2), terms, _block(terms)
        )
        # Several parts find the same squared norms, to the bit.
        for whole, places, found in zip((left, right), (row, column), squared_norms, strict=True):
            whole[slice(*places)] = torch.from_numpy(found)
        y[slice(*row), slice(*column)] = torch.from_numpy(sums)

    one_by_one(part, len(parts), elements)
    return y, left, right


def _lines(x: torch.Tensor, memory: F32, batch: int, lines: Range, axis: int) -> Lines:
    """Some lines of x: [B, M, K] along M (axis 1) or [B, K, N] along N (axis 2), from one batch on."""
    first = int(x.storage_offset()) + batch * x.stride(0) + lines[0] * x.stride(axis)
    return Lines(memory, first, x.stride(axis), x.stride(3 - axis), lines[1] - lines[0], x.stride(0))


def _block(terms: int) -> int:
    """The longest of `blocks`: if all but the last are as long, there are as many."""
    return max(stop - start for start, stop in blocks(terms))


@lru_cache(maxsize=4096)
def _parts(batches: int, rows: int, columns: int, threads: int) -> list[tuple[Range, Range, Range]]:
    """Ranges of batches, rows and columns, as many for every thread if there are enough."""
    in_rows, in_columns = -(-rows // MOST_ROWS), -(-columns // MOST_COLUMNS)
    if batches >= threads or in_rows * in_columns * batches % threads == 0:
        shares = _cut(batches, 1, threads * 4 if in_rows == in_columns == 1 else batches)
    else:
        shares = _cut(batches, 1, batches)
        if rows >= columns:
            in_rows = -(-in_rows // threads) * threads
        else:
            in_columns = -(-in_columns // threads) * threads
    return list(product(shares, _cut(rows, ROWS, in_rows), _cut(columns, COLUMNS, in_columns)))


def _cut(size: int, unit: int, parts: int) -> list[Range]:
    """range(size) in nearly equal parts of whole units, none of them empty."""
    units = -(-size // unit)
    parts = min(units, parts)
    return [(a * unit, min(b * unit, size)) for a, b in pairwise(units * i // parts for i in range(parts + 1))]
