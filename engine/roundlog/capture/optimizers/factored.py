"""Adafactor, which keeps a matrix of squares as a row and a column."""

from __future__ import annotations

import torch

from roundlog.capture.optimizers.update import Column, Stepped, Tensors, Update, zeros


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
