"""Reductions over axes: FP32 sums, and exact ones (largest element, its index, integer sums); and scatter_add: FP32
sums of elements that an index brings together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import torch

from roundlog.arithmetic.formats import UNIT_F64, interval_factor
from roundlog.definitions import DEFINITIONS
from roundlog.kernels import superaccumulator
from roundlog.kernels.exact_products import Runs, add_products
from roundlog.kernels.number_words import storage_of
from roundlog.kernels.reducing import Sums, mark_sums, sum_columns, sum_runs
from roundlog.kernels.scratch import empty
from roundlog.operators.bounds import Ambiguous, Bound, FullBound
from roundlog.operators.movement import outside_of
from roundlog.operators.registry import (
    Attributes,
    Direct,
    Tensors,
    Types,
    axes,
    axis,
    enter,
    integer,
    ints,
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
    last_place,
    less_one,
    magnitude_bits,
    parts_keep_chain,
    reduced,
    sum_by_torch,
    sum_depth,
    sum_gamma,
)
from roundlog.program import ProgramError, TensorType


def _reduced(inputs: Types, attributes: Attributes) -> tuple[int, ...]:
    """The shape without the elements of the axes `dims`, which are checked."""
    return reduced(inputs[0].shape, axes(attributes, len(inputs[0].shape)))


@register("sum")
class Sum(Summation):
    least = frozenset([1, 2])
    by_element = True

    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        shape = _reduced(inputs, attributes)
        check_terms(self.terms([inputs[0].shape], attributes))
        return shape

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        terms = inputs[0].numel // max(output.numel, 1)
        # `exact` copies the input, with the summed axes last. A term is 4 + 8 bytes; 64 leave
        # room to spare.
        exact = 4 * inputs[0].numel + exact_bytes(output.numel, terms, 64)
        return super().workspace(inputs, attributes, output) + exact

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return self.part(inputs, attributes)[0]

    def measures(self, inputs: Tensors, attributes: Attributes) -> Measures:
        return self.part(inputs, attributes)[1]

    def evaluate(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Bound]:
        total, measures = self.part(inputs, attributes)
        return total, self.bound_of(measures, self.terms([tuple(inputs[0].shape)], attributes))

    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        return prod(shapes[0][dim] for dim in ints(attributes, "dims"))

    def part(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Measures]:
        return sum_and_measures(inputs[0], ints(attributes, "dims"))

    def measured(self, part: Types, output: TensorType) -> int:
        return 3 * output.numel

    def bound_of(self, measures: Measures, terms: int) -> Bound:
        return FullBound(bound_of_sums(measures, sum_gamma(terms)))

    def keeps_bound(self, parts: Sequence[int]) -> bool:
        return parts_keep_chain(parts, sum_depth)

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        x, dims = inputs[0], ints(attributes, "dims")
        found = _sums(x, dims)
        if found is None:
            return super().certify(inputs, attributes, scale)
        rounded = empty(reduced(tuple(x.shape), dims), torch.float32)
        gamma = sum_gamma(self.terms([tuple(x.shape)], attributes))
        near = mark_sums(found, gamma, interval_factor(scale), rounded.view(-1).numpy())
        return rounded, Ambiguous.collect(near)

    def accumulate(self, inputs: Tensors, attributes: Attributes, elements: Index, sums: Index) -> None:
        x, dims = inputs[0], ints(attributes, "dims")
        step = step_over(x, dims)
        if step is None:
            super().accumulate(inputs, attributes, elements, sums)
        else:
            # As products with ones, where they lie in memory.
            terms, first = self.terms([tuple(x.shape)], attributes), _first_terms(x, dims, elements)
            one = Runs.strided(np.ones(1, np.float32), np.zeros(1, np.int64), terms, 0)
            runs = Runs.strided(storage_of(x), first, terms, step), one
            add_products(sums, *runs, np.arange(len(elements)), np.zeros(len(elements), np.int64))

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


def sum_and_measures(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, Measures]:
    """The sum of f32 numbers over axes, which are kept, and its measures."""
    found, shape = _sums(x, dims), reduced(tuple(x.shape), dims)
    if found is None:
        return sum_by_torch(x, dims)
    least, places = (torch.from_numpy(bits.astype(np.int64)) for bits in found.bits)
    measures = torch.from_numpy(found.magnitude), least, last_place(places)
    return torch.from_numpy(found.total).reshape(shape), tuple(one.reshape(shape) for one in measures)


def _sums(x: torch.Tensor, dims: tuple[int, ...]) -> Sums | None:
    """The sums over these axes of x by the kernels for the CPU, if they have it."""
    if x.device.type != "cpu" or 0 in x.shape:
        return None
    # Neighbouring axes with the same fate count as one; most sums are then over the rows or the columns of something.
    runs: list[tuple[bool, int]] = []
    for dim, size in enumerate(x.shape):
        if size == 1:
            continue
        if runs and runs[-1][0] == (dim in dims):
            runs[-1] = (runs[-1][0], runs[-1][1] * size)
        else:
            runs.append((dim in dims, size))
    if not any(summed for summed, _ in runs):
        runs.insert(0, (True, 1))
    pattern, sizes = [summed for summed, _ in runs], [size for _, size in runs]
    if pattern not in ([True], [False, True], [True, False], [False, True, False], [True, False, True]):
        return None
    flat = x.contiguous().view(-1).numpy()
    if not pattern[-1]:
        return sum_columns(flat.reshape(-1, *sizes[-2:]))
    return sum_runs(flat.reshape([1] * (3 - len(sizes)) + sizes))


def _first_terms(x: torch.Tensor, dims: tuple[int, ...], elements: Index) -> Index:
    """Begins, in memory, of the sums over these axes of x for the chosen elements."""
    kept = [dim for dim in range(x.ndim) if dim not in dims]
    places = np.unravel_index(elements, (1, *(x.shape[dim] for dim in kept)))[1:]
    first = np.full(len(elements), int(x.storage_offset()))
    for dim, place in zip(kept, places, strict=True):
        first += place * x.stride(dim)
    return first


def step_over(x: torch.Tensor, dims: tuple[int, ...]) -> int | None:
    """Distance in memory from one term of a sum over these axes of x to the next, if it is the same everywhere."""
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


class OverAxes(Direct):
    """An exact number of the elements over axes, which stay as axes of size 1, by a function of PyTorch's. Where it
    selects one of them, a zero is +0, and NaN the result if an element is."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self._function = function

    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        shape, dims = _reduced(inputs, attributes), ints(attributes, "dims")
        if self.definition.selects and any(inputs[0].shape[dim] == 0 for dim in dims):
            raise ProgramError(f"has no largest element over the axes {list(dims)} of {inputs[0]}")
        return shape

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        found = self._function(inputs[0], dims, keepdim=True) if dims else inputs[0]
        # + 0.0 turns -0 into +0: which of two equal zeros a kernel returns is its own affair.
        return found + 0.0 if self.definition.selects else found


_OVER_AXES: dict[str, Callable[..., torch.Tensor]] = {
    "amax": torch.amax,
    "amin": torch.amin,
    "sum_i64": torch.sum,
    "any": torch.any,
}

for _name, _function in _OVER_AXES.items():
    enter(OverAxes(_function), DEFINITIONS[_name])


@register("argmax")
class ArgMax(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        dim = axis(attributes, len(inputs[0].shape))
        if inputs[0].shape[dim] == 0:
            raise ProgramError(f"axis {dim} of {inputs[0]} is empty")
        return reduced(inputs[0].shape, (dim,))

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        x, dim = inputs[0], integer(attributes, "dim")
        shape = [-1 if d == dim else 1 for d in range(x.ndim)]
        position = torch.arange(x.shape[dim], device=x.device).reshape(shape)
        # torch.argmax promises nothing about ties; the smallest matching index does.
        largest = x.amax(dim, keepdim=True)
        return torch.where((x == largest) | (x != x), position, x.shape[dim]).amin(dim, keepdim=True)


@register("scatter_add")
class ScatterAdd(Summation):
    least = frozenset([1, 2])
    by_element = True

    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        x, index = inputs
        dim, size = axis(attributes, len(x.shape)), integer(attributes, "size")
        fits = len(index.shape) == len(x.shape) and all(
            a == b or (a == 1 and d != dim) for d, (a, b) in enumerate(zip(index.shape, x.shape, strict=True))
        )
        if not fits or size < 0:
            raise ProgramError(f"cannot scatter {x} by {index} along axis {dim}")
        check_terms(x.shape[dim])
        return (*x.shape[:dim], size, *x.shape[dim + 1 :])

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        x, _ = inputs
        # As for a sum, with the indices beside the terms.
        exact = 12 * x.numel + exact_bytes(output.numel, x.shape[integer(attributes, "dim")], 80)
        return super().workspace(inputs, attributes, output) + exact

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        x, index = inputs
        return self._scatter(x.to(torch.float64), index, integer(attributes, "dim"), integer(attributes, "size"))

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

    def measures(self, inputs: Tensors, attributes: Attributes) -> Measures:
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
