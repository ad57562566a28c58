"""Stochastic gradient descent: plain, averaged, by signs of gradients alone (Rprop), and scaled by a gradient's own
history."""

from __future__ import annotations

import torch

from roundlog.arithmetic import is_short
from roundlog.capture.optimizers.update import Column, Stepped, Tensors, Update, added, zeros


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
        if is_short(p.dtype):
            return self._step_short(p, g, slots, row)
        if not self._has_momentum:
            return p - row["lr"] * g, {}
        momentum = row.get("momentum", self.group["momentum"])
        # The first step of PyTorch copies the gradient into the buffer: the same as starting from zeros.
        buffer = momentum * slots["momentum"] + (row["fresh"] * g if "fresh" in row else g)
        g = g + momentum * buffer if self.group["nesterov"] else buffer
        return p - row["lr"] * g, {"momentum": buffer}

    def _step_short(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        """Rounded where PyTorch's operators round. g: with the weight decay."""
        if not self._has_momentum:
            return added(p, g, -row["lr"]), {}
        momentum = row.get("momentum", self.group["momentum"])
        buffer = added(slots["momentum"] * momentum, g, row.get("fresh", 1.0))
        g = added(g, buffer, momentum) if self.group["nesterov"] else buffer
        return added(p, g, -row["lr"]), {"momentum": buffer}


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
