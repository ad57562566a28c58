"""Tasks made by a function of the user's: every trace and every comparison gets a fresh one, equal to all others.

So nothing that a step changes has to be saved, walked and put back. A function that returns an object which it has
returned before is not fresh: the object is copied while it is untouched, if a copy is another object through and
through."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from roundlog.capture.captured import model_tensors
from roundlog.capture.errors import CaptureError, a_kind
from roundlog.capture.task import Source, Task
from roundlog.capture.tracing.eager import plain_model
from roundlog.capture.tracing.trace import refuse_autocast
from roundlog.fresh_capture.numbered_task import NumberedTask
from roundlog.fresh_capture.reachable_values import ReachableValues, tensor_digest

MakeTask = Callable[[], Task]

_REWRITE = "write def make_task(): with all of it inside, and give make_task"


class FreshTasks:
    """Equal tasks, each made for one purpose."""

    def __init__(self, make: MakeTask) -> None:
        """Raises CaptureError for what is no function, makes no task, or makes two that differ."""
        if isinstance(make, Task) or not callable(make):
            raise CaptureError(f"a task is made by a function, and this is {a_kind(make)}: {_REWRITE}")
        self._make = make
        self._random = _random_states()
        refuse_autocast("outside of the loss", ("cpu", "cuda"))
        first = self._made()
        first.check()
        self._fingerprint = dict(_fingerprint(first))
        self._dataset: Mapping[str, Source] = first.dataset
        self._own_fields = WeakKeyDictionary[nn.Module, Mapping[str, Source]]()
        again = self._made()
        self._given = first if plain_model(again.model) is plain_model(first.model) else None
        """The task that the function returns again and again, untouched."""
        self._next: NumberedTask | None = None if self._given is not None else self._equal(again)

    def __call__(self) -> NumberedTask:
        """Another task. Raises CaptureError, naming the tensor, if it is not equal to the first one."""
        if self._given is not None:
            return self._copied(self._given)
        task, self._next = self._next, None
        return task if task is not None else self._equal(self._made())

    def fields_of(self, task: Task) -> Mapping[str, Source]:
        """The dataset that was made with a task, whose own is that of the first one."""
        return self._own_fields.get(task.model, task.dataset)

    def _made(self) -> NumberedTask:
        with _from(self._random):
            task = self._make()
        if not isinstance(task, Task):
            raise CaptureError(f"the function that makes the task returns {a_kind(task)}: return a roundlog.Task")
        return NumberedTask.of(task)

    def _equal(self, task: NumberedTask) -> NumberedTask:
        for name, value in _fingerprint(task):
            if self._fingerprint.get(name) != value:
                raise CaptureError(
                    f"{name} differs from one call of the function that makes the task to the next: set its seed, or "
                    "load it, inside the function"
                )
        self._own_fields[task.model] = task.dataset
        return replace(task, dataset=self._dataset)

    def _copied(self, given: NumberedTask) -> NumberedTask:
        """A copy of a task. Raises CaptureError where the copy still refers to a part of the original."""
        memo: dict[int, Any] = {id(field): field for field in given.dataset.values()}
        try:
            made: dict[str, Any] = {
                name: copy.deepcopy(getattr(given, name), memo) for name in ("model", "optimizer", "schedule", "loss")
            }
        except Exception as error:  # whatever a class of the user's raises
            raise CaptureError(f"the task cannot be copied ({type(error).__name__}): {_REWRITE}") from error
        found = ReachableValues(looks_at_elements=False)
        found.visit(made["loss"], "loss")
        own = {id(x) for x in (*given.model.parameters(), *given.model.buffers(), *given.model.modules())}
        for _, (path, x) in found.seen.items():
            if id(x) in own:
                raise CaptureError(f"{path} is the model of a task that was made before: {_REWRITE}")
        return replace(given, **made)


def _fingerprint(task: Task) -> Iterator[tuple[str, Any]]:
    """(name, what can be compared) of parameters, buffers and the first batch."""
    tensors = model_tensors(plain_model(task.model))
    batch = task.batch(torch.arange(task.batch_size))
    for name, x in (*tensors.items(), *((f"dataset/{name}", x) for name, x in batch.items())):
        yield name.partition("/")[2], _kind(x)


def _kind(x: Tensor) -> tuple[object, ...]:
    return tuple(x.shape), x.dtype, x.requires_grad, tensor_digest(x)


RandomStates = tuple[Tensor, Any, Any]


def _random_states() -> RandomStates:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_random_states(states: RandomStates) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@contextmanager
def _from(states: RandomStates) -> Iterator[None]:
    """Begin with these states of torch's, numpy's and Python's generators, and put back those of before."""
    before = _random_states()
    _set_random_states(states)
    try:
        yield
    finally:
        _set_random_states(before)
