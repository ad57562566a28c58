"""Where a step has to be finite, and whether it is: at the loss and in the next state. Inside of a step infinities and
NaN flow as IEEE 754 has them."""

from __future__ import annotations

import torch

from roundlog.kernels import reducing
from roundlog.program import DType, Program


def ends_finite(program: Program) -> list[bool]:
    """For every operator, whether the step stops unless it gets finite numbers: the loss, and every store but those
    that keep what their slot held (the infinities of a causal mask, for instance)."""
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
    """Checks that nobody waits for: on a device, the host would wait for every one of them otherwise."""

    def __init__(self) -> None:
        self._sums: list[torch.Tensor] = []
        self._bad: list[torch.Tensor] = []

    def about(self, x: torch.Tensor) -> None:
        """Whether x, FP32, is finite."""
        # In FP64 a sum of finite FP32 numbers cannot overflow.
        self._sums.append(x.sum(dtype=torch.float64))

    def unless_none(self, bad: torch.Tensor) -> None:
        """Whether none of these is true."""
        self._bad.append(bad.any())

    def confirmed(self) -> bool:
        """Whether any of it is not as it should be."""
        seen = [~torch.stack(self._sums).isfinite().all()] if self._sums else []
        return bool(torch.stack(seen + self._bad).any()) if seen or self._bad else False
