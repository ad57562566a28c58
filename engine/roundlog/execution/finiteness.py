"""Finiteness checks of a step. The loss and the next state have to be finite; other values may be infinite or NaN."""

from __future__ import annotations

import torch

from roundlog.kernels import reducing
from roundlog.program import DType, Program


def ends_finite(program: Program) -> list[bool]:
    """For every operator, whether the step stops unless the operator's input is finite. These are the loss and every
    store, except stores that keep the value of their slot (such as the infinities of a causal mask)."""
    return [
        node.op == "loss" or (node.op == "store" and node.type.dtype == DType.F32 and not program.keeps_slot(index))
        for index, node in enumerate(program.nodes)
    ]


def all_finite(x: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    if x.dtype != torch.float32:
        return True
    if x.device.type == "cpu" and x.is_contiguous():
        return reducing.all_finite(x.reshape(-1).numpy())
    return bool(x.isfinite().all())


class DeferredChecks:
    """Finiteness checks deferred to one synchronisation a step. On a device, the host would otherwise wait for each."""

    def __init__(self) -> None:
        self._sums: list[torch.Tensor] = []
        self._bad: list[torch.Tensor] = []

    def about(self, x: torch.Tensor) -> None:
        """Defers the check that x, FP32, is finite."""
        # In FP64 a sum of finite FP32 numbers cannot overflow.
        self._sums.append(x.sum(dtype=torch.float64))

    def unless_none(self, bad: torch.Tensor) -> None:
        """Defers the check that no element of `bad` is true."""
        self._bad.append(bad.any())

    def confirmed(self) -> bool:
        """Whether any deferred check fails. Waits for the device."""
        seen = [~torch.stack(self._sums).isfinite().all()] if self._sums else []
        return bool(torch.stack(seen + self._bad).any()) if seen or self._bad else False
