"""Resilient backpropagation, which looks at signs of gradients alone."""

from __future__ import annotations

import torch

from roundlog.capture.optimizers.update import Column, Stepped, Tensors, Update, zeros


class Rprop(Update):
    """torch.optim.Rprop (Riedmiller and Braun 1993): every weight's step grows while its gradient keeps its sign. The
    learning rate is where the steps start."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**zeros(p, "prev"), "step_size": torch.full_like(p, self.rate(0))}

    def columns(self) -> dict[str, Column]:
        return {}

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        shorter, longer = (float(eta) for eta in self.group["etas"])
        least, most = (float(size) for size in self.group["step_sizes"])
        # Signs are multiplied, since a product of small gradients underflows, as it does in PyTorch.
        turned = g.sign() * slots["prev"].sign()
        factor = torch.where(turned > 0, longer, torch.where(turned < 0, shorter, 1.0))
        size = (slots["step_size"] * factor).clamp(least, most)
        g = torch.where(turned < 0, 0.0, g)
        return p - g.sign() * size, {"prev": g, "step_size": size}
