"""Reductions over axes: FP32 sums, and exact ones (largest element, its index, integer sums)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels import superaccumulator
from roundlog.kernels.reducing import Sums, mark_sums, sum_columns, sum_runs
from roundlog.kernels.scratch import empty
from roundlog.kernels.summing import locate, sum_products
from roundlog.kernels.to_f64 import storage_of
from roundlog.operators.bounds import Ambiguous, Bound, FullBound
from roundlog.operators.registry import (
    Attributes,
    Direct,
    Tensors,
    Types,
    axes,
    axis,
    integer,
    ints,
    register,
)
from roundlog.operators.summation import (
    F64,
    Index,
    Measures,
    Shapes,
    Summation,
    bound_of_sums,
    check_terms,
    exact_bytes,
    last_place,
    reduced,
    sum_by_torch,
    sum_gamma,
    sum_parts_keep_depth,
)
from roundlog.program import DType, ProgramError, TensorType


@register("sum")
class Sum(Summation):
    least = frozenset([1, 2])
    by_element = True

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        self.need_form(inputs, attributes)
        dims = axes(attributes, len(inputs[0].shape))
        check_terms(prod(inputs[0].shape[dim] for dim in dims))
        return TensorType(reduced(inputs[0].shape, dims), inputs[0].dtype)

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        terms = inputs[0].numel // max(output.numel, 1)
        # `exact` copies the input, with the summed axes last. A term is 4 + 8 bytes; 64 leave
        # room to spare.
        exact = 4 * inputs[0].numel + exact_bytes(output.numel, terms, 64)
        return super().workspace(inputs, attributes, output) + exact

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return sum_and_measures(inputs[0], ints(attributes, "dims"))[0]

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return self.evaluate(inputs, attributes)[1]

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
        return sum_parts_keep_depth(parts)

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        x, dims = inputs[0], ints(attributes, "dims")
        found = _sums(x, dims)
        if found is None:
            return super().certify(inputs, attributes, scale)
        rounded = empty(reduced(tuple(x.shape), dims), torch.float32)
        gamma = sum_gamma(self.terms([tuple(x.shape)], attributes))
        near = mark_sums(found, gamma, interval_factor(scale), rounded.view(-1).numpy())
        return rounded, Ambiguous.collect(near)

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
    sizes, strides = (1, *(x.shape[dim] for dim in kept)), (0, *(x.stride(dim) for dim in kept))
    return locate(elements, sizes, strides, int(x.storage_offset()))


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


class Extremum(Direct):
    """The largest (or smallest) element over axes, which stay as axes of size 1; a zero result is +0, and NaN if an
    element is."""

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        self.need_form(inputs, attributes)
        dims = axes(attributes, len(inputs[0].shape))
        if any(inputs[0].shape[dim] == 0 for dim in dims):
            raise ProgramError(f"has no largest element over the axes {list(dims)} of {inputs[0]}")
        return TensorType(reduced(inputs[0].shape, dims), inputs[0].dtype)


@register("amax")
class AMax(Extremum):
    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        # + 0.0 turns -0 into +0: which of two equal zeros a kernel returns is its own affair.
        return (inputs[0].amax(dims, keepdim=True) if dims else inputs[0]) + 0.0


@register("amin")
class AMin(Extremum):
    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        return (inputs[0].amin(dims, keepdim=True) if dims else inputs[0]) + 0.0


@register("argmax")
class ArgMax(Direct):
    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        self.need_form(inputs, attributes)
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


@register("sum_i64")
class SumI64(Direct):
    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        self.need_form(inputs, attributes)
        return TensorType(reduced(inputs[0].shape, axes(attributes, len(inputs[0].shape))), DType.I64)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        return inputs[0].sum(dims, keepdim=True) if dims else inputs[0]


@register("any")
class Any(Direct):
    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        self.need_form(inputs, attributes)
        return TensorType(reduced(inputs[0].shape, axes(attributes, len(inputs[0].shape))), DType.BOOL)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        dims = ints(attributes, "dims")
        return torch.any(inputs[0], dims, keepdim=True) if dims else inputs[0]
