"""Products of BF16 matrices whose sums FP64 adds exactly: nothing is in doubt about such an element, not even a tie.

All terms of a line (a row of the first matrix, a column of the second) are multiples of its last place u, a power of
two; the sum of their magnitudes is a whole number s of them. Of a line with place v and sum t, all products with the
first one's terms are multiples of u v, and so are all partial sums of these, in any order, each at most s t of them.
Where s t is below 2^53, all of them are FP64 numbers: no addition rounds, with FMA or without."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from roundlog.arithmetic import as_float32
from roundlog.number_format import BFLOAT16
from roundlog.operators.bounds import Ambiguous, Bound, ProductBound, without_exact
from roundlog.operators.reduction import sum_and_measures
from roundlog.operators.summation import Measures, last_exponents

_EXACT = 2.0**53


def measure_lines(x: torch.Tensor, dim: int) -> Measures:
    """The measures of every line along an axis of f32 or bf16 numbers, without that axis, as a sum of its terms has
    them: magnitude, and last places. Those of a line's parts are joined as a sum's."""
    _, measures = sum_and_measures(as_float32(x), (dim % x.ndim,))
    return tuple(one.squeeze(dim) for one in measures)


def units_of(measures: Measures) -> torch.Tensor:
    """f64: the sums of magnitudes in units of last places. Where one is below 2^53, it is exact, in any order of
    summation; where it is not, no order gives less."""
    # A power of two by its bits: pow may be off by a unit.
    return measures[0] * ((1023 - last_exponents(measures)) << 52).view(torch.float64)


def are_exact(units: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Whether FP64 adds the products of the terms of two lines exactly. Infinite and NaN ones never are."""
    return units * others < _EXACT


@dataclass(frozen=True, slots=True)
class ExactOrProductBound(Bound):
    """A product's bound, and 0 where sums are exact."""

    product: ProductBound
    rows: torch.Tensor
    """f64[R], units of the rows."""
    columns: torch.Tensor
    """f64[Q, C], units of the columns."""

    def at(self, indices: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        groups, width = self.columns.shape
        row = indices // width
        columns = self.columns[row // max(1, len(self.rows) // max(1, groups)), indices % width]
        return self.product.at(indices, y).masked_fill_(are_exact(self.rows[row], columns), 0.0)


def without_exact_products(rounded: torch.Tensor, marked: Ambiguous, a: torch.Tensor, b: torch.Tensor) -> Ambiguous:
    """The marked elements of the product of bf16[.., M, K] and bf16[.., K, N], without those that are exact, whose
    roundings are put into it."""
    if not marked.indices.numel():
        return marked
    line, column = marked.indices // b.shape[-1], marked.indices % b.shape[-1]
    batch = line // a.shape[-2]
    units = []
    for x, place, size in ((a, line % a.shape[-2], a.shape[-2]), (b.mT, column, b.shape[-1])):
        chosen, which = torch.unique(batch * size + place, return_inverse=True)
        lines = x[chosen] if x.ndim == 2 else x[chosen // size, chosen % size]
        units.append(units_of(measure_lines(lines, 1))[which])
    d = marked.d.masked_fill(are_exact(*units), 0.0)
    return without_exact(rounded, replace(marked, d=d), BFLOAT16)
