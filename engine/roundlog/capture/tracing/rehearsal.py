"""One step of the user's own, before anything is believed of it: which tensors a step changes beside parameters and
buffers, and whether the steps after it do the same."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from roundlog.capture.constants import written
from roundlog.capture.errors import CaptureError, a_kind
from roundlog.capture.lines import place_of_error
from roundlog.capture.model_tensors import model_tensors
from roundlog.capture.python_draws import GENERATOR
from roundlog.capture.task import STORED, Task
from roundlog.capture.tracing.containers import MISSING, Change
from roundlog.capture.tracing.eager import EagerTraining, plain_model, plainly
from roundlog.capture.tracing.later_steps import LaterSteps, apart
from roundlog.capture.tracing.surroundings import Surroundings
from roundlog.capture.tracing.trace import ChangedBuffersError, TracedStep, Tracer
from roundlog.capture.untraceable import reason
from roundlog.data import is_lazy_view

_OWN = ("optimizer.", "optimizer[", "schedule.", "schedule[")
"""Beginnings of names that are followed by other means: in the optimizer and in its schedule."""


def surroundings(task: Task) -> Surroundings:
    """Surroundings of a task's step: all that it can reach."""
    roots: dict[str, object] = {"model": task.model}
    for part in ("loss", "optimizer", "schedule"):
        roots |= {turn.called(part): getattr(turn, part) for turn in task.turns()}
    roots |= {} if task.of_batch is None else {"of_batch": task.of_batch}
    named = dict(roots)
    for turn in task.turns():
        groups = getattr(turn.optimizer, "param_groups", [])  # what is no optimizer is refused later, by its name
        # Wherever else they are found first: a loss may read the optimizer.
        name = f"{turn.called('optimizer')}.param_groups"
        named |= {name: groups, **{f"{name}[{number}]": group for number, group in enumerate(groups)}}
    return Surroundings(roots, {id(thing): name for name, thing in named.items()})


@dataclass(frozen=True, slots=True)
class _Left:
    """Changes that a step leaves."""

    attributes: dict[str, torch.Tensor]
    """Tensors that are neither parameters nor buffers, by name."""
    others: list[str]
    """Other changes, in words: counters and caches."""

    def add(self, name: str, before: object, after: object) -> None:
        """Something that a step has changed."""
        both = all(isinstance(thing, torch.Tensor) and not is_lazy_view(thing) for thing in (before, after))
        if both and before.dtype in STORED and (after.shape, after.dtype) == (before.shape, before.dtype):  # type: ignore[attr-defined]
            self.attributes[f"attribute/{name}"] = before  # type: ignore[assignment]
        elif before is None or before is MISSING:
            self.others.append(f"{name} (nothing at first, then {a_kind(after)})")
        else:
            self.others.append(name)


def traced(
    task: Task, around: Surroundings, known: frozenset[str], *, decides: bool
) -> tuple[TracedStep, dict[str, torch.Tensor]]:
    """A step of the task, traced as the task stands, and again after a step of the user's own. Also the tensors beside
    parameters and buffers that are part of the state. known: names of the buffers that are constants if no step changes
    them. decides: whether the step may decide by values. Raises CaptureError if a later step is another one."""
    first_trace = functools.partial(_first, task, around, decides=decides)
    tracer, first, ends = first_trace({}, known)
    replaced = {name: tensor for end in ends[1:] and ends for name, tensor in _replaced(task, end).items()}
    written = _written(first.graph, around)
    around.restore()
    left = _rehearse(task, around)
    attributes = {**left.attributes, **replaced, **written}
    if attributes:
        around.restore()
        tracer, first, ends = first_trace(attributes, known)
        around.restore()
        left = _rehearse(task, around)
    around.drop_gradients()
    around.put_back([*attributes.values(), *plain_model(task.model).buffers()])
    own = {change.name for change in around.changes() if change.name.startswith(_OWN)} | tracer.changing
    others = [
        [change for change in end if not (change.name.startswith(_OWN) or tracer.follows(change.before))]
        for end in ends
    ]
    by_values = apart(others, around.seen())
    LaterSteps(task, tracer, surroundings(task), own, by_values).confirm(first.graph, left.others)
    return first, attributes


def _first(
    task: Task, around: Surroundings, attributes: dict[str, torch.Tensor], known: frozenset[str], *, decides: bool
) -> tuple[Tracer, TracedStep, list[list[Change]]]:
    """The step traced as the task stands, with as many of the known buffers as it does not change. Also what each of
    its paths changes: the rehearsal takes one of them only."""

    ended: list[list[Change]] = []

    def begin() -> None:
        if ended:
            around.restore()
            around.move()

    def end() -> None:
        ended.append(around.changes())

    while True:
        ended.clear()
        around.move()  # whatever escapes the trace writes into copies
        tracer = Tracer(task, around, attributes, known, decides=decides)
        if told := [change.name for change in around.changes() if not change.name.startswith(_OWN)]:
            raise CaptureError(f"the schedule changes {told[0]}: make it depend on the step alone, and change nothing")
        try:
            return tracer, tracer.trace(begin, end), ended
        except ChangedBuffersError as error:
            known -= error.names
            around.restore()
            for name, tensor in model_tensors(plain_model(task.model)).items():
                if name in error.names and tensor.dtype not in STORED:
                    raise CaptureError(f"a step changes {_conversion(name.partition('/')[2], tensor)}") from None


def _replaced(task: Task, changes: Iterable[Change]) -> dict[str, torch.Tensor]:
    """Tensors, neither parameters nor buffers, in whose place a step that is traced has put others like them."""
    left = _Left({}, [])
    known = {id(tensor) for tensor in (*task.model.parameters(), *task.model.buffers())}
    for change in changes:
        is_tensor = isinstance(change.before, torch.Tensor) and isinstance(change.after, torch.Tensor)
        if is_tensor and not change.name.startswith(_OWN) and id(change.before) not in known:
            left.add(change.name, change.before, change.after)
    return left.attributes


def _conversion(name: str, tensor: torch.Tensor) -> str:
    """The dtype of a buffer, and how to make it one that states of a program have."""
    if tensor.is_complex():
        return f"{name}, which is {tensor.dtype}: keep it as pairs of numbers (torch.view_as_real)"
    way = "float" if tensor.is_floating_point() else "long"
    return f"{name}, which is {tensor.dtype}: convert it before the first step, model.{name} = model.{name}.{way}()"


def _written(graph: fx.GraphModule, around: Surroundings) -> dict[str, torch.Tensor]:
    """Tensors of the user's that a traced step writes into, though they are neither parameters nor buffers."""
    found = {}
    for node in written(graph.graph):
        tensor = getattr(graph, str(node.target)) if node.op == "get_attr" else None
        if isinstance(tensor, torch.Tensor) and id(tensor) in around.tensors:
            found[f"attribute/{around.tensors[id(tensor)][0]}"] = tensor
    return found


def _rehearse(task: Task, around: Surroundings, *, again: bool = False) -> _Left:
    """Take a step of the user's own, on memory of its own, and see what has changed. again: a generator of random
    numbers moved the first time."""
    around.move()
    torch.manual_seed(task.seed % 2**63 + 1)
    torch.empty(1).uniform_(generator=GENERATOR)  # so that later steps draw other numbers than the first one
    batch = task.batch(torch.arange(task.batch_size))
    try:
        with plainly():
            EagerTraining(task).step(0, batch)
    except CaptureError:
        raise
    except (Exception, SystemExit) as error:
        raise CaptureError(f"the step fails in PyTorch itself: {reason(error)}{place_of_error(error)}") from error
    for name, parameter in task.model.named_parameters():
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise CaptureError(f"{name} gets a sparse gradient: make its layer with sparse=False")
    known = {id(tensor) for tensor in (*task.model.parameters(), *task.model.buffers())}
    memory = {tensor.untyped_storage()._cdata for tensor in (*task.model.parameters(), *task.model.buffers())}
    left = _Left({}, around.changed_arrays())
    for change in around.changes():
        if not change.name.startswith(_OWN) and id(change.before) not in known:
            left.add(change.name, change.before, change.after)
    for name, tensor in around.written():
        # A tensor that shares memory with a parameter is a view of it.
        own = id(tensor) in known or tensor.untyped_storage()._cdata in memory
        if not name.startswith(_OWN) and not own:
            left.add(name, tensor, tensor)
    if moved := around.moved_generators():
        if not again:  # another thread of the process may have drawn from it meanwhile
            around.restore()
            return _rehearse(task, around, again=True)
        raise CaptureError(f"the step draws from {moved[0]}, which a program cannot: draw random numbers by torch")
    around.refuse_advanced()
    return left
