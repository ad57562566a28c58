"""Matrix products of FP32 numbers by numpy's BLAS, panel by panel: widened, multiplied, rounded and marked while they
are in the cache, every panel by one thread. `roundlog.operators.cpu.gemm` says when."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels.marking import AmbiguousPart, mark_product
from roundlog.kernels.scratch import empty, scratch
from roundlog.kernels.threads import one_by_one, threads_for
from roundlog.kernels.to_f64 import dense, widen
from roundlog.operators.bounds import Ambiguous
from roundlog.operators.summation import blocked_gamma, blocks

F64 = npt.NDArray[np.float64]

PANEL = 1 << 19
"""FP64 elements of one panel of the output, and of the operand that it is made of: 4 MiB each."""

SHARED = 1 << 23
"""FP64 elements up to which an operand that all panels share is widened once, and not again for every panel: 64 MiB."""


def certify_product(a: torch.Tensor, b: torch.Tensor, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """a: f32[B, M, K], b: f32[B, K, N], on the CPU, nothing empty. Returns f32[B, M, N] and what is marked in it."""
    a, b = dense(a), dense(b)
    (batches, rows, terms), columns = a.shape, b.shape[2]
    threads = threads_for(batches * rows * columns, batches * rows * columns * terms // 16)
    if batches > 1:
        return _by_batches(a, b, scale, threads)
    if rows * columns <= 2 * PANEL and len(blocks(terms)) >= 2 * threads:
        return _by_terms(a, b, scale, threads)
    return _by_panels(a, b, scale, threads)


def _cut(size: int, parts: int, threads: int) -> list[tuple[int, int]]:
    """range(size) in nearly equal parts, as many for every thread."""
    parts = min(size, -(-parts // threads) * threads)
    return list(pairwise(size * i // parts for i in range(parts + 1)))


def _bound(energy: F64, gamma: float) -> F64:
    """Norms of rows, times gamma. An infinite operand makes all that it meets infinite or NaN, whatever comes out here
    (with a single term gamma is zero)."""
    with np.errstate(invalid="ignore"):
        norms: F64 = np.sqrt(energy) * gamma
    return norms


def _multiply(wide_a: torch.Tensor, wide_b: torch.Tensor, first: bool) -> F64:
    """[B, P, K] @ [B, K, Q] in the scratch buffer y, or added to what is there."""
    shape = wide_a.shape[0], wide_a.shape[1], wide_b.shape[2]
    y = scratch("y", *shape).numpy()
    # Numbers that are not finite are found where outputs are marked.
    with np.errstate(all="ignore"):
        if first:
            np.matmul(wide_a.numpy(), wide_b.numpy(), out=y)
        else:
            product = scratch("t", *shape).numpy()
            np.matmul(wide_a.numpy(), wide_b.numpy(), out=product)
            np.add(y, product, out=y)
    return y


def _by_batches(a: torch.Tensor, b: torch.Tensor, scale: float, threads: int) -> tuple[torch.Tensor, Ambiguous]:
    (batches, rows, terms), columns = a.shape, b.shape[2]
    out = empty((batches, rows, columns), torch.float32)
    flat, factor, gamma = out.view(-1).numpy(), interval_factor(scale), blocked_gamma(terms)
    size = max(1, PANEL // max(rows * columns, (rows + columns) * terms))
    panels = _cut(batches, -(-batches // size), threads)
    found: list[AmbiguousPart] = []

    def panel(number: int) -> None:
        first, last = panels[number]
        row_energy, column_energy = np.zeros((last - first) * rows), np.zeros((last - first) * columns)
        for start, stop in blocks(terms):
            wide_a = widen("a", a[first:last, :, start:stop], row_energy, -1)
            wide_b = widen("b", b[first:last, start:stop], column_energy, -2)
            y = _multiply(wide_a, wide_b, start == 0)
        found.append(
            mark_product(
                y.reshape(-1, columns),
                _bound(row_energy, gamma),
                np.sqrt(column_energy).reshape(-1, columns),
                factor,
                flat,
                first=first * rows * columns,
            )
        )

    one_by_one(panel, len(panels), out.numel() * terms // 16)
    return out, Ambiguous.collect(found)


def _by_panels(a: torch.Tensor, b: torch.Tensor, scale: float, threads: int) -> tuple[torch.Tensor, Ambiguous]:
    """Panels of the longer side of the output."""
    (_, rows, terms), columns = a.shape, b.shape[2]
    out = empty((1, rows, columns), torch.float32)
    flat, factor, gamma = out.view(-1).numpy(), interval_factor(scale), blocked_gamma(terms)
    cut, by_rows = blocks(terms), rows >= columns
    longer, shorter = max(rows, columns), min(rows, columns)
    # Never narrower than what a matrix kernel needs to run at full speed, if the threads do not need it.
    size = max(256, PANEL // max(shorter, min(terms, cut[0][1])))
    panels = _cut(longer, -(-longer // size), threads)
    found: list[AmbiguousPart] = []
    kept, kept_energy = None, np.zeros(shorter)
    if shorter * terms <= SHARED:
        kept = widen("shared", b, kept_energy, -2) if by_rows else widen("shared", a, kept_energy, -1)

    def panel(number: int) -> None:
        first, last = panels[number]
        own, other = np.zeros(last - first), kept_energy if kept is not None else np.zeros(shorter)
        for start, stop in cut:
            if by_rows:
                wide_a = widen("a", a[:, first:last, start:stop], own, -1)
                wide_b = kept[:, start:stop] if kept is not None else widen("b", b[:, start:stop], other, -2)
            else:
                wide_a = kept[:, :, start:stop] if kept is not None else widen("a", a[:, :, start:stop], other, -1)
                wide_b = widen("b", b[:, start:stop, first:last], own, -2)
            y = _multiply(wide_a, wide_b, start == 0)
        row_energy, column_energy = (own, other) if by_rows else (other, own)
        found.append(
            mark_product(
                y[0],
                _bound(row_energy, gamma),
                np.sqrt(column_energy)[None],
                factor,
                flat,
                first=first * columns if by_rows else first,
                pitch=columns,
            )
        )

    one_by_one(panel, len(panels), out.numel() * terms // 16)
    return out, Ambiguous.collect(found)


def _by_terms(a: torch.Tensor, b: torch.Tensor, scale: float, threads: int) -> tuple[torch.Tensor, Ambiguous]:
    """Long sums for a small output."""
    (_, rows, terms), columns = a.shape, b.shape[2]
    out = empty((1, rows, columns), torch.float32)
    total, row_energy, column_energy = _sum_by_terms(a, b, threads)
    near = mark_product(
        total,
        _bound(row_energy, blocked_gamma(terms)),
        np.sqrt(column_energy)[None],
        interval_factor(scale),
        out.view(-1).numpy(),
    )
    return out, Ambiguous.collect([near])


def sum_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a: f32[M, K], b: f32[K, N], on the CPU, nothing empty, M N small. Returns the product in FP64, and the sums of
    squares of the rows of a and of the columns of b: f64[M, N], f64[M], f64[N], in memory of their own."""
    rows, terms = a.shape
    columns = b.shape[1]
    threads = threads_for(rows * columns, rows * columns * terms // 16)
    y, row_energy, column_energy = _sum_by_terms(dense(a[None]), dense(b[None]), threads)
    # The sum of a single share lies in scratch memory.
    return torch.from_numpy(y.copy()), torch.from_numpy(row_energy), torch.from_numpy(column_energy)


def _sum_by_terms(a: torch.Tensor, b: torch.Tensor, threads: int) -> tuple[F64, F64, F64]:
    """The product of a: [1, M, K] and b: [1, K, N], and the squared norms of both. Every thread adds up some of the
    blocks, so each operand is widened once."""
    (_, rows, terms), columns = a.shape, b.shape[2]
    cut = blocks(terms)
    shares = _cut(len(cut), threads, threads)
    sums: list[F64] = [np.empty(0)] * len(shares)
    row_energy, column_energy = np.zeros((len(shares), rows)), np.zeros((len(shares), columns))

    def share(number: int) -> None:
        first, last = shares[number]
        for position in range(first, last):
            start, stop = cut[position]
            wide_a = widen("a", a[:, :, start:stop], row_energy[number], -1)
            wide_b = widen("b", b[:, start:stop], column_energy[number], -2)
            y = _multiply(wide_a, wide_b, position == first)
        # A thread that takes two shares needs its scratch memory for the second one.
        sums[number] = y[0].copy() if len(shares) > 1 else y[0]

    one_by_one(share, len(shares), rows * columns * terms // 16)
    total = sums[0]
    for more in sums[1:]:
        np.add(total, more, out=total)
    return total, row_energy.sum(axis=0), column_energy.sum(axis=0)
