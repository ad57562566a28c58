"""Normalisation of BF16 and FP16 numbers, in FP32.

PyTorch's kernels on the CPU keep the mean and the reciprocal deviation in FP32 where the weights, or the running
statistics, are FP32, as under autocast, and in the format of the numbers otherwise. Its tensors without numbers say the
second in both cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten

_SHORT = (torch.bfloat16, torch.float16)


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        op: _in_fp32(op)
        for op in (_aten.native_layer_norm.default, _aten.native_group_norm.default, _aten.native_batch_norm.default)
    }


def _in_fp32(op: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: torch.Tensor, *rest: Any) -> Any:
        if x.dtype not in _SHORT:
            return NotImplemented
        wide = [one.float() if isinstance(one, torch.Tensor) else one for one in rest]
        y, mean, rstd = op(x.float(), *wide)
        for own, written in zip(rest, wide, strict=True):
            # Running statistics, which batch norm writes.
            if op is _aten.native_batch_norm.default and own is not written and isinstance(own, torch.Tensor):
                own.copy_(written)
        tensors = [one for one in rest if isinstance(one, torch.Tensor)]
        kept = torch.float32 if any(one.dtype == torch.float32 for one in tensors) else x.dtype
        return y.to(x.dtype), mean.to(kept), rstd.to(kept)

    return apply
