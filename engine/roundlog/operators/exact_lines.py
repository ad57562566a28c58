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
from roundlog.kernels.reducing import are_short_lines
from roundlog.kernels.to_f64 import storage_of
from roundlog.number_format import BFLOAT16
from roundlog.operators.bounds import Ambiguous, Bound, ProductBound, without_exact
from roundlog.operators.reduction import sum_and_measures
from roundlog.operators.summation import Measures, last_exponents

_EXACT = 2.0**53


def measure_lines(x: torch.Tensor, dim: int) -> Measures:
    """The measures of every line along an axis of f32 or bf16 numbers, without that axis, as a sum of its terms has
    them: magnitude, and last places. Those of a line's parts are joined as a sum's. The magnitude of a line of f32
    that are not all of them numbers of BF16 is infinite."""
    dim %= x.ndim
    short = _are_short(x, dim) if x.dtype == torch.float32 else None
    if short is not None and x.device.type == "cpu" and not bool(short.any()):
        none = torch.zeros_like(short, dtype=torch.int64)
        return none.double() + inf, none, none + 1
    _, measures = sum_and_measures(as_float32(x), (dim,))
    magnitude, least, finest = (one.squeeze(dim) for one in measures)
    return magnitude if short is None else magnitude.masked_fill_(~short, inf), least, finest


def _are_short(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Whether all f32 of a line are numbers of BF16, for the lines along an axis of a matrix, or of several."""
    if x.device.type != "cpu":
        return (x.view(torch.int32) & 0xFFFF == 0).all(dim)
    lines = (x if x.ndim == 3 else x[None]).movedim(dim - x.ndim, 2)
    found = are_short_lines(storage_of(x).view("u4"), int(x.storage_offset()), lines.stride(), tuple(lines.shape))
    return torch.from_numpy(found).view(*lines.shape[3 - x.ndim : 2])


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
        return self.product.at(indices, y).masked_fill_(self.are_exact_at(indices), 0.0)

    def are_exact_at(self, indices: torch.Tensor) -> torch.Tensor:
        """Whether the elements with these flat indices are exact."""
        groups, width = self.columns.shape
        row = indices // width
        return are_exact(self.rows[row], self.columns[row // max(1, len(self.rows) // max(1, groups)), indices % width])

    def coarse(self) -> ProductBound:
        """0 for rows that are exact with every column: bounds that kernels know."""
        rows = exact_rows(self.rows, self.columns)
        return replace(self.product, rows=self.product.rows.masked_fill(rows, 0.0))


def exact_rows(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """bool[R]: rows whose products with all columns of their group are exact. rows: f64[R], columns: f64[Q, C], units
    of lines."""
    if not columns.numel():
        return torch.zeros_like(rows, dtype=torch.bool)
    return are_exact(rows.view(len(columns), -1), columns.amax(1, keepdim=True)).view(-1)


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
