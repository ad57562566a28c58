"""Base of every optimizer's update, and the one of optimizers of the user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from roundlog.capture.optimizers.schedule import Rate

Tensors = Mapping[str, torch.Tensor]
Column = Callable[[int], float]
Stepped = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""(next parameter, next slots)"""


class Update(ABC):
    """The update of one parameter group."""

    def __init__(self, group: Mapping[str, Any], rate: Rate) -> None:
        self.group = group
        self.rate = rate

    @abstractmethod
    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        """The optimizer slots of one parameter, as they are before the first step."""

    @abstractmethod
    def columns(self) -> dict[str, Column]:
        """The columns of the schedule table that this group needs: FP64 value by step (0, 1, ...)."""

    @abstractmethod
    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        """(next parameter, next slots) from parameter, gradient, slots and this step's schedule scalars."""

    def apply(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        """The update of `step`, upwards if the group says so (`maximize`)."""
        return self.step(p, -g if self.group.get("maximize") else g, slots, row)

    def counts(self, steps: int) -> bool:
        """Whether the update depends on the number of steps that a parameter has taken, of so many."""
        first = self.rate(0)
        columns = type(self)(self.group, Rate(lambda step: first)).columns().values()
        return any(column(step) != column(0) for column in columns for step in range(1, steps))

    def option(self, name: str, step: int) -> Any:
        """An option of the group at a step: schedules may change some."""
        changing = self.rate.options.get(name)
        return self.group[name] if changing is None else changing(step)

    def changes(self, name: str) -> bool:
        return name in self.rate.options

    def decayed(self, p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """The gradient with that of the weight decay."""
        decay = float(self.group["weight_decay"])
        return g + decay * p if decay else g


class Own(Update):
    """The update of one parameter group of an optimizer of the user's own.

    Its `step()` is traced as it is written, with everything else that a step computes: its state becomes state of the
    program, and numbers of Python that it counts or computes with become columns of the schedule, as those of a model
    do."""

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


def zeros(p: torch.Tensor, *names: str) -> dict[str, torch.Tensor]:
    """Slots that start as zeros of the parameter's shape."""
    return {name: torch.zeros_like(p) for name in names}
