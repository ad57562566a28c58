"""Optimizers of a task that are taken in turn within a step, each with its loss."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from roundlog.capture.errors import CaptureError, a_kind
from roundlog.capture.optimizers.schedule import Factor

Loss = Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]

Part = TypeVar("Part")

Several: TypeAlias = Sequence[Part] | Mapping[str, Part] | Part
"""One thing, or one for each of several optimizers: in their order, or by their names."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One optimizer's part of a step: its loss, the gradients of its own parameters, and its update."""

    key: str
    """Its place among several, as in `optimizer[0]`; empty if there is one optimizer."""
    loss: Loss
    optimizer: torch.optim.Optimizer
    schedule: Factor | LRScheduler
    max_grad_norm: float | None

    def called(self, part: str) -> str:
        """A part of it in the words of the task: `loss`, or `loss[0]`."""
        return f"{part}{self.key}"


def turns_of(
    loss: Several[Loss],
    optimizer: Several[torch.optim.Optimizer],
    schedule: Several[Factor | LRScheduler],
    max_grad_norm: Several[float | None],
) -> list[Turn]:
    """The turns of a step, in order. A schedule that is a function, and a number to clip by, may be given once for all.

    Raises CaptureError, in one sentence, for parts that do not belong together or are of another kind."""
    keys = _keys(optimizer)
    parts = {
        "loss": _each("loss", loss, keys, "the loss of each, in their order"),
        "optimizer": _each("optimizer", optimizer, keys, "at least one"),
        "schedule": _each("schedule", schedule, keys, "one of each, or one function of the step for all"),
        "max_grad_norm": _each("max_grad_norm", max_grad_norm, keys, "one of each, or one for all"),
    }
    turns = [
        Turn("" if key is None else f"[{key!r}]", *(part[number] for part in parts.values()))
        for number, key in enumerate(keys)
    ]
    first: dict[int, str] = {}
    for turn in turns:
        _check(turn)
        name = turn.called("optimizer")
        if (other := first.setdefault(id(turn.optimizer), name)) != name:
            raise CaptureError(f"{other} and {name} are one optimizer, and each takes one turn in a step: give it once")
    return turns


def _keys(optimizer: object) -> list[Any]:
    """Places of the optimizers; None for a single one. Raises CaptureError if there is none."""
    if isinstance(optimizer, Mapping):
        keys = list(optimizer)
    elif isinstance(optimizer, (list, tuple)):
        keys = list(range(len(optimizer)))
    else:
        return [None]
    if not keys:
        raise CaptureError("there is no optimizer: give at least one, with its loss")
    if isinstance(optimizer, Mapping) and (odd := [key for key in keys if not isinstance(key, str)]):
        raise CaptureError(f"the optimizer {odd[0]!r} has a name that is no text: give it a str")
    return keys


def _each(name: str, part: Any, keys: list[Any], wanted: str) -> list[Any]:
    """The items that are given, one for each optimizer. Raises CaptureError unless it fits them."""
    several = isinstance(part, (Mapping, list, tuple))
    if keys == [None]:
        if several:
            raise CaptureError(f"the {name} is {a_kind(part)}, and there is one optimizer: give one {name}")
        return [part]
    if not several and name in ("schedule", "max_grad_norm") and not isinstance(part, LRScheduler):
        return [part] * len(keys)
    if not several:
        raise CaptureError(f"there are {len(keys)} optimizers, and one {name}: give {wanted}")
    if isinstance(part, Mapping) != isinstance(keys[0], str):
        raise CaptureError(f"the optimizers and the {name} are given in two ways: give lists, or names for both")
    have = list(part) if isinstance(part, Mapping) else list(range(len(part)))
    if len(have) != len(keys):
        raise CaptureError(f"there are {len(keys)} optimizers, and {len(have)} of {name}: give {wanted}")
    if missing := [key for key in keys if key not in have]:
        raise CaptureError(f"the optimizer {missing[0]!r} has no {name} of that name: give {wanted}")
    return [part[key] for key in keys]


def _check(turn: Turn) -> None:
    name, optimizer = turn.called("optimizer"), turn.optimizer
    if isinstance(optimizer, type):
        raise CaptureError(f"the {name} is the class {optimizer.__name__} itself: give {_OPTIMIZER}, made of it")
    name, loss = turn.called("loss"), turn.loss
    if not callable(loss):
        raise CaptureError(f"the {name} is {a_kind(loss)}: {_LOSS}")
    if _is_of_torch(loss):
        called = getattr(loss, "__name__", type(loss).__name__)
        raise CaptureError(f"the {name} {called} of torch.nn takes tensors, not a model and a batch: {_LOSS}")
    if isinstance(loss, type) or not _takes_two(loss):
        raise CaptureError(f"the {name} cannot be called with a model and a batch: {_LOSS}")
    name, schedule = turn.called("schedule"), turn.schedule
    if not callable(schedule) and not isinstance(schedule, LRScheduler):
        raise CaptureError(
            f"the {name} is {a_kind(schedule)}: give a function of the step, or a scheduler of torch.optim.lr_scheduler"
        )
    name, norm = turn.called("max_grad_norm"), turn.max_grad_norm
    if norm is not None and (type(norm) not in (int, float) or not 0 < norm < math.inf):
        raise CaptureError(f"{name} is {norm!r}: give a finite number above 0, or None")


_OPTIMIZER = "an optimizer of torch.optim"

_LOSS = 'give a function of both, as lambda model, batch: F.mse_loss(model(batch["x"]), batch["y"])'
"""Advice about a loss, for refusals."""


def _is_of_torch(loss: object) -> bool:
    """Whether it is a loss of `torch.nn`: a function, a class, or a module."""
    home = getattr(type(loss) if isinstance(loss, nn.Module) else loss, "__module__", None)
    return str(home).startswith("torch.nn.")


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of something that is not written in Python
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True
