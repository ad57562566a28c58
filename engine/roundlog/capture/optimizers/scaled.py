"""Optimizers that scale a gradient by its own history."""

from __future__ import annotations

import torch

from roundlog.capture.optimizers.update import Column, Stepped, Tensors, Update, zeros


class RMSprop(Update):
    """torch.optim.RMSprop (Hinton 2012), centered or not, with momentum or without."""

    @property
    def _has_momentum(self) -> bool:
        return bool(self.group["momentum"]) or self.changes("momentum")

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        names = ["square_avg"]
        names += ["grad_avg"] if self.group["centered"] else []
        names += ["momentum"] if self._has_momentum else []
        return zeros(p, *names)

    def columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {"lr": self.rate}
        if self.changes("momentum"):
            columns["momentum"] = lambda step: float(self.option("momentum", step))
        return columns

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g, alpha = self.decayed(p, g), float(self.group["alpha"])
        square = alpha * slots["square_avg"] + (1 - alpha) * (g * g)
        following = {"square_avg": square}
        variance = square
        if self.group["centered"]:
            mean = following["grad_avg"] = alpha * slots["grad_avg"] + (1 - alpha) * g
            # Rounding may take it below zero, where PyTorch gives NaN.
            variance = (square - mean * mean).clamp(min=0.0)
        scaled = g / (torch.sqrt(variance) + self.group["eps"])
        if self._has_momentum:
            scaled = following["momentum"] = row.get("momentum", self.group["momentum"]) * slots["momentum"] + scaled
        return p - row["lr"] * scaled, following


class Adagrad(Update):
    """torch.optim.Adagrad (Duchi, Hazan and Singer 2011)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": torch.full_like(p, float(self.group["initial_accumulator_value"]))}

    def columns(self) -> dict[str, Column]:
        return {"lr": lambda step: self.rate(step) / (1.0 + step * float(self.group["lr_decay"]))}

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g = self.decayed(p, g)
        total = slots["sum"] + g * g
        return p - row["lr"] * (g / (torch.sqrt(total) + self.group["eps"])), {"sum": total}


class Adadelta(Update):
    """torch.optim.Adadelta (Zeiler 2012)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "square_avg", "acc_delta")

    def columns(self) -> dict[str, Column]:
        return {"lr": self.rate}

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g, rho, eps = self.decayed(p, g), float(self.group["rho"]), self.group["eps"]
        square = rho * slots["square_avg"] + (1 - rho) * (g * g)
        delta = torch.sqrt(slots["acc_delta"] + eps) / torch.sqrt(square + eps) * g
        moved = rho * slots["acc_delta"] + (1 - rho) * (delta * delta)
        return p - row["lr"] * delta, {"square_avg": square, "acc_delta": moved}
