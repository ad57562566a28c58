"""One step of the user's own, before anything is believed of it: which tensors a step changes beside parameters and
buffers, and whether the step after it does the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx

from roundlog.capture.constants import Constants
from roundlog.capture.draws import draw_of
from roundlog.capture.eager import EagerTraining, plain_model, plainly
from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import place_of_error, source_of
from roundlog.capture.surroundings import Surroundings
from roundlog.capture.task import STORED, Task
from roundlog.capture.trace import Trace, Tracer

_OWN = ("optimizer", "schedule")
"""Roots whose changes are known: they are followed by other means."""


def surroundings(task: Task) -> Surroundings:
    """What the step of a task can reach."""
    roots = {"model": task.model, "loss": task.loss, "optimizer": task.optimizer, "schedule": task.schedule}
    return Surroundings(roots)


@dataclass(frozen=True, slots=True)
class _Left:
    """What a step leaves changed."""

    attributes: dict[str, torch.Tensor]
    """Tensors that are neither parameters nor buffers, by name."""
    others: list[str]
    """What else: counters, caches, generators of random numbers."""


def traced(task: Task, around: Surroundings) -> tuple[Trace, dict[str, torch.Tensor]]:
    """A step of the task, traced twice: as the task stands, and after a step of the user's own. Also the tensors beside
    parameters and buffers that are part of the state. Raises CaptureError if the two are not the same step."""
    attributes: dict[str, torch.Tensor] = {}
    tracer = Tracer(task, around, attributes)
    first = tracer.trace()
    around.restore()
    left = _rehearse(task, around)
    if left.attributes:
        around.restore()
        attributes = left.attributes
        tracer = Tracer(task, around, attributes)
        first = tracer.trace()
        around.restore()
        left = _rehearse(task, around)
    around.put_back([*attributes.values(), *plain_model(task.model).buffers()])
    difference = _difference(first.graph, tracer.trace().graph)
    if difference is not None:
        changed = ", ".join(left.others[:3])
        raise CaptureError(
            f"the step is not the same from one time to the next: {difference}"
            + (f"; it depends on {changed}, which a step changes" if changed else "")
            + ": keep what changes in buffers, and draw random numbers by torch"
        )
    return first, attributes


def _rehearse(task: Task, around: Surroundings) -> _Left:
    """Take a step of the user's own, on memory of its own, and see what has changed."""
    before = random.getstate(), np.random.get_state()
    around.move()
    torch.manual_seed(task.seed % 2**63 + 1)
    batch = {name: field[: task.batch_size].clone() for name, field in task.dataset.items()}
    try:
        with plainly():
            EagerTraining(task).step(0, batch)
    except Exception as error:
        raise CaptureError(f"the step fails in PyTorch itself: {error}{place_of_error(error)}") from error
    known = {id(tensor) for tensor in (*task.model.parameters(), *task.model.buffers())}
    attributes: dict[str, torch.Tensor] = {}
    others = []
    for name, tensor, after in _changed(around):
        if name.startswith(_OWN) or id(tensor) in known:
            continue
        stays = isinstance(tensor, torch.Tensor) and tensor.dtype in STORED
        if stays and isinstance(after, torch.Tensor) and (after.shape, after.dtype) == (tensor.shape, tensor.dtype):
            attributes[f"attribute/{name}"] = tensor
        else:
            others.append(name)
    if random.getstate() != before[0]:
        others.insert(0, "Python's random")
    if str(np.random.get_state()) != str(before[1]):
        others.insert(0, "numpy.random")
    return _Left({name: tensor for name, tensor in attributes.items()}, others)


def _changed(around: Surroundings) -> Iterator[tuple[str, object, object]]:
    """(name, before, after) of everything that is not as it was."""
    for change in around.changes():
        yield change.name, change.before, change.after
    for name, tensor in around.written():
        yield name, tensor, tensor


def _difference(one: fx.GraphModule, two: fx.GraphModule) -> str | None:
    """Where two traces of a step differ, in words; None if they compute the same. What depends on no parameter, no data
    and no random number is compared by its value: the first step may compute what later ones find in a cache."""
    draws: dict[str, str] = {}
    for a, b in _pairs(one, two):
        if a is None or b is None:
            longer = a or b
            assert longer is not None
            return f"one time it computes {_what(longer[0])}, another time not"
        if a[1] != b[1]:
            return f"one time it computes {_what(a[0])}, another time {_what(b[0])}"
        mine, other = draw_of(a[0]), draw_of(b[0])
        if mine is None or other is None:
            continue
        if mine.state == other.state:
            return f"{_what(a[0])} draws the same random numbers every time, from a seed that is set inside the step"
        if draws.setdefault(mine.state, other.state) != other.state:
            return f"{_what(a[0])} draws again what was drawn before, but not every time"
    return None


_Described = tuple[fx.Node, object]


def _pairs(one: fx.GraphModule, two: fx.GraphModule) -> Iterator[tuple[_Described | None, _Described | None]]:
    a, b = list(_described(one)), list(_described(two))
    for number in range(max(len(a), len(b))):
        yield (a[number] if number < len(a) else None), (b[number] if number < len(b) else None)


def _described(module: fx.GraphModule) -> Iterator[_Described]:
    """Every node that is not constant, with what it computes."""
    constants = Constants(module)
    numbers: dict[fx.Node, int] = {}

    def argument(node: fx.Node) -> object:
        return constants.digest(node) if node in constants else ("node", numbers[node])

    for node in module.graph.nodes:
        if node in constants:
            continue
        numbers[node] = len(numbers)
        target = "" if node.op in ("placeholder", "get_attr") else str(node.target)
        inputs = fx.node.map_arg((node.args, dict(node.kwargs)), argument)  # type: ignore[arg-type]
        yield node, (node.op, target, str(inputs))


def _what(node: fx.Node) -> str:
    if node.op == "output":
        return "other results"
    source = source_of(node)
    return str(node.target) + (f" (at {source})" if source else "")
