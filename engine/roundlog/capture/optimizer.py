"""Optimizer updates as plain tensor arithmetic, so that they are captured like everything else.

What PyTorch computes with Python floats at every step (learning rates, Adam's bias corrections) becomes a column of
the schedule table: computed once, in FP64, rounded to FP32, and from then on data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from roundlog.capture.errors import CaptureError

Tensors = Mapping[str, torch.Tensor]
Column = Callable[[int], float]


class Update(ABC):
    """The update of one parameter group."""

    def __init__(self, group: Mapping[str, Any], factor: Callable[[int], float]) -> None:
        self.group = group
        self.factor = factor

    def rate(self, step: int) -> float:
        return float(self.group["lr"]) * self.factor(step)

    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Names of the optimizer slots of one parameter; each starts as zeros of its shape."""

    @abstractmethod
    def columns(self) -> dict[str, Column]:
        """The columns of the schedule table that this group needs: FP64 value by step (0, 1, ...)."""

    @abstractmethod
    def apply(
        self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(next parameter, next slots) from parameter, gradient, slots and this step's schedule scalars."""


class SGD(Update):
    """torch.optim.SGD: momentum, Nesterov momentum, weight decay; no dampening."""

    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.group["momentum"] else ()

    def columns(self) -> dict[str, Column]:
        return {"lr": self.rate}

    def apply(
        self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        momentum, decay = self.group["momentum"], self.group["weight_decay"]
        if decay:
            g = g + decay * p
        if not momentum:
            return p - row["lr"] * g, {}
        # The first step of PyTorch copies the gradient into the buffer: the same as starting from zeros.
        buffer = momentum * slots["momentum"] + g
        g = g + momentum * buffer if self.group["nesterov"] else buffer
        return p - row["lr"] * g, {"momentum": buffer}


class AdamW(Update):
    """torch.optim.AdamW (Loshchilov and Hutter 2019), without amsgrad."""

    def slots(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def columns(self) -> dict[str, Column]:
        beta1, beta2 = self.group["betas"]
        decay = float(self.group["weight_decay"])
        return {
            "decay": lambda step: 1.0 - self.rate(step) * decay,
            "step_size": lambda step: self.rate(step) / (1.0 - beta1 ** (step + 1)),
            "bias2_sqrt": lambda step: (1.0 - beta2 ** (step + 1)) ** 0.5,
        }

    def apply(
        self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        beta1, beta2 = self.group["betas"]
        m = beta1 * slots["exp_avg"] + (1 - beta1) * g
        v = beta2 * slots["exp_avg_sq"] + (1 - beta2) * (g * g)
        denominator = torch.sqrt(v) / row["bias2_sqrt"] + self.group["eps"]
        return p * row["decay"] - row["step_size"] * (m / denominator), {"exp_avg": m, "exp_avg_sq": v}


_UPDATES: dict[type, type[Update]] = {torch.optim.SGD: SGD, torch.optim.AdamW: AdamW}
_UNSUPPORTED = ("dampening", "amsgrad", "maximize", "differentiable")


def updates(optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> list[Update]:
    """One update per parameter group. Raises CaptureError for an optimizer or option that is not supported."""
    kind = _UPDATES.get(type(optimizer))
    if kind is None:
        known = " or ".join(f"torch.optim.{cls.__name__}" for cls in _UPDATES)
        raise CaptureError(f"the optimizer {type(optimizer).__name__} is not supported: use {known}")
    if optimizer.state:
        raise CaptureError("the optimizer has already taken steps: capture with a fresh one")
    for group in optimizer.param_groups:
        for option in _UNSUPPORTED:
            if group.get(option):
                raise CaptureError(f"{type(optimizer).__name__}'s option {option} is not supported: leave it off")
    return [kind(group, factor) for group in optimizer.param_groups]
