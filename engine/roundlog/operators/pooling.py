"""Max pooling, as the index of the largest element: its value is then a gather, its gradient a scatter_add."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from roundlog.operators.registry import (
    Attributes,
    Direct,
    OperatorKind,
    Tensors,
    Types,
    ints,
    need_attributes,
    need_inputs,
    register,
)
from roundlog.program import DType, ProgramError, TensorType


@register
class MaxPoolIndex(Direct):
    """max_pool_index(x; kernel, stride, padding, dilation): x[N, C, H, W] -> int64[N, C, P, Q], where in its plane
    (row * W + column) the largest element of each window stands (NaN is the largest); of equal ones the first in
    row-major order.
    Padding is never chosen. P = (H + 2 padding - dilation (kernel - 1) - 1) // stride + 1, Q likewise."""

    name = "max_pool_index"
    kind = OperatorKind.EXACT

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.F32)
        need_attributes(attributes, kernel=tuple, stride=tuple, padding=tuple, dilation=tuple)
        x = inputs[0]
        lists = [ints(attributes, name) for name in ("kernel", "stride", "padding", "dilation")]
        if len(x.shape) != 4 or any(len(item) != 2 for item in lists):
            raise ProgramError(f"pools {x} by windows {lists}, expected four axes and pairs")
        if min(x.shape) < 1:
            raise ProgramError(f"pools {x}, which is empty")
        if max(max(item) for item in lists) >= 2**20:
            raise ProgramError("has a kernel, stride, padding or dilation of a million or more")
        sizes = []
        for a, (kernel, stride, padding, dilation) in enumerate(zip(*lists, strict=True)):
            span = x.shape[2 + a] + 2 * padding - dilation * (kernel - 1) - 1
            # Padding of at most half a window, no taps so far apart that they can miss the input from outside: then
            # every window holds at least one real element.
            missed = padding > 0 and dilation > x.shape[2 + a]
            if min(kernel, stride, dilation) < 1 or not 0 <= padding <= kernel // 2 or span < 0 or missed:
                raise ProgramError(f"the windows {lists} do not fit {x}")
            sizes.append(span // stride + 1)
        return TensorType((*x.shape[:2], *sizes), DType.I64)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        kernel, stride, padding, dilation = (
            list(ints(attributes, name)) for name in ("kernel", "stride", "padding", "dilation")
        )

        def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, places = F.max_pool2d(x, kernel, stride, padding, dilation, return_indices=True)
            return values, places

        x = inputs[0]
        values, places = largest(x)
        if not bool(values.isnan().any()):
            return places
        # PyTorch takes the last NaN of a window.
        any_nan, first_nan = largest(x.isnan().to(torch.float32))
        return torch.where(any_nan > 0, first_nan, places)
