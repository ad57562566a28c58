"""Averaged stochastic gradient descent."""

from __future__ import annotations

import torch

from roundlog.capture.optimizers.update import Column, Stepped, Tensors, Update, zeros


class ASGD(Update):
    """torch.optim.ASGD (Polyak and Juditsky 1992): slot `ax` is the mean of the parameter since step t0."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "ax")

    def _rate(self, step: int) -> float:
        """Rate that the step before has left; the first one's is the learning rate."""
        if not step:
            return self.rate(0)
        rate, lambd = self.rate(step - 1), float(self.group["lambd"])
        return rate / float((1.0 + lambd * rate * step) ** self.group["alpha"])

    def _share(self, step: int) -> float:
        return 1.0 / max(1.0, step - float(self.group["t0"]))

    def columns(self) -> dict[str, Column]:
        return {
            "lr": self._rate,
            "decay": lambda step: 1.0 - float(self.group["lambd"]) * self._rate(step),
            "share": self._share,
            "rest": lambda step: 1.0 - self._share(step),
        }

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        p = row["decay"] * p - row["lr"] * self.decayed(p, g)
        return p, {"ax": row["rest"] * slots["ax"] + row["share"] * p}
