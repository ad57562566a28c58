"""One step of the user's own, before anything is believed of it: which tensors a step changes beside parameters and
buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

from roundlog.capture.constants import written
from roundlog.capture.draws import GENERATOR
from roundlog.capture.errors import CaptureError, reason
from roundlog.capture.lines import place_of_error
from roundlog.capture.optimizers import is_own
from roundlog.capture.python_state import Change, Snapshot
from roundlog.capture.task import STORED, OptimizerPhase, Task
from roundlog.capture.tracing.eager import EagerTraining, plainly
from roundlog.data import is_lazy_view

Named = dict[str, torch.Tensor]


def followed_elsewhere(phases: Sequence[OptimizerPhase]) -> tuple[str, ...]:
    """Beginnings of names that are followed by other means: in optimizers of torch's, and in schedules."""
    theirs = [f"{phase.called('optimizer')}." for phase in phases if not is_own(phase.optimizer)]
    rates = [
        f"{phase.called('optimizer')}.param_groups[{number}].{key}"
        for phase in phases
        for number in range(len(phase.optimizer.param_groups))
        for key in ("lr", "initial_lr")
    ]
    return (*theirs, *rates, "schedule.", "schedule[")


def rehearsed(task: Task, snapshot: Snapshot, elsewhere: tuple[str, ...], *, again: bool = False) -> Named:
    """Take a step of the user's own, on memory of its own. Gives the tensors that it has changed and that are neither
    parameters nor buffers, by name. elsewhere: as `followed_elsewhere` gives it. again: a generator of random numbers
    moved the first time. Raises CaptureError for a step that fails, or that no program can follow."""
    snapshot.move()
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
    model = [*task.model.parameters(), *task.model.buffers()]
    known, memory = {id(tensor) for tensor in model}, {tensor.untyped_storage()._cdata for tensor in model}
    snapshot.changed_arrays()  # which refuses those that share memory with tensors
    left = replaced_tensors(model, snapshot.changes(), elsewhere)
    for name, tensor in snapshot.written():
        # A tensor that shares memory with a parameter is a view of it.
        own = id(tensor) in known or tensor.untyped_storage()._cdata in memory
        if not name.startswith(elsewhere) and not own:
            left |= _attribute(name, tensor, tensor)
    if moved := snapshot.moved_generators():
        if not again:  # another thread of the process may have drawn from it meanwhile
            snapshot.restore()
            return rehearsed(task, snapshot, elsewhere, again=True)
        raise CaptureError(f"the step draws from {moved[0]}, which a program cannot: draw random numbers by torch")
    snapshot.refuse_advanced()
    return left


def replaced_tensors(model: Iterable[torch.Tensor], changes: Iterable[Change], elsewhere: tuple[str, ...]) -> Named:
    """Tensors, none of the model's, in whose place changes have put others like them, by name. elsewhere: as
    `followed_elsewhere` gives it."""
    known = {id(tensor) for tensor in model}
    found: Named = {}
    for change in changes:
        if not change.name.startswith(elsewhere) and id(change.before) not in known:
            found |= _attribute(change.name, change.before, change.after)
    return found


def written_tensors(graph: fx.GraphModule, snapshot: Snapshot) -> Named:
    """Tensors of the user's that a traced step writes into, though they are neither parameters nor buffers."""
    found = {}
    for node in written(graph.graph):
        tensor = getattr(graph, str(node.target)) if node.op == "get_attr" else None
        if isinstance(tensor, torch.Tensor) and id(tensor) in snapshot.tensors:
            found[f"attribute/{snapshot.tensors[id(tensor)][0]}"] = tensor
    return found


def _attribute(name: str, before: object, after: object) -> Named:
    """A tensor that a step has replaced by another, by the name of its state; nothing for anything else."""
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor) or before.dtype not in STORED:
        return {}
    alike = (after.shape, after.dtype) == (before.shape, before.dtype) and not is_lazy_view(before)
    return {f"attribute/{name}": before} if alike and not is_lazy_view(after) else {}
