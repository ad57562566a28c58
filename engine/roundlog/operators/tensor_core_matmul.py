"""Products of matrices as a GPU's tensor cores compute them: exact in the sense that they have one result, to the bit,
which any processor can compute. Nothing of them is in doubt, so nothing of them is logged."""

from __future__ import annotations

from math import prod

import torch

from roundlog.arithmetic import as_dtype, round_sums, round_to
from roundlog.definitions.tensor_core import ARITHMETICS, TensorCoreArithmetic
from roundlog.kernels import has_kernels
from roundlog.kernels.tensor_core_products import GroupArithmetic, tensor_core_product
from roundlog.number_format import Format
from roundlog.operators.contraction import shape_of_product
from roundlog.operators.elementwise import convert
from roundlog.operators.registry import Attributes, Direct, Tensors, Types, register, short_bytes
from roundlog.operators.summation import check_terms
from roundlog.program import DType, ProgramError, TensorType

_BLOCK = 1 << 20
"""Segments' results that are widened at once."""


def _named(name: str) -> TensorCoreArithmetic:
    if name not in ARITHMETICS:
        raise ProgramError(f"{name[:40]!r} is no arithmetic of tensor cores: choose {', '.join(ARITHMETICS)}")
    return ARITHMETICS[name]


@register("tensor_core_matmul")
class TensorCoreMatMul(Direct):
    reads_short = True

    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        arithmetic = _named(str(attributes["arithmetic"]))
        a, b = (kind.shape for kind in inputs)
        if inputs[0].dtype not in arithmetic.terms:
            raise ProgramError(f"multiplies {inputs[0].dtype}, for which {arithmetic.name} is not defined")
        shape = shape_of_product(a, b)
        check_terms(a[-1])
        return shape

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        segments = _named(str(attributes["arithmetic"])).segments(inputs[0].shape[-1])
        # The kernel's results, and sums of a block of them in FP64, some of which are taken exactly.
        sums = segments * output.numel
        return short_bytes(inputs, output) + 4 * sums + 64 * min(sums, max(_BLOCK, segments))

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        a, b = inputs
        dtype = DType.of(a.dtype)
        group = GroupArithmetic.of(_named(str(attributes["arithmetic"])), dtype)
        format = dtype.number_format()
        assert format is not None
        # Elements without a value are NaN.
        sums = _sums_there(a, b, str(attributes["arithmetic"])) if has_kernels(a.device) else None
        if sums is None:
            sums = tensor_core_product(a.cpu(), b.cpu(), group).sums
        return _joined(sums, format).to(a.device)


def _sums_there(a: torch.Tensor, b: torch.Tensor, name: str) -> torch.Tensor | None:
    """Segments' results by the device of the operands; None if it does not compute them."""
    # Not at the top: Triton is an optional extra.
    from roundlog.kernels.cuda.tensor_cores import segment_sums

    return segment_sums(a, b, name, DType.of(a.dtype))


def _joined(sums: torch.Tensor, format: Format) -> torch.Tensor:
    """Segments' results, f32[segments, ...] -> their exact sums, rounded once, on their device; a zero is +0. Sums that
    are exact in FP64 are rounded from there, the others by superaccumulators."""
    segments, *shape = sums.shape
    if segments == 1:
        # A number may be rounded to a zero of FP16.
        rounded = convert(sums[0], format)
        return rounded.masked_fill_(rounded == 0, 0.0)
    results = torch.zeros(prod(shape), device=sums.device)
    terms = sums.view(segments, results.numel())
    rows = max(1, _BLOCK // max(segments, 1))
    for start in range(0, results.numel(), rows):
        some = terms[:, start : start + rows]
        total = torch.zeros(some.shape[1], dtype=torch.float64, device=sums.device)
        inexact = torch.zeros(some.shape[1], dtype=torch.bool, device=sums.device)
        for one in some:
            term = one.to(torch.float64)
            after = total + term
            # TwoSum (Knuth): after + error = total + term exactly.
            back = after - total
            error = (total - (after - back)) + (term - back)
            inexact |= (error != 0) & after.isfinite()
            total = after
        rounded = round_to(total, format)
        rest = inexact.nonzero().squeeze(1)
        if len(rest):
            exactly = round_sums(some[:, rest].T.to(torch.float64).cpu().contiguous().numpy(), format)
            rounded[rest] = torch.from_numpy(exactly).to(sums.device)
        results[start : start + rows] = rounded
    return as_dtype(results.view(shape), format)
