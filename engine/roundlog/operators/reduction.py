"""Reductions over axes: exact ones (largest element, its index, integer sums) and FP32 sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from roundlog.arithmetic.interval import UNIT_F64
from roundlog.kernels import superaccumulator
from roundlog.kernels.reducing import sum_columns, sum_rows
from roundlog.kernels.scratch import empty
from roundlog.kernels.summing import locate, sum_placed, sum_products
from roundlog.kernels.to_f64 import storage_of
from roundlog.operators.bound import Bound, FullBound
from roundlog.operators.marking import Ambiguous
from roundlog.operators.movement import outside_of
from roundlog.operators.registry import (
    Attributes,
    Direct,
    Kind,
    Tensors,
    Types,
    axes,
    axis,
    integer,
    ints,
    need_attributes,
    need_inputs,
    register,
)
from roundlog.operators.sum_bounds import (
    NO_ZERO,
    bound_of_sums,
    join_measures,
    last_place,
    less_one,
    magnitude_bits,
    reduced,
    sum_by_torch,
)
from roundlog.operators.summation import F64, Index, Measures, Shapes, Summation
from roundlog.operators.terms import SLACK, check_terms, exact_bytes, sum_gamma, sum_parts_keep_depth
from roundlog.program import DType, ProgramError, TensorType


@register
class Sum(Summation):
    """sum(x, dims): the sum over those axes, which stay as axes of size 1. FP32."""

    name = "sum"

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.F32)
        need_attributes(attributes, dims=tuple)
        dims = axes(attributes, len(inputs[0].shape))
        check_terms(prod(inputs[0].shape[dim] for dim in dims))
        return TensorType(reduced(inputs[0].shape, dims), DType.F32)

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        terms = inputs[0].numel // max(output.numel, 1)
        # `exact` copies the input, with the summed axes last. A term is 4 + 8 bytes; 64 leave
        # room to spare.
        exact = 4 * inputs[0].numel + exact_bytes(output.numel, terms, 64)
        return super().workspace(inputs, attributes, output) + exact

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return self._all(inputs[0], ints(attributes, "dims"))[0]

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return self.evaluate(inputs, attributes)[1]

    def evaluate(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Bound]:
        total, measures = self.part(inputs, attributes)
        return total, self.bound_of(measures, self.terms([tuple(inputs[0].shape)], attributes))

    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        return prod(shapes[0][dim] for dim in ints(attributes, "dims"))

    def part(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Measures]:
        return self._all(inputs[0], ints(attributes, "dims"))

    def measured(self, part: Types, output: TensorType) -> int:
        return 3 * output.numel

    def bound_of(self, measures: Measures, terms: int) -> Bound:
        return FullBound(bound_of_sums(measures, sum_gamma(terms)))

    def join(self, measures: Measures, more: Measures) -> None:
        join_measures(measures, more)

    def keeps_bound(self, parts: Sequence[int]) -> bool:
        return sum_parts_keep_depth(parts)

    @staticmethod
    def _all(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, Measures]:
        """The sum and its measures, with the summed axes kept."""
        shape = reduced(tuple(x.shape), dims)
        if x.device.type != "cpu" or 0 in x.shape:
            return sum_by_torch(x, dims)
        # Neighbouring axes with the same fate count as one; most sums are then over the rows or the columns of
        # something.
        runs: list[tuple[bool, int]] = []
        for dim, size in enumerate(x.shape):
            if runs and runs[-1][0] == (dim in dims):
                runs[-1] = (runs[-1][0], runs[-1][1] * size)
            else:
                runs.append((dim in dims, size))
        flat = x.contiguous().reshape([size for _, size in runs] or [1]).numpy()
        pattern = [summed for summed, _ in runs]
        if pattern in ([False, True], [True]):
            found = sum_rows(flat.reshape(-1, flat.shape[-1]))
        elif pattern in ([True, False], [False, True, False]):
            found = sum_columns(flat.reshape(-1, *flat.shape[-2:]))
        elif pattern == [True, False, True]:
            # In one piece, so that terms go through no more additions than in any other sum of as many.
            found = sum_rows(np.ascontiguousarray(flat.transpose(1, 0, 2)).reshape(flat.shape[1], -1))
        else:
            return sum_by_torch(x, dims)
        finest = last_place(torch.from_numpy(found.places.astype(np.int64)))
        measures = torch.from_numpy(found.magnitude), torch.from_numpy(found.least.astype(np.int64)), finest
        return torch.from_numpy(found.total).reshape(shape), tuple(one.reshape(shape) for one in measures)

    def sums(self, inputs: Tensors, attributes: Attributes, elements: Index) -> tuple[F64, F64, F64]:
        x, dims = inputs[0], ints(attributes, "dims")
        step = step_over(x, dims)
        if step is None:
            return self.sums_listed(inputs, attributes, elements)
        # As products with ones, where they lie in memory.
        ones = np.ones(self.terms([tuple(x.shape)], attributes), np.float32)
        first = _first_terms(x, dims, elements)
        return sum_products(storage_of(x), ones, first, step, np.zeros(len(elements), np.int64), 1, len(ones))

    def accumulate(self, inputs: Tensors, attributes: Attributes, elements: Index, sums: Index) -> None:
        x, dims = inputs[0], ints(attributes, "dims")
        step = step_over(x, dims)
        if step is None:
            super().accumulate(inputs, attributes, elements, sums)
        else:
            terms = self.terms([tuple(x.shape)], attributes)
            superaccumulator.add_numbers(sums, storage_of(x), _first_terms(x, dims, elements), step, terms)

    def listed(self, inputs: Tensors, attributes: Attributes, elements: Index) -> F64:
        x, dims = inputs[0], ints(attributes, "dims")
        kept = [dim for dim in range(x.ndim) if dim not in dims]
        rows = x.permute((*kept, *dims))
        where = np.unravel_index(elements, [x.shape[dim] for dim in kept]) if kept else (np.zeros_like(elements),)
        chosen = (rows if kept else rows[None])[tuple(torch.from_numpy(axis).to(x.device) for axis in where)]
        terms: F64 = (
            chosen.reshape(len(elements), self.terms([tuple(x.shape)], attributes)).cpu().numpy().astype(np.float64)
        )
        return terms


def _first_terms(x: torch.Tensor, dims: tuple[int, ...], elements: Index) -> Index:
    """Where the sums over these axes of x, for the chosen elements, begin in memory."""
    kept = [dim for dim in range(x.ndim) if dim not in dims]
    sizes, strides = (1, *(x.shape[dim] for dim in kept)), (0, *(x.stride(dim) for dim in kept))
    return locate(elements, sizes, strides, int(x.storage_offset()))


def step_over(x: torch.Tensor, dims: tuple[int, ...]) -> int | None:
    """How far it is in memory from one term of a sum over these axes of x to the next, if it is the same everywhere."""
    step: int | None = None
    reach = 0
    for dim in reversed(dims):
        if x.shape[dim] == 1:
            continue
        if step is None:
            step = reach = x.stride(dim)
        elif x.stride(dim) != reach:
            return None
        reach = x.stride(dim) * x.shape[dim]
    return 1 if step is None else step


@register
class ScatterAdd(Summation):
    """scatter_add(x, index, dim, size): the sum of all x[.., i, ..] with index[.., i, ..] = j stands at [.., j, ..] of
    the output, whose axis dim has `size` elements. index broadcasts to x; what an index outside of [0, size) would
    place stands nowhere. The gradient of gather, take and max pooling. FP32."""

    name = "scatter_add"

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.F32, DType.I64)
        need_attributes(attributes, dim=int, size=int)
        x, index = inputs
        dim, size = axis(attributes, len(x.shape)), integer(attributes, "size")
        fits = len(index.shape) == len(x.shape) and all(
            a == b or (a == 1 and d != dim) for d, (a, b) in enumerate(zip(index.shape, x.shape, strict=True))
        )
        if not fits or size < 0:
            raise ProgramError(f"cannot scatter {x} by {index} along axis {dim}")
        check_terms(x.shape[dim])
        return TensorType((*x.shape[:dim], size, *x.shape[dim + 1 :]), DType.F32)

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
        """Where whole slices are added up, only those that there is something for are computed: the gradient of an
        embedding has a few of very many. The others are zero."""
        x, index = inputs
        dim, size = integer(attributes, "dim"), integer(attributes, "size")
        if x.device.type != "cpu" or index.numel() != x.shape[dim]:
            return super().certify(inputs, attributes, scale)
        places, position = torch.unique(index, return_inverse=True)
        first, last = (int(end) for end in torch.searchsorted(places, torch.tensor([0, size])))
        if first == last or 2 * (last - first) > size:
            return super().certify(inputs, attributes, scale)
        # What stands outside of [0, size) does so among the slices that are left, too.
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

    def join(self, measures: Measures, more: Measures) -> None:
        join_measures(measures, more)

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


class Extreme(Direct):
    """The largest (or smallest) element over axes, which stay as axes of size 1; a zero result is +0, and NaN if an
    element is."""

    kind = Kind.EXACT

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.F32)
        need_attributes(attributes, dims=tuple)
        dims = axes(attributes, len(inputs[0].shape))
        if any(inputs[0].shape[dim] == 0 for dim in dims):
            raise ProgramError(f"has no largest element over the axes {list(dims)} of {inputs[0]}")
        return TensorType(reduced(inputs[0].shape, dims), DType.F32)


@register
class AMax(Extreme):
    """amax(x, dims): the largest element over those axes, which stay as axes of size 1; NaN if one is, and a zero is
    +0. FP32."""

    name = "amax"

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        # + 0.0 turns -0 into +0: which of two equal zeros a kernel returns is its own affair.
        return (inputs[0].amax(dims, keepdim=True) if dims else inputs[0]) + 0.0


@register
class AMin(Extreme):
    """amin(x, dims): the smallest element over those axes, which stay as axes of size 1; NaN if one is, and a zero is
    +0. FP32."""

    name = "amin"

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        return (inputs[0].amin(dims, keepdim=True) if dims else inputs[0]) + 0.0


@register
class ArgMax(Direct):
    """argmax(x, dim): int64, the lowest index of a largest element along the axis (NaN is the largest), which stays as
    an axis of size 1."""

    name = "argmax"
    kind = Kind.EXACT

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.F32)
        need_attributes(attributes, dim=int)
        dim = axis(attributes, len(inputs[0].shape))
        if inputs[0].shape[dim] == 0:
            raise ProgramError(f"axis {dim} of {inputs[0]} is empty")
        return TensorType(reduced(inputs[0].shape, (dim,)), DType.I64)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        x, dim = inputs[0], integer(attributes, "dim")
        shape = [-1 if d == dim else 1 for d in range(x.ndim)]
        position = torch.arange(x.shape[dim], device=x.device).reshape(shape)
        # torch.argmax promises nothing about ties; the smallest matching index does.
        largest = x.amax(dim, keepdim=True)
        return torch.where((x == largest) | (x != x), position, x.shape[dim]).amin(dim, keepdim=True)


@register
class SumI64(Direct):
    """sum_i64(x, dims): the sum over those axes, which stay as axes of size 1, modulo 2^64. int64."""

    name = "sum_i64"
    kind = Kind.EXACT

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.I64)
        need_attributes(attributes, dims=tuple)
        return TensorType(reduced(inputs[0].shape, axes(attributes, len(inputs[0].shape))), DType.I64)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        return inputs[0].sum(dims, keepdim=True) if dims else inputs[0]


@register
class Any(Direct):
    """any(x, dims): whether any element over those axes, which stay as axes of size 1, is true. bool."""

    name = "any"
    kind = Kind.EXACT

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.BOOL)
        need_attributes(attributes, dims=tuple)
        return TensorType(reduced(inputs[0].shape, axes(attributes, len(inputs[0].shape))), DType.BOOL)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        return torch.any(inputs[0], dims, keepdim=True) if dims else inputs[0]
