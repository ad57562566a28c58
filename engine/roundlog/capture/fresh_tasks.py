"""Tasks made by a function of the user's: every trace and every comparison gets a fresh one, equal to all others.

So nothing that a step changes has to be saved, walked and put back. A function that returns an object which it has
returned before is not fresh: the object is copied while it is untouched, if a copy is another object through and
through."""

from __future__ import annotations

import contextvars
import copy
import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from roundlog.capture.captured import model_tensors
from roundlog.capture.errors import CaptureError, a_kind
from roundlog.capture.optimizers import refuse_hooks
from roundlog.capture.real_steps.patched_torch import plain_model, refuse_autocast
from roundlog.capture.real_steps.reachable_values import ReachableValues, memory_of, reachable, tensor_digest
from roundlog.capture.task import Source, Task
from roundlog.data import is_lazy_view
from roundlog.kernels.scratch import give_back

MakeTask = Callable[[], Task]

_LARGE = 1 << 26
"""Bytes of parameters from which on memory is given back before another task is made."""

_REWRITE = "write def make_task(): with all of it inside, and give make_task"


class FreshTask(NamedTuple):
    """A task with the data of the first one, and the data that were made with it."""

    task: Task
    fields: Mapping[str, Source]


class FreshTasks:
    """Equal tasks, each made for one purpose."""

    def __init__(self, make: MakeTask, *, once: bool = False) -> None:
        """once: whether one task is enough, which the function is asked for once, and which is not copied. Raises
        CaptureError for what is no function, makes no task, or makes two that differ."""
        if isinstance(make, Task) or not callable(make):
            raise CaptureError(f"a task is made by a function, and this is {a_kind(make)}: {_REWRITE}")
        self._make = make
        self._context = contextvars.copy_context()
        """Has the `portable` in which the task is made, though capture pauses it."""
        self._random = _random_states()
        refuse_autocast("outside of the loss", ("cpu", "cuda"))
        first = self._made()
        first.check()
        for path, place in () if once else reachable(first, elements=False).places.items():
            if is_lazy_view(place.tensor):  # a copy of it would have other memory
                raise CaptureError(
                    f"{path} is a lazy zero, negative or conjugate of PyTorch's: make it a copy (.clone())"
                )
        self._fingerprint = dict(_fingerprint(first))
        self._is_large = sum(x.nbytes for x in first.model.parameters()) > _LARGE
        self._dataset: Mapping[str, Source] = first.dataset
        self.once = once
        again = first if once else self._made()
        self._given = first if _parts_of(again.model) & _parts_of(first.model) else None
        """The task that the function returns, or makes of the same model, again and again, untouched."""
        self._around = {} if self._given is None or once else _around(self._given)
        self._next: FreshTask | None = None if self._given is not None else self._equal(again)

    def digest(self, name: str) -> str | None:
        """Digest of a parameter or buffer, as every task begins with it; None of any other state."""
        return None if (found := self._fingerprint.get(name)) is None else str(found[3])

    def __call__(self) -> FreshTask:
        """Another task. Raises CaptureError, naming the tensor, if it is not equal to the first one."""
        if self._is_large:  # models and optimizers refer to themselves: earlier ones would stay in memory
            gc.collect()
            give_back()
        if self._given is not None and self.once:
            return FreshTask(self._given, self._dataset)
        if self._given is not None:
            now = _around(self._given)
            if changed := [name for name in self._around.keys() & now if self._around[name] != now[name]]:
                raise CaptureError(f"steps change {min(changed)}, which a copy of the task shares with it: {_REWRITE}")
            return FreshTask(self._copied(self._given), self._dataset)
        task, self._next = self._next, None
        return task if task is not None else self._equal(self._made())

    def _made(self) -> Task:
        with _from(self._random):
            task = self._context.run(self._make)
        refuse_autocast("outside of the loss", ("cpu", "cuda"))
        if not isinstance(task, Task):
            raise CaptureError(f"the function that makes the task returns {a_kind(task)}: return a roundlog.Task")
        return task

    def _equal(self, task: Task) -> FreshTask:
        for name, value in _fingerprint(task):
            if self._fingerprint.get(name) != value:
                raise CaptureError(
                    f"{name.partition('/')[2]} differs from one call of the function that makes the task to the next: "
                    "set its seed, or load it, inside the function"
                )
        return FreshTask(replace(task, dataset=self._dataset), task.dataset)

    def _copied(self, given: Task) -> Task:
        """A copy of a task. Raises CaptureError where the copy still refers to a part of the original."""
        for phase in given.phases():
            refuse_hooks(phase.optimizer)  # a copy has none
        memo: dict[int, Any] = {id(field): field for field in given.dataset.values()}
        try:
            made: dict[str, Any] = {
                name: copy.deepcopy(getattr(given, name), memo) for name in ("model", "optimizer", "schedule", "loss")
            }
        except Exception as error:  # whatever a class of the user's raises
            raise CaptureError(f"the task cannot be copied ({type(error).__name__}): {_REWRITE}") from error
        own = _parts_of(given.model) | {id(x) for x in given.model.buffers()}
        _rebind_methods(made["model"], own, memo)
        found = ReachableValues(looks_at_elements=False)
        found.visit(made["loss"], "loss")
        for _, (path, x) in found.seen.items():
            if id(x) in own:
                raise CaptureError(f"{path} is the model of a task that was made before: {_REWRITE}")
        copied = replace(given, **made)
        shared, kept = _shared_memory(given), _shared_memory(copied)
        for name, other in shared.items():
            if kept.get(name) != other:
                raise CaptureError(f"{name} shares memory with {other}, which a copy of the task loses: {_REWRITE}")
        return copied


def _shared_memory(task: Task) -> dict[str, str]:
    """Name of a tensor -> the first one with the same memory, if that is another one."""
    first: dict[int, str] = {}
    found = reachable(task, elements=False).places
    names = {name: first.setdefault(memory_of(place.tensor), name) for name, place in found.items()}
    return {name: other for name, other in names.items() if other != name and memory_of(found[name].tensor)}


def _parts_of(model: nn.Module) -> set[int]:
    """Ids of modules and parameters."""
    return {id(x) for x in (*model.modules(), *model.parameters())}


def _rebind_methods(model: nn.Module, own: set[int], memo: dict[int, Any]) -> None:
    """Give functions that libraries put in the place of a module's methods, and that hold the method in their closure,
    the method of the copy. model: copied. own: ids of the original's modules and tensors."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            function = getattr(value, "__func__", value)
            if not isinstance(function, FunctionType):
                continue
            held = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
            if any(id(getattr(x, "__self__", x)) in own for x in held) and len(held) == len(
                function.__code__.co_freevars
            ):
                cells = tuple(CellType(copy.deepcopy(x, memo)) for x in held)
                made = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, cells)
                made.__kwdefaults__ = function.__kwdefaults__
                vars(module)[name] = MethodType(made, module) if value is not function else made


def _around(task: Task) -> dict[str, Any]:
    """Values that the losses reach beside the model, by name."""
    model = plain_model(task.model)
    own = frozenset(map(id, (*model.parameters(), *model.buffers())))
    found = ReachableValues(without_digests=own, follows_weak=False)
    for phase in task.phases():
        found.visit(phase.loss, phase.called("loss"))
    return {name: value for name, value in found.leaves.items() if value == value and not name.startswith("len(")}


def _fingerprint(task: Task) -> Iterator[tuple[str, Any]]:
    """(name, what can be compared) of parameters, buffers and the first batch."""
    tensors = model_tensors(plain_model(task.model))
    batch = task.batch(torch.arange(task.batch_size))
    for name, x in (*tensors.items(), *((f"dataset/{name}", x) for name, x in batch.items())):
        yield name, (tuple(x.shape), x.dtype, x.requires_grad, tensor_digest(x))


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
