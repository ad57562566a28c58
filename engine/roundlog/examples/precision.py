"""The precision of an example: FP32, or BF16 under autocast, as scripts use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from roundlog.capture import CaptureError

Loss = Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]

FP32, BF16 = "fp32", "bf16"


def computed_in(precision: str, loss: Loss) -> Loss:
    """A loss in "fp32" as it is; in "bf16" under `torch.autocast`: parameters and the loss stay FP32. Raises
    CaptureError for any other word."""
    if precision == FP32:
        return loss
    if precision != BF16:
        raise CaptureError(f"a precision of {precision!r} is not known: choose {FP32} or {BF16}")

    def under_autocast(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    return under_autocast
