"""Stochastic gradient descent."""

from __future__ import annotations

import torch

from roundlog.capture.optimizers.update import Column, Stepped, Tensors, Update, zeros


class SGD(Update):
    """torch.optim.SGD: momentum, Nesterov momentum, dampening, weight decay."""

    @property
    def _has_momentum(self) -> bool:
        return bool(self.group["momentum"]) or self.changes("momentum")

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "momentum") if self._has_momentum else {}

    def columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {"lr": self.rate}
        if self.changes("momentum"):
            columns["momentum"] = lambda step: float(self.option("momentum", step))
        if self._has_momentum and self.group["dampening"]:
            # The first step of PyTorch copies the gradient into the buffer, undampened.
            columns["fresh"] = lambda step: 1.0 - float(self.group["dampening"]) if step else 1.0
        return columns

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g = self.decayed(p, g)
        if not self._has_momentum:
            return p - row["lr"] * g, {}
        momentum = row.get("momentum", self.group["momentum"])
        # The first step of PyTorch copies the gradient into the buffer: the same as starting from zeros.
        buffer = momentum * slots["momentum"] + (row["fresh"] * g if "fresh" in row else g)
        g = g + momentum * buffer if self.group["nesterov"] else buffer
        return p - row["lr"] * g, {"momentum": buffer}
