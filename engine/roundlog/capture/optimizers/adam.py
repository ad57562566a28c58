"""Adam and what has been made of it, and Adafactor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from roundlog.arithmetic import is_short
from roundlog.capture.optimizers.update import Column, Rate, Stepped, Tensors, Update, zeros


class Moments(Update):
    """Two running means: of the gradient, and of its square. Weights decay by way of the gradient, or by themselves
    (`decoupled_weight_decay`; Loshchilov and Hutter 2019)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "exp_avg", "exp_avg_sq")

    def columns(self) -> dict[str, Column]:
        decay = float(self.group["weight_decay"])
        columns: dict[str, Column] = {"decay": lambda step: 1.0 - self.rate(step) * decay} if self._decays_alone else {}
        if self.changes("betas"):
            for number in (0, 1):
                columns[f"beta{number + 1}"] = lambda step, n=number: self.beta(n, step)  # type: ignore[misc]
                columns[f"rest{number + 1}"] = lambda step, n=number: 1.0 - self.beta(n, step)  # type: ignore[misc]
        return columns

    def beta(self, number: int, step: int) -> float:
        return float(self.option("betas", step)[number])

    def bias(self, number: int, step: int) -> float:
        """Sum of a running mean's weights after a step."""
        return float(1.0 - self.beta(number, step) ** (step + 1))

    def weights(self, number: int, row: Tensors) -> tuple[Any, Any]:
        """Weights of a running mean and of its next item."""
        if self.changes("betas"):
            return row[f"beta{number + 1}"], row[f"rest{number + 1}"]
        beta = float(self.group["betas"][number])
        return beta, 1 - beta

    def moments(self, g: torch.Tensor, slots: Tensors, row: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        keep, add = self.weights(0, row)
        m = keep * slots["exp_avg"] + add * g
        keep, add = self.weights(1, row)
        return m, keep * slots["exp_avg_sq"] + add * (g * g)

    @property
    def _decays_alone(self) -> bool:
        """Whether weights decay, and not by way of the gradient."""
        return bool(self.group["weight_decay"] and self.group.get("decoupled_weight_decay"))

    def gradient(self, p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return g if self._decays_alone else self.decayed(p, g)

    def shrunk(self, p: torch.Tensor, row: Tensors) -> torch.Tensor:
        return p * row["decay"] if self._decays_alone else p


class Adam(Moments):
    """torch.optim.Adam (Kingma and Ba 2015) and torch.optim.AdamW, with amsgrad (Reddi, Kale and Kumar 2018)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**super().slots(p), **(zeros(p, "max_exp_avg_sq") if self.group["amsgrad"] else {})}

    def columns(self) -> dict[str, Column]:
        return {
            **super().columns(),
            "step_size": lambda step: self.rate(step) / self.bias(0, step),
            "bias2_sqrt": lambda step: self.bias(1, step) ** 0.5,
        }

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        if is_short(p.dtype):
            return self._step_short(p, g, slots, row)
        m, v = self.moments(self.gradient(p, g), slots, row)
        following = {"exp_avg": m, "exp_avg_sq": v}
        if self.group["amsgrad"]:
            v = following["max_exp_avg_sq"] = torch.maximum(slots["max_exp_avg_sq"], v)
        denominator = torch.sqrt(v) / row["bias2_sqrt"] + self.group["eps"]
        return self.shrunk(p, row) - row["step_size"] * (m / denominator), following

    def _step_short(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        """Rounded where PyTorch's operators round: `lerp_`, `mul_`, `addcmul_`, `sqrt`, `div`, `add_`, `addcdiv_`."""
        dtype, p = p.dtype, self.shrunk(p, row)
        g, m = self.gradient(p, g).float(), slots["exp_avg"].float()
        (_, add), (keep, of_square) = self.weights(0, row), self.weights(1, row)
        m = (m + add * (g - m)).to(dtype)
        v = ((slots["exp_avg_sq"] * keep).float() + of_square * g * g).to(dtype)
        following = {"exp_avg": m, "exp_avg_sq": v}
        if self.group["amsgrad"]:
            v = following["max_exp_avg_sq"] = torch.maximum(slots["max_exp_avg_sq"], v)
        denominator = torch.sqrt(v) / row["bias2_sqrt"] + self.group["eps"]
        return (p.float() - row["step_size"] * m.float() / denominator.float()).to(dtype), following


class NAdam(Moments):
    """torch.optim.NAdam (Dozat 2016): Nesterov momentum, whose weight grows from step to step."""

    def __init__(self, group: Mapping[str, Any], rate: Rate) -> None:
        super().__init__(group, rate)
        self._products = [1.0]

    def _weight(self, step: int, ahead: int = 0) -> float:
        power = (step + 1 + ahead) * self.group["momentum_decay"]
        return self.beta(0, step) * (1.0 - 0.5 * float(0.96**power))

    def _product(self, step: int) -> float:
        """Product of the weights of all steps so far."""
        while len(self._products) <= step + 1:
            self._products.append(self._products[-1] * self._weight(len(self._products) - 1))
        return self._products[step + 1]

    def columns(self) -> dict[str, Column]:
        def of_mean(step: int) -> float:
            ahead = self._weight(step, 1)
            return self.rate(step) * ahead / (1.0 - self._product(step) * ahead)

        return {
            **super().columns(),
            "bias2": lambda step: self.bias(1, step),
            "of_gradient": lambda step: self.rate(step) * (1.0 - self._weight(step)) / (1.0 - self._product(step)),
            "of_mean": of_mean,
        }

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g = self.gradient(p, g)
        m, v = self.moments(g, slots, row)
        denominator = torch.sqrt(v / row["bias2"]) + self.group["eps"]
        p = self.shrunk(p, row) - row["of_gradient"] * (g / denominator)
        return p - row["of_mean"] * (m / denominator), {"exp_avg": m, "exp_avg_sq": v}


class RAdam(Moments):
    """torch.optim.RAdam (Liu et al. 2020): in the first steps, whose variance is not known well, plain momentum."""

    def _rectified(self, step: int) -> float:
        """The factor of the steps that are scaled; 0 in the first ones."""
        beta, bias = self.beta(1, step), self.bias(1, step)
        whole = 2 / (1 - beta) - 1
        length = whole - 2 * (step + 1) * beta ** (step + 1) / bias
        if length <= 5:
            return 0.0
        ratio = (length - 4) * (length - 2) * whole / ((whole - 4) * (whole - 2) * length)
        return float((ratio * bias) ** 0.5)

    def columns(self) -> dict[str, Column]:
        return {
            **super().columns(),
            "scaled": lambda step: self._rectified(step) * self.rate(step) / self.bias(0, step),
            "plain": lambda step: 0.0 if self._rectified(step) else self.rate(step) / self.bias(0, step),
        }

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        m, v = self.moments(self.gradient(p, g), slots, row)
        p = self.shrunk(p, row) - row["plain"] * m
        return p - row["scaled"] * (m / (torch.sqrt(v) + self.group["eps"])), {"exp_avg": m, "exp_avg_sq": v}


class Adamax(Moments):
    """torch.optim.Adamax (Kingma and Ba 2015): scaled by the largest gradient, which fades."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "exp_avg", "exp_inf")

    def columns(self) -> dict[str, Column]:
        return {**super().columns(), "step_size": lambda step: self.rate(step) / self.bias(0, step)}

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g = self.decayed(p, g)
        keep, add = self.weights(0, row)
        m = keep * slots["exp_avg"] + add * g
        largest = torch.maximum(self.weights(1, row)[0] * slots["exp_inf"], g.abs() + self.group["eps"])
        return p - row["step_size"] * (m / largest), {"exp_avg": m, "exp_inf": largest}


class Adafactor(Update):
    """torch.optim.Adafactor (Shazeer and Stern 2018)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        if p.ndim < 2:
            return zeros(p, "variance")
        return {"row_var": torch.zeros_like(p[..., :1]), "col_var": torch.zeros_like(p[..., :1, :])}

    def columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {
            "fresh": lambda step: float((step + 1.0) ** self.group["beta2_decay"]),
            "rho": lambda step: min(self.rate(step), (step + 1.0) ** -0.5),
        }
        decay = float(self.group["weight_decay"])
        if decay:
            columns["decay"] = lambda step: 1.0 - self.rate(step) * decay
        return columns

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        eps1, eps2 = self.group["eps"]
        eps1 = torch.finfo(torch.float32).eps if eps1 is None else float(eps1)
        size = row["rho"] * _root_mean_square(p).clamp(min=float(eps2))
        if "decay" in row:
            p = p * row["decay"]
        squares = g * g
        if p.ndim < 2:
            variance = slots["variance"] + row["fresh"] * (squares - slots["variance"])
            following = {"variance": variance}
        else:
            rows = slots["row_var"] + row["fresh"] * (squares.mean(-1, keepdim=True) - slots["row_var"])
            columns = slots["col_var"] + row["fresh"] * (squares.mean(-2, keepdim=True) - slots["col_var"])
            following = {"row_var": rows, "col_var": columns}
            variance = rows * columns / rows.mean(-2, keepdim=True).clamp(min=eps1)
        update = g / torch.sqrt(variance.clamp(min=eps1 * eps1))
        longest = (_root_mean_square(update) / float(self.group["d"])).clamp(min=1.0)
        return p - (size / longest) * update, following


def _root_mean_square(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt((x * x).sum()) / float(x.numel() ** 0.5)
