"""Products of BF16 numbers whose sums FP64 adds exactly: nothing is in doubt about such an element, not even a tie.

All terms of a line (a row of the first matrix, a column of the second) are multiples of its last place u, a power of
two; the sum of their magnitudes is a whole number s of them. Of a line with place v and sum t, all products with the
first one's terms are multiples of u v, and so are all partial sums of these, in any order, each at most s t of them.
Where s t is below 2^53, all of them are FP64 numbers: no addition rounds, with FMA or without.

Attention multiplies BF16 numbers as FP32 ones, so lines of these are looked at, too. Those that hold any other number
count as too long: of FP32 numbers' products hardly any is exact, and to find that out would take longer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import torch

from roundlog.arithmetic import as_float32
from roundlog.kernels.line_units import EXACT, Lines, exact_products
from roundlog.kernels.number_words import words_around
from roundlog.operators.bounds import Ambiguous, Bound, ProductBound
from roundlog.operators.reduction import sum_and_measures
from roundlog.operators.summation import Measures, last_exponents


def measure_operands(a: torch.Tensor, b: torch.Tensor) -> Measures:
    """`measure_lines` of the rows of one matrix, or of several, and of the columns of the other. If one of them has no
    line of BF16 numbers, no sum of their product is known to be exact, and neither is measured."""
    sides = [(x, dim, _are_short(x, dim)) for x, dim in ((a, a.ndim - 1), (b, b.ndim - 2))]
    if not all(x.dtype == torch.bfloat16 or bool(short.any()) for x, _, short in sides):
        none = [torch.zeros_like(short, dtype=torch.int64) for *_, short in sides]
        return tuple(one for zero in none for one in (zero.double() + inf, zero, zero + 1))
    return tuple(one for side in sides for one in _measured(*side))


def measure_lines(x: torch.Tensor, dim: int) -> Measures:
    """The measures of every line along an axis of f32 or bf16 numbers, without that axis, as a sum of its terms has
    them: magnitude, and last places. Those of a line's parts are joined as a sum's. The magnitude of a line of f32
    that are not all of them numbers of BF16 is infinite."""
    dim %= x.ndim
    return _measured(x, dim, _are_short(x, dim))


def _measured(x: torch.Tensor, dim: int, short: torch.Tensor) -> Measures:
    _, measures = sum_and_measures(as_float32(x), (dim,))
    magnitude, least, finest = (one.squeeze(dim) for one in measures)
    return magnitude.masked_fill_(~short, inf), least, finest


def _are_short(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Whether all numbers of a line are numbers of BF16, for the lines along an axis of a matrix, or of several."""
    if x.dtype == torch.bfloat16:
        return torch.ones((*x.shape[:dim], *x.shape[dim + 1 :]), dtype=torch.bool, device=x.device)
    return ~(x.view(torch.int32) & 0xFFFF).any(dim)


def units_of(measures: Measures) -> torch.Tensor:
    """f64: the sums of magnitudes in units of last places. Where one is below 2^53, it is exact, in any order of
    summation; where it is not, no order gives less."""
    # A power of two by its bits: pow may be off by a unit.
    return measures[0] * ((1023 - last_exponents(measures)) << 52).view(torch.float64)


def are_exact(units: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Whether FP64 adds the products of the terms of two lines exactly. Infinite and NaN ones never are."""
    return units * others < EXACT


@dataclass(frozen=True, slots=True)
class ExactOrProductBound(Bound):
    """A product's bound, and 0 where sums are exact."""

    product: ProductBound
    rows: torch.Tensor
    """f64[R], units of the rows."""
    columns: torch.Tensor
    """f64[Q, C], units of the columns."""

    def at(self, indices: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.product.at(indices, y).masked_fill_(self.are_exact_at(indices), 0.0)

    def are_exact_at(self, indices: torch.Tensor) -> torch.Tensor:
        """Whether the elements with these flat indices are exact."""
        groups, width = self.columns.shape
        row = indices // width
        return are_exact(self.rows[row], self.columns[row // max(1, len(self.rows) // max(1, groups)), indices % width])

    def coarse(self) -> ProductBound:
        """0 for rows that are exact with every column of their group."""
        if not self.columns.numel():
            return self.product
        exact = are_exact(self.rows.view(len(self.columns), -1), self.columns.amax(1, keepdim=True))
        return replace(self.product, rows=self.product.rows.masked_fill(exact.view(-1), 0.0))

    def refine(self, marked: Ambiguous) -> Ambiguous:
        exact = self.are_exact_at(marked.indices.to(self.rows.device)).cpu()
        return replace(marked, d=marked.d.masked_fill(exact, 0.0))


def refine_products(marked: Ambiguous, a: torch.Tensor, b: torch.Tensor) -> Ambiguous:
    """Marked elements of the product of f32 or bf16[.., M, K] and [.., K, N], on the CPU, with a bound of 0 where it is
    exact."""
    if not marked.indices.numel():
        return marked
    size = a.shape[-2], b.shape[-1]
    exact = exact_products(_lines(a, -2), _lines(b, -1), size, a.shape[-1], marked.indices.numpy())
    return replace(marked, d=marked.d.masked_fill(torch.from_numpy(exact), 0.0))


def _lines(x: torch.Tensor, axis: int) -> Lines:
    """The rows (axis -2) or the columns (axis -1) of a matrix, or of several."""
    words = words_around(x)
    batch = x.stride(0) if x.ndim == 3 else 0
    return words.view(f"u{words.itemsize}"), int(x.storage_offset()), (batch, x.stride(axis), x.stride(-3 - axis))
