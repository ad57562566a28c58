"""One step of the user's own, before anything is believed of it: which tensors a step changes beside parameters and
buffers, and whether the step after it does the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from roundlog.capture.constants import Constants, written
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import place_of_error, source_of
from roundlog.capture.task import STORED, Task
from roundlog.capture.tracing.eager import EagerTraining, plain_model, plainly
from roundlog.capture.tracing.surroundings import Surroundings
from roundlog.capture.tracing.trace import Trace, Tracer
from roundlog.capture.untraceable import reason

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
    """What else, in words: counters and caches."""

    def add(self, name: str, before: object, after: object) -> None:
        """Something that a step has changed."""
        both = isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)
        if both and before.dtype in STORED and (after.shape, after.dtype) == (before.shape, before.dtype):  # type: ignore[attr-defined]
            self.attributes[f"attribute/{name}"] = before  # type: ignore[assignment]
        elif before is None:
            self.others.append(f"{name} (nothing at first, then a {type(after).__name__})")
        else:
            self.others.append(name)


def traced(task: Task, around: Surroundings) -> tuple[Trace, dict[str, torch.Tensor]]:
    """A step of the task, traced twice: as the task stands, and after a step of the user's own. Also the tensors beside
    parameters and buffers that are part of the state. Raises CaptureError if the two are not the same step."""
    around.move()  # whatever escapes the trace writes into copies
    tracer = Tracer(task, around, {})
    first = tracer.trace()
    written = _written(first.graph, around)
    around.restore()
    left = _rehearse(task, around)
    attributes = {**left.attributes, **written}
    if attributes:
        around.restore()
        tracer = Tracer(task, around, attributes)
        first = tracer.trace()
        around.restore()
        left = _rehearse(task, around)
    around.drop_gradients()
    around.put_back([*attributes.values(), *plain_model(task.model).buffers()])
    difference = _difference(first.graph, tracer.trace().graph)
    if difference is not None:
        changed = ", ".join(left.others[:3])
        raise CaptureError(
            f"the step is not the same from one time to the next: {difference}"
            + (f"; a step changes {changed}" if changed else "")
            + ": keep what steps change in buffers that hold tensors from the start, and draw random numbers by torch"
        )
    return first, attributes


def _written(graph: fx.GraphModule, around: Surroundings) -> dict[str, torch.Tensor]:
    """Tensors of the user's that a traced step writes into, though they are neither parameters nor buffers."""
    found = {}
    for node in written(graph.graph):
        tensor = getattr(graph, str(node.target)) if node.op == "get_attr" else None
        if isinstance(tensor, torch.Tensor) and id(tensor) in around.tensors:
            found[f"attribute/{around.tensors[id(tensor)][0]}"] = tensor
    return found


def _rehearse(task: Task, around: Surroundings) -> _Left:
    """Take a step of the user's own, on memory of its own, and see what has changed."""
    around.move()
    torch.manual_seed(task.seed % 2**63 + 1)
    batch = {name: field[: task.batch_size].clone() for name, field in task.dataset.items()}
    try:
        with plainly():
            EagerTraining(task).step(0, batch)
    except Exception as error:
        raise CaptureError(f"the step fails in PyTorch itself: {reason(error)}{place_of_error(error)}") from error
    known = {id(tensor) for tensor in (*task.model.parameters(), *task.model.buffers())}
    memory = {tensor.untyped_storage()._cdata for tensor in (*task.model.parameters(), *task.model.buffers())}
    left = _Left({}, [])
    for change in around.changes():
        if not change.name.startswith(_OWN) and id(change.before) not in known:
            left.add(change.name, change.before, change.after)
    for name, tensor in around.written():
        # What shares memory with a parameter is a view of it.
        own = id(tensor) in known or tensor.untyped_storage()._cdata in memory
        if not name.startswith(_OWN) and not own:
            left.add(name, tensor, tensor)
    if moved := around.moved_generators():
        raise CaptureError(f"the step draws from {moved[0]}, which a program cannot: draw random numbers by torch")
    return left


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
            if _what(a[0]) == _what(b[0]):
                return f"{_what(a[0])} is given other arguments every time"
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
    constants = Constants(module, module.graph)
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
