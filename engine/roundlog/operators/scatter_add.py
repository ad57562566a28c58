"""scatter_add: FP32 sums of elements that an index brings together."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from roundlog.arithmetic.formats import UNIT_F64
from roundlog.kernels import superaccumulator
from roundlog.kernels.scratch import empty
from roundlog.kernels.summing import sum_placed
from roundlog.operators.bounds import Ambiguous, Bound, FullBound
from roundlog.operators.movement import outside_of
from roundlog.operators.registry import (
    Attributes,
    Tensors,
    Types,
    axis,
    integer,
    register,
)
from roundlog.operators.summation import (
    F64,
    NO_ZERO,
    SLACK,
    Index,
    Measures,
    Shapes,
    Summation,
    bound_of_sums,
    check_terms,
    exact_bytes,
    less_one,
    magnitude_bits,
)
from roundlog.program import ProgramError, TensorType


@register("scatter_add")
class ScatterAdd(Summation):
    least = frozenset([1, 2])
    by_element = True

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        self.need_form(inputs, attributes)
        x, index = inputs
        dim, size = axis(attributes, len(x.shape)), integer(attributes, "size")
        fits = len(index.shape) == len(x.shape) and all(
            a == b or (a == 1 and d != dim) for d, (a, b) in enumerate(zip(index.shape, x.shape, strict=True))
        )
        if not fits or size < 0:
            raise ProgramError(f"cannot scatter {x} by {index} along axis {dim}")
        check_terms(x.shape[dim])
        return TensorType((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.dtype)

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        x, _ = inputs
        # As for a sum, with the indices beside the terms.
        exact = 12 * x.numel + exact_bytes(output.numel, x.shape[integer(attributes, "dim")], 80)
        return super().workspace(inputs, attributes, output) + exact

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        x, index = inputs
        return self._scatter(x.to(torch.float64), index, integer(attributes, "dim"), integer(attributes, "size"))

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return self.bound_of(self._measures(inputs, attributes), inputs[0].shape[integer(attributes, "dim")])

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        """Sums of whole slices are computed only where there are terms: the gradient of an embedding has a few of very
        many. The others are zero."""
        x, index = inputs
        dim, size = integer(attributes, "dim"), integer(attributes, "size")
        if x.device.type != "cpu" or index.numel() != x.shape[dim]:
            return super().certify(inputs, attributes, scale)
        places, position = torch.unique(index, return_inverse=True)
        first, last = (int(end) for end in torch.searchsorted(places, torch.tensor([0, size])))
        if first == last or 2 * (last - first) > size:
            return super().certify(inputs, attributes, scale)
        # A place outside of [0, size) is outside among the slices that are left, too.
        few, marked = super().certify([x, position - first], {**attributes, "size": last - first}, scale)
        places, inner = places[first:last], prod(x.shape[dim + 1 :])
        out = empty((*x.shape[:dim], size, *x.shape[dim + 1 :]), torch.float32).zero_().index_copy_(dim, places, few)
        line, within = marked.indices // inner, marked.indices % inner
        outer, place = line // len(places), places[line % len(places)]
        return out, Ambiguous((outer * size + place) * inner + within, marked.y, marked.d)

    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        return shapes[0][integer(attributes, "dim")]

    def part(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Measures]:
        return self.approximate(inputs, attributes), self._measures(inputs, attributes)

    def _measures(self, inputs: Tensors, attributes: Attributes) -> Measures:
        """The sums of magnitudes, what is known of their terms' bits, and how many terms each has."""
        x, index = inputs
        dim, size = integer(attributes, "dim"), integer(attributes, "size")
        one = torch.ones((), dtype=torch.float64, device=x.device).expand(index.shape)
        magnitude, count = (self._scatter(of, index, dim, size) for of in (x.abs().to(torch.float64), one))
        # A zero that is placed stands for what is outside, too.
        bits = magnitude_bits(x.masked_fill((index < 0) | (index >= size), 0))
        least = torch.full_like(magnitude, NO_ZERO, dtype=torch.int32)
        if size:
            least.scatter_reduce_(dim, index.clamp(0, size - 1).expand(x.shape), bits, "amin")
        least = less_one(least)
        return magnitude, least, torch.ones_like(least), count

    def measured(self, part: Types, output: TensorType) -> int:
        return 4 * output.numel

    def bound_of(self, measures: Measures, terms: int) -> Bound:
        count = measures[3].expand(measures[0].shape).reshape(-1)
        return FullBound(bound_of_sums(measures[:3], (count - 1).clamp_(min=0) * (UNIT_F64 * SLACK)))

    @staticmethod
    def _scatter(x: torch.Tensor, index: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
        zeros = torch.zeros(shape, dtype=x.dtype, device=x.device)
        outside = outside_of(index, size)
        if outside is not None:
            if not size:
                return zeros
            x, index = x.masked_fill(outside, 0), index.masked_fill(outside, 0)
        return zeros.scatter_add_(dim, index.expand(x.shape), x)

    def sums(self, inputs: Tensors, attributes: Attributes, elements: Index) -> tuple[F64, F64, F64]:
        x, index = inputs
        dim, size = integer(attributes, "dim"), integer(attributes, "size")
        shape = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
        return sum_placed(
            x.detach().reshape(shape).numpy(), index.expand(x.shape).reshape(shape).numpy(), size, elements
        )

    def accumulate(self, inputs: Tensors, attributes: Attributes, elements: Index, sums: Index) -> None:
        x, index = inputs
        dim, size = integer(attributes, "dim"), integer(attributes, "size")
        shape = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
        superaccumulator.add_placed(
            sums, x.detach().reshape(shape).numpy(), index.expand(x.shape).reshape(shape).numpy(), size, elements
        )

    def listed(self, inputs: Tensors, attributes: Attributes, elements: Index) -> F64:
        x, index = inputs
        dim, size = integer(attributes, "dim"), integer(attributes, "size")
        where = [
            torch.from_numpy(axis).to(x.device)
            for axis in np.unravel_index(elements, (*x.shape[:dim], size, *x.shape[dim + 1 :]))
        ]
        target = where.pop(dim)[:, None]
        # Whole lines along `dim`, without what is placed elsewhere.
        if where:
            line = tuple(where)
            values, indices = x.movedim(dim, -1)[line], index.expand(x.shape).movedim(dim, -1)[line]
        else:
            values, indices = x[None], index[None]
        terms: F64 = torch.where(indices == target, values, 0.0).cpu().numpy().astype(np.float64)
        return terms
