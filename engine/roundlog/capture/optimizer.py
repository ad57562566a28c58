"""Optimizer updates as plain tensor arithmetic, so that they are captured like everything else.

What PyTorch computes with Python floats at every step (learning rates, Adam's bias corrections) becomes a column of
the schedule table: computed once, in FP64, rounded to FP32, and from then on data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from roundlog.capture.errors import CaptureError
from roundlog.capture.schedule import Factor, Rate, rates

Tensors = Mapping[str, torch.Tensor]
Column = Callable[[int], float]


class Update(ABC):
    """The update of one parameter group."""

    def __init__(self, group: Mapping[str, Any], rate: Rate) -> None:
        self.group = group
        self.rate = rate

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


class Adam(Update):
    """torch.optim.Adam (Kingma and Ba 2015), whose weight decay is part of the gradient, and torch.optim.AdamW
    (Loshchilov and Hutter 2019), whose is not; without amsgrad."""

    def slots(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def columns(self) -> dict[str, Column]:
        beta1, beta2 = self.group["betas"]
        decay = float(self.group["weight_decay"])
        decays: dict[str, Column] = {"decay": lambda step: 1.0 - self.rate(step) * decay}
        return {
            **(decays if self._decays_alone else {}),
            "step_size": lambda step: self.rate(step) / (1.0 - beta1 ** (step + 1)),
            "bias2_sqrt": lambda step: (1.0 - beta2 ** (step + 1)) ** 0.5,
        }

    def apply(
        self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        beta1, beta2 = self.group["betas"]
        if self.group["weight_decay"] and not self._decays_alone:
            g = g + self.group["weight_decay"] * p
        m = beta1 * slots["exp_avg"] + (1 - beta1) * g
        v = beta2 * slots["exp_avg_sq"] + (1 - beta2) * (g * g)
        denominator = torch.sqrt(v) / row["bias2_sqrt"] + self.group["eps"]
        if self._decays_alone:
            p = p * row["decay"]
        return p - row["step_size"] * (m / denominator), {"exp_avg": m, "exp_avg_sq": v}

    @property
    def _decays_alone(self) -> bool:
        """Whether weights decay, and not by way of the gradient."""
        return bool(self.group["weight_decay"] and self.group["decoupled_weight_decay"])


def clip_factor(gradients: Iterable[torch.Tensor], max_norm: float) -> torch.Tensor:
    """What clipping multiplies every gradient by: min(1, max_norm / (norm + 1e-6)), norm being the Euclidean one of all
    of them together, as torch.nn.utils.clip_grad_norm_ does it (Pascanu, Mikolov, Bengio 2013)."""
    squares = torch.stack([(g * g).sum() for g in gradients])
    return (max_norm / (torch.sqrt(squares.sum()) + 1e-6)).clamp(max=1.0)


_UPDATES: dict[type, type[Update]] = {torch.optim.SGD: SGD, torch.optim.Adam: Adam, torch.optim.AdamW: Adam}
_UNSUPPORTED = ("dampening", "amsgrad", "maximize", "differentiable")


def updates(optimizer: torch.optim.Optimizer, schedule: Factor | LRScheduler, steps: int) -> list[Update]:
    """One update per parameter group, for so many steps. Raises CaptureError for an optimizer, option or schedule that
    is not supported."""
    kind = _UPDATES.get(type(optimizer))
    if kind is None:
        known = ", ".join(f"torch.optim.{cls.__name__}" for cls in _UPDATES)
        raise CaptureError(f"the optimizer {type(optimizer).__name__} is not supported: use one of {known}")
    if optimizer.state:
        raise CaptureError("the optimizer has already taken steps: capture with a fresh one")
    for group in optimizer.param_groups:
        for option in _UNSUPPORTED:
            if group.get(option):
                raise CaptureError(f"{type(optimizer).__name__}'s option {option} is not supported: leave it off")
    return [
        kind(group, rate) for group, rate in zip(optimizer.param_groups, rates(optimizer, schedule, steps), strict=True)
    ]
