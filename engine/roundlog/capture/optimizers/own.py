"""Optimizers of the user's own: their steps are traced as they are written, with everything else that a step computes.

Their state becomes state of the program, and numbers of Python that they count or compute with become columns of the
schedule, as those of a model do."""

from __future__ import annotations

import torch

from roundlog.capture.optimizers.update import Column, Stepped, Tensors, Update


class Own(Update):
    """The update of one parameter group, which the optimizer's own `step()` makes."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def columns(self) -> dict[str, Column]:
        return {}

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        raise NotImplementedError


def is_own(optimizer: object) -> bool:
    """Whether an optimizer's step is traced as it is written: neither its class nor its step are torch's."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return False
    kind = type(optimizer)
    homes = (kind.__module__, getattr(kind.step, "__module__", ""))
    return not any(str(home).startswith("torch.") for home in homes)
