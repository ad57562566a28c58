"""Contractions: sums of products of two FP32 or BF16 tensors. What they share, and the matrix product.

Kernels add in FP64, on devices the vendor's BLAS. Products of FP32 numbers are exact there, so every kernel that really
adds the products up, in whatever order, errs by at most gamma_K * sum |a_k b_k| <= gamma_K * ||a|| * ||b||
(Cauchy and Schwarz).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic import as_float32, round_sums
from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels import exact_products, has_kernels
from roundlog.kernels.exact_products import Runs, numbered
from roundlog.kernels.number_words import storage_of
from roundlog.number_format import BFLOAT16, FLOAT32, Format
from roundlog.operators.bounds import Ambiguous, FullBound, ProductBound, mark_by_reference
from roundlog.operators.cpu.gemm import certify_product, sum_product
from roundlog.operators.exact_lines import (
    ExactOrProductBound,
    measure_operands,
    refine_products,
    units_of,
)
from roundlog.operators.registry import (
    MARKED_BYTES,
    Attributes,
    Inexact,
    Tensors,
    Types,
    register,
)
from roundlog.operators.summation import (
    Measures,
    Shapes,
    Summation,
    block_of,
    blocked_gamma,
    blocks,
    check_terms,
    exact_bytes,
    longest_block,
    parts_keep_chain,
)
from roundlog.program import ProgramError, TensorType

Index = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


LINES_AT_ONCE = 1 << 20
"""Numbers of BF16 lines that become FP32 at once, where only some are asked for."""


class Contraction(Inexact):
    """sum over r of a[A(i, r)] * b[B(i, r)] for output element i: `runs` says which."""

    @abstractmethod
    def output_shape(self, shapes: Shapes, attributes: Attributes) -> tuple[int, ...]:
        """The output's shape. Raises ProgramError if the operator does not apply."""

    @abstractmethod
    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        """The length of the sum, padding included."""

    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        shapes = inputs[0].shape, inputs[1].shape
        shape = self.output_shape(shapes, attributes)
        check_terms(self.terms(shapes, attributes))
        return shape

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        terms = self.terms((inputs[0].shape, inputs[1].shape), attributes)
        # A term is two indices, with whatever a convolution needs to find them, and a product.
        exact = 4 * sum(kind.numel for kind in inputs) + exact_bytes(output.numel, terms, 128)
        return super().workspace(inputs, attributes, output) + exact

    moved_a_term: ClassVar[int] = 24
    """Bytes that `listed` moves between a device and the CPU for every product: two indices there, and it back."""

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        a, b = map(as_float32, inputs)
        terms = self.terms((tuple(a.shape), tuple(b.shape)), attributes)
        chosen = elements.numpy()
        if not terms:
            return torch.zeros(len(chosen))
        if a.device.type != "cpu":
            if len(chosen) * terms * self.moved_a_term < 4 * (a.numel() + b.numel()):
                return torch.from_numpy(self._exact_by_terms(a, b, attributes, chosen, format))
            a, b = a.cpu(), b.cpu()
        return torch.from_numpy(exact_products.round_products(*self.runs([a, b], attributes, chosen), format))

    @abstractmethod
    def runs(self, inputs: Tensors, attributes: Attributes, elements: Index) -> tuple[Runs, Runs, Index, Index]:
        """(runs of a, runs of b, the run of a and that of b of every chosen element, int64[n] each): the element is the
        sum of the products of the two. Inputs on the CPU."""

    def accumulate(self, inputs: Tensors, attributes: Attributes, elements: Index, sums: Index) -> None:
        """Add the products of the chosen elements to these sums of `roundlog.kernels.superaccumulator`; inputs on the
        CPU."""
        exact_products.add_products(sums, *self.runs(inputs, attributes, elements))

    def _exact_by_terms(
        self, a: torch.Tensor, b: torch.Tensor, attributes: Attributes, elements: Index, format: Format
    ) -> npt.NDArray[np.float32]:
        # Once for all blocks.
        a, b = a.contiguous(), b.contiguous()
        shapes = (tuple(a.shape), tuple(b.shape))
        values = np.zeros(len(elements), dtype=np.float32)
        block = block_of(self.terms(shapes, attributes))
        for start in range(0, len(elements), block):
            products = self.listed([a, b], attributes, elements[start : start + block])
            values[start : start + block] = round_sums(products, format)
        return values

    def listed(self, inputs: Tensors, attributes: Attributes, elements: Index) -> F64:
        """float64[n, K]: the products that the chosen elements are sums of, exactly; only they leave the inputs'
        device."""
        a, b = (x.contiguous().view(-1) for x in inputs)
        # Only where numbers lie is asked, so that memory of a device has another one in its place, which nobody reads.
        like = [torch.empty(x.shape) for x in inputs]
        *runs, of_a, of_b = self.runs(like, attributes, elements)
        places = (one.places(of) for one, of in zip(runs, (of_a, of_b), strict=True))
        ia, ib = (torch.from_numpy(where).to(a.device) for where in places)
        products = a[ia].to(torch.float64).mul_(b[ib])
        listed: F64 = products.masked_fill_((ia < 0) | (ib < 0), 0.0).cpu().numpy()
        return listed


def shape_of_product(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a product of two matrices, or of two batches of them. Raises ProgramError if there is none."""
    if len(a) not in (2, 3) or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
        raise ProgramError(f"cannot multiply {list(a)} by {list(b)}")
    return (*a[:-1], b[-1])


def blocked_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: [..., M, K] @ b: [..., K, N], broadcast, in FP64: the blocks' products one after the other, on any device."""
    parts = (
        a[..., start:stop].to(torch.float64) @ b[..., start:stop, :].to(torch.float64)
        for start, stop in blocks(a.shape[-1])
    )
    return reduce(torch.Tensor.add_, parts)


def row_norms(x: torch.Tensor) -> torch.Tensor:
    """f32[..., K] -> f64[...]: Euclidean norms over the last axis."""
    return row_energies(x).sqrt_()


def row_energies(x: torch.Tensor) -> torch.Tensor:
    """f32 or bf16[..., K] -> f64[...]: sums of squares over the last axis. FP32 inputs cannot overflow FP64."""
    if x.device.type != "cpu":
        norm: torch.Tensor = torch.linalg.vector_norm(as_float32(x), dim=-1, dtype=torch.float64)
        return norm.square_()
    parts = (x[..., start:stop].to(torch.float64).square_().sum(-1) for start, stop in blocks(x.shape[-1]))
    return reduce(torch.Tensor.add_, parts)


def column_energies(x: torch.Tensor) -> torch.Tensor:
    """f32 or bf16[..., K, B] -> f64[..., B]: sums of squares over the last axis but one."""
    return row_energies(x.mT)


def product_bound(of_rows: torch.Tensor, of_columns: torch.Tensor, terms: int) -> ProductBound:
    """The bound of a product of so many terms. of_rows, of_columns: sums of squares, f64[.. M] and f64[.., N]."""
    groups = prod(of_columns.shape[:-1]), of_columns.shape[-1]
    return ProductBound(of_rows.sqrt().reshape(-1) * blocked_gamma(terms), of_columns.sqrt().reshape(groups))


@register("matmul")
class MatMul(Contraction, Summation):
    reads_bf16 = True
    least = frozenset([3, 4, 6, 7])

    def output_shape(self, shapes: Shapes, attributes: Attributes) -> tuple[int, ...]:
        return shape_of_product(*shapes)

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        # Products of BF16 read their operands as they are, or copy them with terms side by side; others read FP32.
        short, products = (
            all(kind.dtype.is_short for kind in inputs),
            exact_bytes(output.numel, inputs[0].shape[-1], 128),
        )
        copies = sum(kind.numel * (2 if short and output.dtype.is_short else 4) for kind in inputs)
        lines = 16 * 4 * LINES_AT_ONCE if short else 0
        # Which elements are exact is asked of the lines of all that are marked.
        return copies + products + lines + (2 if short else 1) * MARKED_BYTES * output.numel

    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        return shapes[0][-1]

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        a, b = inputs
        return blocked_product(a, b)

    def measures(self, inputs: Tensors, attributes: Attributes) -> Measures:
        a, b = inputs
        return row_energies(a), column_energies(b), *measure_operands(a, b)

    def bound_of(self, measures: Measures, terms: int) -> ExactOrProductBound:
        """measures: sums of squares of rows and of columns, and `measure_lines` of both."""
        product = product_bound(measures[0], measures[1], terms)
        rows, columns = units_of(measures[2:5]), units_of(measures[5:])
        return ExactOrProductBound(product, rows.reshape(-1), columns.reshape(product.columns.shape))

    def part(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Measures]:
        a, b = inputs
        if a.ndim == 2 and a.device.type == "cpu" and a.numel() and b.numel():
            lines = measure_operands(a, b)
            y, *squared_norms = sum_product(a, b)
            return y, (*squared_norms, *lines)
        return super().part(inputs, attributes)

    def measured(self, part: Types, output: TensorType) -> int:
        return 4 * sum(kind.numel for kind in part) // max(part[0].shape[-1], 1)

    def keeps_bound(self, parts: Sequence[int]) -> bool:
        return parts_keep_chain(parts)

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        a, b = inputs
        if a.device.type != "cpu" or not a.numel() or not b.numel():
            staged = self._certified_in_stages(a, b, scale, FLOAT32) if has_kernels(a.device) else None
            return super().certify(inputs, attributes, scale) if staged is None else staged
        return self._certified(as_float32(a), as_float32(b), scale)

    def certify_short(
        self, inputs: Tensors, attributes: Attributes, scale: float, format: Format
    ) -> tuple[torch.Tensor, Ambiguous] | None:
        a, b = inputs
        if a.device.type != "cpu":
            return self._certified_in_stages(a, b, scale, format) if has_kernels(a.device) else None
        if format != BFLOAT16 or not a.dtype == b.dtype == torch.bfloat16 or not a.numel() or not b.numel():
            return None
        return self._certified(a, b, scale)

    def _certified_in_stages(
        self, a: torch.Tensor, b: torch.Tensor, scale: float, format: Format
    ) -> tuple[torch.Tensor, Ambiguous] | None:
        """`certify` on CUDA, to a format. What integers, or tensor cores, leave in doubt is rounded and marked as FP64
        sums always are. None where FP64 shall take the whole product."""
        terms, columns = a.shape[-1], b.shape[-1]
        if not a.numel() or not b.numel() or a.dtype != b.dtype:
            return None
        # Not at the top: Triton is an optional extra.
        from roundlog.kernels.cuda.bf16_products import LineBounds
        from roundlog.kernels.cuda.integer_products import certify, takes

        if not takes(a.device, a.dtype, terms, format):
            return None
        bound = self.bound_of(self.measures([a, b], {}), terms)
        x, y = (one if one.ndim == 3 else one[None] for one in (a, b))
        rows, others = bound.product.rows.view(len(x), -1), bound.product.columns.contiguous()
        of_lines = LineBounds(rows, others, blocked_gamma(terms), interval_factor(scale))
        found = certify(x, y, of_lines, longest_block(terms), format)
        if found is None:
            return None
        in_doubt = FullBound(bound.at(found.elements, found.sums))
        low, some = mark_by_reference(found.sums, in_doubt, scale, format)
        found.rounded.view(-1)[found.elements] = low
        rounded = found.rounded.view(*a.shape[:-1], columns)
        return rounded, replace(some, indices=found.elements.cpu()[some.indices])

    def _certified(self, a: torch.Tensor, b: torch.Tensor, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        x, y = (one if one.ndim == 3 else one[None] for one in (a, b))
        rounded, marked = certify_product(x, y, scale)
        return rounded.view(*a.shape[:-1], b.shape[-1]), refine_products(marked, a, b)

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        a, b = inputs
        terms, numbers = a.shape[-1], a.numel() + b.numel()
        whole = numbers <= max(LINES_AT_ONCE, len(elements) * terms) and numbers <= 16 * LINES_AT_ONCE
        if a.dtype == torch.float32 or a.device.type != "cpu" or not terms or whole:
            return super().exact(inputs, attributes, elements, format)
        # Only the lines that are asked for become FP32, some at a time: [n, 1, K] times [n, K, 1].
        rows, columns = a.shape[-2], b.shape[-1]
        of_a, of_b = (x if x.ndim == 3 else x[None] for x in (a, b))
        found = []
        for some in elements.split(max(1, LINES_AT_ONCE // terms)):
            batch, row = some // (rows * columns), some // columns % rows
            lines, others = of_a[batch, row][:, None], of_b.mT[batch, some % columns][:, :, None]
            found.append(super().exact([lines, others], attributes, torch.arange(len(some)), format))
        return torch.cat(found)

    def runs(self, inputs: Tensors, attributes: Attributes, elements: Index) -> tuple[Runs, Runs, Index, Index]:
        a, b = (as_float32(x if x.ndim == 3 else x[None]) for x in inputs)
        rows, columns = a.shape[1], b.shape[2]
        line, column = np.divmod(elements, columns)
        column += line // rows * columns
        lines, of_a = numbered(line, len(a) * rows)
        others, of_b = numbered(column, len(b) * columns)
        first_a = int(a.storage_offset()) + lines // rows * a.stride(0) + lines % rows * a.stride(1)
        first_b = int(b.storage_offset()) + others // columns * b.stride(0) + others % columns * b.stride(2)
        return (
            Runs.strided(storage_of(a), first_a, a.shape[2], a.stride(2)),
            Runs.strided(storage_of(b), first_b, a.shape[2], b.stride(1)),
            of_a,
            of_b,
        )

    # No indices.
    moved_a_term = 8

    def listed(self, inputs: Tensors, attributes: Attributes, elements: Index) -> F64:
        a, b = (x if x.ndim == 3 else x[None] for x in inputs)
        batch, row = np.divmod(elements // b.shape[-1], a.shape[-2])
        lines = ((a, batch, row), (b.mT, batch, elements % b.shape[-1]))
        of_a, of_b = (x[tuple(torch.from_numpy(i).to(x.device) for i in where)] for x, *where in lines)
        products: F64 = of_a.to(torch.float64).mul_(of_b).cpu().numpy()
        return products
