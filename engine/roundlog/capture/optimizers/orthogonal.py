"""Muon, whose updates are nearly orthogonal matrices."""

from __future__ import annotations

from math import sqrt

import torch

from roundlog.capture.optimizers.update import Column, Stepped, Tensors, Update, zeros


class Muon(Update):
    """torch.optim.Muon (Jordan et al. 2024), of matrices. PyTorch iterates in bfloat16, whose errors of a hundredth
    the method bears; here, as everything, in FP32."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "momentum")

    def columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {"lr": self.rate}
        if self.changes("momentum"):
            columns["momentum"] = lambda step: float(self.option("momentum", step))
            columns["rest"] = lambda step: 1.0 - float(self.option("momentum", step))
        decay = float(self.group["weight_decay"])
        if decay:
            columns["decay"] = lambda step: 1.0 - self.rate(step) * decay
        return columns

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        momentum = row.get("momentum", self.group["momentum"])
        rest = row["rest"] if "rest" in row else 1.0 - float(self.group["momentum"])
        buffer = momentum * slots["momentum"] + rest * g
        update = rest * g + momentum * buffer if self.group["nesterov"] else buffer
        update = self._factor(p) * self._orthogonal(update)
        if "decay" in row:
            p = p * row["decay"]
        return p - row["lr"] * update, {"momentum": buffer}

    def _factor(self, p: torch.Tensor) -> float:
        rows, columns = p.shape
        if self.group["adjust_lr_fn"] == "match_rms_adamw":
            return 0.2 * sqrt(max(rows, columns))
        return sqrt(max(1.0, rows / columns))

    def _orthogonal(self, x: torch.Tensor) -> torch.Tensor:
        """The nearly orthogonal matrix that Newton and Schulz's iteration makes of x."""
        a, b, c = (float(number) for number in self.group["ns_coefficients"])
        is_tall = x.shape[0] > x.shape[1]
        x = x.t() if is_tall else x
        x = x / torch.sqrt((x * x).sum()).clamp(min=float(self.group["eps"]))
        for _ in range(int(self.group["ns_steps"])):
            gram = x @ x.t()
            x = a * x + (b * gram + c * (gram @ gram)) @ x
        return x.t() if is_tall else x
