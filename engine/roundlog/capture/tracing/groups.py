"""The parameter groups of a task's optimizers: which trains which parameter, and what depends on the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from roundlog.capture.errors import CaptureError
from roundlog.capture.optimizers import Column, Update, updates
from roundlog.capture.optimizers.update import Own
from roundlog.capture.task import Task


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter group."""

    name: str
    """As in `optimizer.param_groups[0]`."""
    turn: int
    """Number of the optimizer among the task's."""
    update: Update

    @property
    def is_own(self) -> bool:
        """Whether the optimizer is the user's own, whose step is traced as it is written."""
        return isinstance(self.update, Own)


def groups_of(task: Task) -> list[Group]:
    """All groups, optimizer by optimizer. Raises CaptureError for an optimizer, an option or a schedule that is not
    supported."""
    return [
        Group(f"{turn.called('optimizer')}.param_groups[{place}]", number, update)
        for number, turn in enumerate(task.turns())
        for place, update in enumerate(updates(turn.optimizer, turn.schedule, task.steps))
    ]


def trained(task: Task, model: nn.Module, groups: Sequence[Group], first: Mapping[str, str]) -> dict[str, int]:
    """Name of every parameter that is trained -> number of its group, in the model's order. first: state name -> the
    first one with the same memory. Raises CaptureError for parameters that no step could be taken with."""
    named, turns = dict(model.named_parameters()), task.turns()
    known = {id(parameter) for parameter in named.values()}
    held = {number: {id(p) for p in group.update.group["params"]} for number, group in enumerate(groups)}
    for turn, ids in _by_turn(groups, held).items():
        if strangers := ids - known:
            raise CaptureError(
                f"the {turns[turn].called('optimizer')} holds {len(strangers)} parameters that are not the model's: "
                + ("make it of model.parameters()" if len(turns) == 1 else "give a model with all, as an nn.ModuleDict")
            )
    number_of: dict[int, int] = {}
    owner: dict[str, int] = {}
    for name, parameter in named.items():
        for number in (number for number, ids in held.items() if id(parameter) in ids and parameter.requires_grad):
            one, two = owner.setdefault(first[f"parameter/{name}"], groups[number].turn), groups[number].turn
            if one != two:
                raise CaptureError(
                    f"{name} is trained by {turns[one].called('optimizer')} and {turns[two].called('optimizer')}, "
                    "which would both step it: leave it in one of them"
                )
            number_of[id(parameter)] = number
    found = {name: number_of[id(p)] for name, p in named.items() if id(p) in number_of}
    for turn in range(len(turns)):
        if not any(groups[group].turn == turn for group in found.values()):
            name = turns[turn].called("optimizer")
            raise CaptureError(f"nothing is trained: no parameter of the {name} requires a gradient")
    outside = [name for name, p in named.items() if p.requires_grad and name not in found]
    if outside and len(turns) == 1 and turns[0].max_grad_norm is not None:
        # clip_grad_norm_ would count its gradient, which optimizer.zero_grad() never clears.
        raise CaptureError(
            f"{outside[0]} requires a gradient but is in no group of the optimizer, so that the norm to clip is not "
            "clear: freeze it with .requires_grad_(False)"
        )
    return found


def _by_turn(groups: Sequence[Group], held: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """Identities of the parameters of all groups of an optimizer, by its number."""
    found: dict[int, set[int]] = {}
    for number, ids in held.items():
        found.setdefault(groups[number].turn, set()).update(ids)
    return found


def schedule_of(groups: Sequence[Group], steps: int) -> tuple[tuple[str, ...], torch.Tensor]:
    """Names of the schedule's columns, and f32[steps, columns]."""
    columns: dict[str, Column] = {}
    for number, group in enumerate(groups):
        # The rate stands in every table, though some updates read only what follows from it: people look at it.
        every: dict[str, Column] = {"lr": group.update.rate, **group.update.columns()}
        columns.update({f"{number}/{name}": column for name, column in every.items()})
    rows = [[float(column(step)) for column in columns.values()] for step in range(steps)]
    table = torch.tensor(rows, dtype=torch.float64).to(torch.float32).reshape(steps, -1)
    if not bool(table.isfinite().all()):
        raise CaptureError(
            "the learning rate schedule gives a value that is not finite: let it give a finite number at every step"
        )
    return tuple(columns), table
