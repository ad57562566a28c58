"""Base of every optimizer's update, the update of optimizers of the user's own, and learning rates by step: a factor
like `LambdaLR`'s, or a scheduler of torch.optim.lr_scheduler, as a table."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from roundlog.arithmetic import is_short
from roundlog.capture.errors import CaptureError, reason

Factor = Callable[[int], float]

_CYCLED = ("momentum", "betas")
"""Options that OneCycleLR and CyclicLR change with the learning rate."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Options of one parameter group, as a schedule sets them."""

    rate: Callable[[int], float]
    options: dict[str, Callable[[int], Any]] = field(default_factory=dict)
    """Options that change: name -> value at a step."""

    def __call__(self, step: int) -> float:
        """The learning rate at a step (0, 1, ...)."""
        return self.rate(step)

    def at(self, step: int) -> dict[str, Any]:
        """Options that change, as entries of the parameter group."""
        return {"lr": self.rate(step), **{name: option(step) for name, option in self.options.items()}}

    def changing(self, steps: int) -> list[str]:
        """The entries that are not the same at all of so many steps."""
        first = self.at(0)
        return [name for name in first if any(self.at(step)[name] != first[name] for step in range(1, steps))]


def rates(optimizer: torch.optim.Optimizer, schedule: Factor | LRScheduler, steps: int) -> list[Rate]:
    """The learning rate of every parameter group at steps 0 .. steps - 1. A scheduler is one whose `step()` is called
    once after every step of the optimizer; it and the optimizer stay as they are.

    Raises CaptureError for a schedule that depends on more than the step, or that is not the optimizer's own."""
    if isinstance(schedule, LRScheduler):
        table = _table(optimizer, schedule, steps)
        return [_of_table([row[number] for row in table]) for number in range(len(optimizer.param_groups))]
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise CaptureError("the optimizer has a learning rate scheduler of its own: give that as the task's schedule")
    return [
        Rate(lambda step, rate=float(group["lr"]): rate * _value(schedule, step))  # type: ignore[misc]
        for group in optimizer.param_groups
    ]


def _value(schedule: Factor, step: int) -> float:
    try:
        return float(schedule(step))
    except Exception as error:
        raise CaptureError(f"the schedule fails at step {step} with {type(error).__name__}: {reason(error)}") from error


def _of_table(rows: list[dict[str, Any]]) -> Rate:
    changing = [name for name in rows[0] if name != "lr" and any(row[name] != rows[0][name] for row in rows)]
    return Rate(
        lambda step: float(rows[step]["lr"]),
        {name: lambda step, name=name: rows[step][name] for name in changing},  # type: ignore[misc]
    )


def _table(optimizer: torch.optim.Optimizer, schedule: LRScheduler, steps: int) -> list[list[dict[str, Any]]]:
    """[step][group]: the learning rate, and the options that may change, as the scheduler sets them."""
    name = type(schedule).__name__
    if isinstance(schedule, ReduceLROnPlateau):
        raise CaptureError(f"the schedule {name} depends on the loss: take one that depends on the step alone")
    if getattr(schedule, "optimizer", None) is not optimizer:
        raise CaptureError(f"the schedule {name} belongs to another optimizer: make it with the task's optimizer")
    # Chained schedulers have no count of their own.
    counted: Any = schedule if hasattr(schedule, "last_epoch") else vars(schedule)["_schedulers"][0]
    if counted.last_epoch != 0:
        raise CaptureError(f"the schedule {name} has already taken steps: capture with a fresh one")
    # A copy is what takes the steps; a scheduler never looks at parameters, which may be large.
    small: dict[int, Any] = {id(p): torch.zeros(()) for group in optimizer.param_groups for p in group["params"]}
    try:
        schedule = copy.deepcopy(schedule, small)
        groups = schedule.optimizer.param_groups
        options = _other_options(groups)
        table = []
        for step in range(steps):
            table.append([_changeable(group) for group in groups])
            if _other_options(groups) != options:
                raise CaptureError(
                    f"the schedule {name} changes more than learning rates and momenta at step {step}: leave the other "
                    "options as they are"
                )
            if step + 1 < steps:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of an optimizer that takes no steps
                    schedule.step()
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(f"the schedule {name} cannot be followed for {steps} steps: {reason(error)}") from error
    return table


def _changeable(group: dict[str, Any]) -> dict[str, Any]:
    momenta = {name: group[name] for name in _CYCLED if name in group}
    return {"lr": float(group["lr"]), **{k: tuple(v) if k == "betas" else v for k, v in momenta.items()}}


def _other_options(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Options that a schedule may not change. Its own notes have these names: initial_lr, min_lr, max_lr, ..."""
    return [
        {key: group[key] for key in group if key not in ("params", *_CYCLED) and not key.endswith("lr")}
        for group in groups
    ]


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
        if is_short(p.dtype):
            return added(g, p, decay) if decay else g
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


def added(x: torch.Tensor, y: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    """x + factor y of short numbers, as `x.add(y, alpha=factor)` of PyTorch's on the CPU: the factor is rounded to the
    format first, and the product is not. So PyTorch's loop over vectors has it; its loop over the rest, what is left of
    a tensor's elements after the last 32 of them, rounds the product, too. factor: a number, or f32[]."""
    if not isinstance(factor, torch.Tensor):
        factor = torch.tensor(factor, dtype=torch.float32)
    return (x.float() + factor.to(x.dtype).float() * y.float()).to(x.dtype)


def zeros(p: torch.Tensor, *names: str) -> dict[str, torch.Tensor]:
    """Slots that start as zeros of the parameter's shape."""
    return {name: torch.zeros_like(p) for name in names}
