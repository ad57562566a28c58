"""A task whose first step has been taken and undone.

The first call of a model fills caches, which are constants of all later calls, and the first step of a user's own
optimizer makes its state. What such an optimizer makes has to be zeros: a program's first step is like all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from roundlog.capture.errors import CaptureError, place_of_error, reason
from roundlog.capture.fresh_tasks import FreshTasks
from roundlog.capture.optimizers import is_own
from roundlog.capture.portable import portable
from roundlog.capture.real_steps.eager import plain_model, plainly
from roundlog.capture.real_steps.reachable_values import memory_of
from roundlog.capture.real_steps.watched_steps import WatchedSteps, batch_of, reachable
from roundlog.capture.task import Source, Task


@dataclass(frozen=True, slots=True)
class WarmedTask:
    """A fresh task that stands where its first step begins, with full caches and all states."""

    task: Task
    states: tuple[str, ...]
    """Names of tensors that steps change, beside parameters and buffers of the model."""
    left: dict[int, str]
    """Id of a tensor that the first step has left, and that no step may read -> the reason."""
    fields: Mapping[str, Source]
    """The dataset that was made with the task."""

    def parameter(self, name: str) -> Tensor:
        """A parameter of the model."""
        return plain_model(self.task.model).get_parameter(name)


def warmed_task(fresh: FreshTasks, watched: WatchedSteps) -> WarmedTask:
    """Take the first step of a fresh task, and undo it. Raises CaptureError for a state that an optimizer of the user's
    does not begin with zeros."""
    task = fresh()
    early = reachable(task, watched.calls, elements=False)
    for name, tensor in watched.held.items():
        if name in early.places and memory_of(early.places[name].tensor) == memory_of(tensor) != 0:
            raise CaptureError(f"steps change {name}, which all tasks have: make it in the function that makes a task")
    held = [(place, place.tensor.detach().clone(), place.tensor._version) for place in early.places.values()]
    after = _losses_and_own_steps(task)
    late = reachable(task, watched.calls, elements=False)
    made = [name for name in watched.states if name not in early.places]
    reached = (path for path, x in late.seen.values() if isinstance(x, torch.optim.Optimizer))  # also by the loss
    own = tuple(f"{path}.state[" for path in (*(phase.called("optimizer") for phase in task.phases()), *reached))
    zeros = [name for name in made if name.startswith(own) and name in late.places]
    left = {id(late.places[name].tensor): MOVED.format(name) for name in watched.moved if name in late.places}
    left |= {
        id(late.places[name].tensor): NONE_BEFORE.format(name, name)
        for name in made
        if name not in zeros and name in late.places
    }
    with torch.no_grad():
        for place, value, version in held:
            # Batch norm writes, and raises no _version.
            if place.tensor._version != version or not _equal(place.tensor, value):
                place.tensor.copy_(value)
            if place.put is not None and place.get() is not place.tensor:
                place.put(place.tensor)
            place.tensor.grad = None
        for name, put in early.numbers.items():
            if name in task.numbers:
                put(early.leaves[name])
        for name in zeros:
            late.places[name].tensor.zero_()
    if zeros:
        _require_zeros(task, watched, after, zeros[0])
    states = tuple(name for name in watched.states if name not in watched.moved and (name not in made or name in zeros))
    return WarmedTask(task, states, left, fresh.fields_of(task))


def _equal(x: Tensor, value: Tensor) -> bool:
    return x.layout != torch.strided or x.is_meta or torch.equal(x, value)


NONE_BEFORE = (
    "a step reads {}, where there is no tensor before the first step: begin with one of its final shape, "
    "{} = torch.zeros(...)"
)
MOVED = (
    "a step puts another list, dictionary or object in the place of the one that holds {}, which the next step reads: "
    "keep the one that is there, and put the tensor into it"
)


def _losses_and_own_steps(task: Task) -> dict[str, Tensor]:
    """Compute the losses of the first batch, with steps of optimizers of the user's own; give the parameters then."""
    model = plain_model(task.model)
    generator = torch.get_rng_state()
    torch.manual_seed(task.seed % 2**63)
    try:
        with plainly(), portable():
            for phase in task.phases():
                for parameter in model.parameters():
                    parameter.grad = None
                for part in task.parts_at(0, batch_of(task, 0)):
                    loss = task.share(phase.loss(model, dict(part)))
                    if is_own(phase.optimizer):
                        loss.backward()
                if is_own(phase.optimizer):
                    phase.optimizer.step()
    except CaptureError:
        raise
    except Exception as error:  # a stated number is one of Python's here
        raise CaptureError(f"the step fails in PyTorch itself: {reason(error)}{place_of_error(error)}") from error
    torch.set_rng_state(generator)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _require_zeros(task: Task, watched: WatchedSteps, after: dict[str, Tensor], name: str) -> None:
    """Raises CaptureError if the first step from zeros is not the first step from nothing."""
    found = reachable(task, watched.calls, elements=False)
    held = [(place.tensor, place.tensor.detach().clone()) for place in found.places.values()]
    again = _losses_and_own_steps(task)
    for parameter, value in after.items():
        if not torch.equal(value.nan_to_num(), again[parameter].nan_to_num()):
            raise CaptureError(f"{name} does not begin with zeros: make it before the first step")
    with torch.no_grad():
        for tensor, value in held:
            tensor.copy_(value)
            tensor.grad = None
