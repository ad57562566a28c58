"""Error bounds, in the form that they come in, never larger in memory than they have to be; and rounding a whole
output and marking the elements near a rounding boundary: what every policy starts from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from roundlog.arithmetic import round_interval
from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels import has_kernels
from roundlog.kernels.marking import LARGEST, AmbiguousPart, ascending, mark_flat
from roundlog.kernels.scratch import empty
from roundlog.number_format import FLOAT32, Format


class Bound(ABC):
    """|y - exact| <= d, elementwise, for an output y in row-major order."""

    @abstractmethod
    def at(self, indices: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """f64[n]: d of the elements with these flat indices, whose approximations are y (f64[n])."""

    def of_range(self, first: int, y: torch.Tensor) -> torch.Tensor:
        """f64[n]: d of the elements from this flat index on, whose approximations are y (f64[n])."""
        return self.at(torch.arange(first, first + len(y), device=y.device), y)

    def whole(self, y: torch.Tensor) -> torch.Tensor:
        """f64, d of every element of the output y."""
        return self.at(torch.arange(y.numel(), device=y.device), y.reshape(-1)).reshape(y.shape)

    def coarse(self) -> Bound:
        """A bound of a form that kernels know, nowhere smaller than this one."""
        return self

    def refine(self, marked: Ambiguous) -> Ambiguous:
        """Elements that were marked by the coarse bound, with this one."""
        return marked


@dataclass(frozen=True, slots=True)
class ProductBound(Bound):
    """d[r, c] = rows[r] * columns[r // (R / Q), c], y seen as [R, C]. Norms of rows by norms of columns, for every
    contraction: the Q groups are batches, or groups of channels."""

    rows: torch.Tensor
    """f64[R]."""
    columns: torch.Tensor
    """f64[Q, C], Q divides R."""

    def at(self, indices: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        groups, width = self.columns.shape
        row = indices // width
        return self.rows[row] * self.columns[row // max(1, len(self.rows) // max(1, groups)), indices % width]

    def of_range(self, first: int, y: torch.Tensor) -> torch.Tensor:
        groups, width = self.columns.shape
        if groups != 1 or not width:
            return Bound.of_range(self, first, y)
        # Whole rows, without a division for every element.
        row, last = first // width, first + len(y)
        rows = self.rows[row : -(-last // width)]
        return (rows[:, None] * self.columns).view(-1)[first - row * width : last - row * width]

    def whole(self, y: torch.Tensor) -> torch.Tensor:
        if not y.numel():
            return torch.empty_like(y)
        return (self.rows.reshape(len(self.columns), -1, 1) * self.columns[:, None]).reshape(y.shape)


@dataclass(frozen=True, slots=True)
class FullBound(Bound):
    """d, element by element: f64[n]."""

    d: torch.Tensor

    def at(self, indices: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.d[indices]

    def of_range(self, first: int, y: torch.Tensor) -> torch.Tensor:
        return self.d[first : first + len(y)]

    def whole(self, y: torch.Tensor) -> torch.Tensor:
        return self.d.view(y.shape)


@dataclass(frozen=True, slots=True)
class RelativeBound(Bound):
    """d = |y| * relative + absolute."""

    relative: float
    absolute: float = 0.0

    def at(self, indices: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.abs() * self.relative + self.absolute


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """The elements of one output whose interval [y - scale d, y + scale d] holds a rounding boundary, or is not finite
    in FP32. On the CPU, wherever the output lies: they are few, and every decision about them would be a dozen small
    kernels on a device."""

    indices: torch.Tensor
    """int64[n], ascending flat indices."""
    y: torch.Tensor
    """f64[n]: the approximation there."""
    d: torch.Tensor
    """f64[n]: its bound."""

    def of(self, chosen: torch.Tensor | slice) -> Ambiguous:
        """Some of them: chosen is a mask, ascending positions, or a range of them."""
        return Ambiguous(self.indices[chosen], self.y[chosen], self.d[chosen])

    @staticmethod
    def collect(found: list[AmbiguousPart]) -> Ambiguous:
        """Elements that several kernels, or none, have marked in one output, each index once."""
        if not found:
            return _NOTHING
        near = found[0]
        if len(found) > 1:
            parts = zip(*((one.indices, one.y, one.d) for one in found), strict=True)
            near = AmbiguousPart(*map(np.concatenate, parts))
        near = ascending(near.indices, near.y, near.d)
        return Ambiguous(torch.from_numpy(near.indices), torch.from_numpy(near.y), torch.from_numpy(near.d))


_NOTHING = Ambiguous(torch.empty(0, dtype=torch.int64), *torch.empty((2, 0), dtype=torch.float64))


def mark(y: torch.Tensor, bound: Bound, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """Round y (f64, any shape), and mark what lies near a boundary. Where nothing is marked, the rounding is the
    correct rounding of the exact value, and finite: what is too large for FP32 is marked. Returns f32 of y's shape, in
    memory of its own."""
    rounded, marked = _mark(y, bound.coarse(), scale)
    return rounded, bound.refine(marked)


def _mark(y: torch.Tensor, bound: Bound, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    if y.numel() and y.device.type == "cpu":
        return _mark_by_loops(y, bound, scale)
    if y.numel() and has_kernels(y.device):
        return mark_by_triton(y, bound, scale)
    return mark_by_reference(y, bound, scale)


_PIECE = 1 << 20
"""Elements that are marked at once, so that bounds never take as much memory as the output."""


def _mark_by_loops(y: torch.Tensor, bound: Bound, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """`mark` by the kernels for the CPU; y is not empty."""
    factor, flat = interval_factor(scale), y.contiguous().view(-1)
    rounded = empty(y.shape, torch.float32)
    out = rounded.view(-1).numpy()
    if isinstance(bound, RelativeBound):
        found = mark_flat(flat.numpy(), None, factor, out, relative=bound.relative, absolute=bound.absolute)
        return rounded, Ambiguous.collect(found)
    found = []
    for first in range(0, len(flat), _PIECE):
        some = flat[first : first + _PIECE]
        d = bound.of_range(first, some).contiguous()
        found += mark_flat(some.numpy(), d.numpy(), factor, out[first : first + _PIECE], first=first)
    return rounded, Ambiguous.collect(found)


def mark_by_triton(y: torch.Tensor, bound: Bound, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """`mark` by the kernels for CUDA; y is not empty."""
    # Not at the top: Triton is an optional extra.
    from roundlog.kernels.cuda import triton_kernels as kernels

    factor = interval_factor(scale)
    flat = y.contiguous().view(-1)
    if isinstance(bound, RelativeBound):
        rounded, near = kernels.mark_flat(flat, None, factor, relative=bound.relative, absolute=bound.absolute)
    else:
        rounded, near = kernels.mark_flat(flat, bound.whole(flat).contiguous(), factor)
    return rounded.view(y.shape), Ambiguous(*near)


def mark_by_reference(
    y: torch.Tensor, bound: Bound, scale: float, format: Format = FLOAT32
) -> tuple[torch.Tensor, Ambiguous]:
    """`mark` in plain torch, on any device, to any format."""
    low, high = round_interval(y, bound.whole(y), scale, format)
    marked = (low != high) | ~(low.abs() <= float(LARGEST))
    indices = marked.reshape(-1).nonzero().squeeze(1)
    chosen = y.reshape(-1)[indices]
    return low, Ambiguous(indices.cpu(), chosen.cpu(), bound.at(indices, chosen).cpu())
