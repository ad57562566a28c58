"""Error bounds in the form that they come in: never larger in memory than they have to be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


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


@dataclass(frozen=True, slots=True)
class FullBound(Bound):
    """d, element by element: f64[n]."""

    d: torch.Tensor

    def at(self, indices: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.d[indices]


@dataclass(frozen=True, slots=True)
class RelativeBound(Bound):
    """d = |y| * relative + absolute."""

    relative: float
    absolute: float = 0.0

    def at(self, indices: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.abs() * self.relative + self.absolute
