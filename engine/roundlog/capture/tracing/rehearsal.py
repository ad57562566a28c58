"""One step of the user's own, before anything is believed of it: which tensors a step changes beside parameters and
buffers, and whether the steps after it do the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import fx

from roundlog.capture.captured import model_tensors
from roundlog.capture.constants import written
from roundlog.capture.draws import GENERATOR
from roundlog.capture.errors import CaptureError, reason
from roundlog.capture.lines import place_of_error
from roundlog.capture.optimizers import is_own
from roundlog.capture.python_state import (
    MISSING,
    AfterOne,
    Carried,
    Change,
    LaterSteps,
    Location,
    MoreStateError,
    Snapshot,
    carried,
    grown_apart,
    snapshot_of,
    unsteady,
)
from roundlog.capture.task import STORED, Task
from roundlog.capture.tracing.eager import EagerTraining, plain_model, plainly
from roundlog.capture.tracing.trace import ChangedBuffersError, Tracer
from roundlog.capture.tracing.traced_step import Course, TracedStep
from roundlog.data import is_lazy_view

_MOST_ROUNDS = 12
"""Rounds in which more and more tensors are found to be states."""


def _followed_elsewhere(task: Task) -> tuple[str, ...]:
    """Beginnings of names that are followed by other means: in optimizers of torch's, and in schedules."""
    theirs = [f"{phase.called('optimizer')}." for phase in task.phases() if not is_own(phase.optimizer)]
    rates = [
        f"{phase.called('optimizer')}.param_groups[{number}].{key}"
        for phase in task.phases()
        for number in range(len(phase.optimizer.param_groups))
        for key in ("lr", "initial_lr")
    ]
    return (*theirs, *rates, "schedule.", "schedule[")


def traced(
    task: Task, snapshot: Snapshot, known: frozenset[str], *, decides: bool
) -> tuple[TracedStep, Course, dict[str, torch.Tensor]]:
    """A step of the task, traced as the task stands; all steps of the job in terms of it, and of others that are traced
    after a step of the user's own; and the tensors beside parameters and buffers that are part of the state and stand
    somewhere before the first step. known: names of the buffers that are constants if no step changes them. decides:
    whether a step may decide by values. Raises CaptureError for steps that cannot be followed."""
    attributes: dict[str, torch.Tensor] = {}
    places: dict[Location, Carried] = {}
    for _ in range(_MOST_ROUNDS):
        snapshot.restore()
        try:
            return _traced(task, snapshot, attributes, list(places.values()), known, decides=decides)
        except ChangedBuffersError as error:
            known -= error.names
            _refuse_other_dtypes(task, error.names)
        except MoreStateError as error:
            named = {number: name for number, (name, _) in snapshot.tensors.items()}
            named |= {id(parameter): name for name, parameter in plain_model(task.model).named_parameters()}
            found = [one for change in error.changes if (one := carried(change, named)) is not None]
            new = {one.location: one for one in found}
            if not (error.tensors.keys() - attributes.keys() or new.keys() - places.keys()):
                raise
            attributes |= error.tensors
            places |= new
            _refuse_one_name(places.values())
    raise CaptureError("steps keep what they compute in more and more places: keep it in buffers of the model")


def _traced(
    task: Task,
    snapshot: Snapshot,
    attributes: dict[str, torch.Tensor],
    places: Sequence[Carried],
    known: frozenset[str],
    *,
    decides: bool,
) -> tuple[TracedStep, Course, dict[str, torch.Tensor]]:
    """One round of `traced`. Raises MoreStateError for tensors that have to be states beside attributes and places, and
    ChangedBuffersError for buffers that are not known."""
    snapshot.move()  # whatever escapes the trace writes into copies
    tracer = Tracer(task, snapshot, attributes, known, places, decides=decides)
    elsewhere = _followed_elsewhere(task)
    if told := [change.name for change in snapshot.changes() if not change.name.startswith(elsewhere)]:
        raise CaptureError(f"the schedule changes {told[0]}: make it depend on the step alone, and change nothing")
    tracer.optimizers.set_first_rates()
    ended: list[list[Change]] = []

    def begin() -> None:
        if ended:  # another path, from the same beginning
            snapshot.restore()
            snapshot.move()
            tracer.optimizers.set_first_rates()

    def end() -> None:
        ended.append(snapshot.changes())
        _refuse_left_out(places, ended[-1])

    first = tracer.trace(begin, end)
    written = _written(first.graph, snapshot)
    snapshot.restore()
    # The rehearsal takes one of the paths.
    replaced = _replaced(task, [change for changes in ended for change in changes]) if len(ended) > 1 else {}
    left = _rehearse(task, snapshot)
    found = {**left, **replaced, **written}
    if more := {name: tensor for name, tensor in found.items() if name not in attributes}:
        raise MoreStateError("a step changes tensors beside parameters and buffers", tensors=more)
    snapshot.drop_gradients()
    made = snapshot.changes()
    snapshot.put_back([*attributes.values(), *plain_model(task.model).buffers()])
    after = {change.location: change.after for change in made}
    for one in places:
        standing = after.get(one.location, MISSING)
        if not one.is_new:
            one.container.put(one.key, one.before)
        elif standing is not MISSING:
            tracer.stand_in(one, standing)
    own = {change.name for change in snapshot.changes() if change.name.startswith(elsewhere)}
    own = (own | tracer.optimizers.changing) - tracer.optimizers.rates.keys()
    with snapshot_of(task) as later:
        theirs = [change for change in made if not change.name.startswith(elsewhere)]
        shown = [[change for change in changes if not change.name.startswith(elsewhere)] for changes in ended]
        others = [[change for change in changes if not tracer.follows(change.before)] for changes in shown]
        grown = grown_apart(others, snapshot.seen())
        after_one = AfterOne(snapshot, theirs, unsteady(shown, theirs), grown)
        course = LaterSteps(task, tracer, later, own, after_one).followed(first)
    tracer.shared.refuse()
    counting = (node for graph in course.graphs for node in graph.graph.nodes)
    stepped = tracer.optimizers.stepped
    if stepped is not None and any("_local_scalar_dense" in str(node.target) for node in counting):
        who = "optimizer" if any(is_own(phase.optimizer) for phase in task.phases()) else "loss"
        raise CaptureError(
            f"the {who} takes a step of an optimizer{stepped} that makes a number of its count: give the task "
            "several optimizers with a loss each, which take their steps in turn (optimizer=[a, b], loss=[of_a, of_b])"
        )
    states = {
        **attributes,
        **{name: t for one in places if not one.is_new for name, t in one.leaves(one.before).items()},
    }
    return first, course, states


def _refuse_one_name(places: Iterable[Carried]) -> None:
    """Raises CaptureError for two states of one name: programs tell states apart by their names."""
    seen = set[str]()
    for name in (name for one in places for name in one.start):
        if name in seen:
            raise CaptureError(
                f"steps keep tensors in several places that are called {name.partition('/')[2]}: keep them under keys "
                "that are numbers or texts"
            )
        seen.add(name)


def _refuse_other_dtypes(task: Task, names: Collection[str]) -> None:
    for name, tensor in model_tensors(plain_model(task.model)).items():
        if name in names and tensor.dtype not in STORED:
            raise CaptureError(f"a step changes {_conversion(name.partition('/')[2], tensor)}") from None


def _replaced(task: Task, changes: Iterable[Change]) -> dict[str, torch.Tensor]:
    """Tensors, neither parameters nor buffers, in whose place changes have put others like them, by name."""
    elsewhere = _followed_elsewhere(task)
    known = {id(tensor) for tensor in (*task.model.parameters(), *task.model.buffers())}
    found: dict[str, torch.Tensor] = {}
    for change in changes:
        if not change.name.startswith(elsewhere) and id(change.before) not in known:
            found |= _attribute(change.name, change.before, change.after)
    return found


def _refuse_left_out(places: Iterable[Carried], changes: Iterable[Change]) -> None:
    """Raises CaptureError unless a path through the first step puts tensors in every place that has none before it:
    whether there are any would be one more thing that later steps depend on."""
    changed = {change.location for change in changes}
    for one in places:
        if one.is_new and one.location not in changed:
            raise CaptureError(
                f"a step keeps tensors in {one.name}, where there are none before it, but the first step does not, "
                "or not whatever the values are: begin with a tensor there (torch.zeros)"
            )


def _conversion(name: str, tensor: torch.Tensor) -> str:
    """The dtype of a buffer, and how to make it one that states of a program have."""
    if tensor.is_complex():
        return f"{name}, which is {tensor.dtype}: keep it as pairs of numbers (torch.view_as_real)"
    way = "float" if tensor.is_floating_point() else "long"
    return f"{name}, which is {tensor.dtype}: convert it before the first step, model.{name} = model.{name}.{way}()"


def _written(graph: fx.GraphModule, snapshot: Snapshot) -> dict[str, torch.Tensor]:
    """Tensors of the user's that a traced step writes into, though they are neither parameters nor buffers."""
    found = {}
    for node in written(graph.graph):
        tensor = getattr(graph, str(node.target)) if node.op == "get_attr" else None
        if isinstance(tensor, torch.Tensor) and id(tensor) in snapshot.tensors:
            found[f"attribute/{snapshot.tensors[id(tensor)][0]}"] = tensor
    return found


def _rehearse(task: Task, snapshot: Snapshot, *, again: bool = False) -> dict[str, torch.Tensor]:
    """Take a step of the user's own, on memory of its own. Gives the tensors that it has changed and that are neither
    parameters nor buffers, by name. again: a generator of random numbers moved the first time."""
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
    elsewhere = _followed_elsewhere(task)
    known = {id(tensor) for tensor in (*task.model.parameters(), *task.model.buffers())}
    memory = {tensor.untyped_storage()._cdata for tensor in (*task.model.parameters(), *task.model.buffers())}
    snapshot.changed_arrays()  # which refuses those that share memory with tensors
    left = _replaced(task, snapshot.changes())
    for name, tensor in snapshot.written():
        # A tensor that shares memory with a parameter is a view of it.
        own = id(tensor) in known or tensor.untyped_storage()._cdata in memory
        if not name.startswith(elsewhere) and not own:
            left |= _attribute(name, tensor, tensor)
    if moved := snapshot.moved_generators():
        if not again:  # another thread of the process may have drawn from it meanwhile
            snapshot.restore()
            return _rehearse(task, snapshot, again=True)
        raise CaptureError(f"the step draws from {moved[0]}, which a program cannot: draw random numbers by torch")
    snapshot.refuse_advanced()
    return left


def _attribute(name: str, before: object, after: object) -> dict[str, torch.Tensor]:
    """A tensor that a step has replaced by another, by the name of its state; nothing for anything else."""
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor) or before.dtype not in STORED:
        return {}
    alike = (after.shape, after.dtype) == (before.shape, before.dtype) and not is_lazy_view(before)
    return {f"attribute/{name}": before} if alike and not is_lazy_view(after) else {}
