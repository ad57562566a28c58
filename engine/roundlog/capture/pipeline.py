"""Capture: a task, its traced steps, the program that these are lowered to, and where its values come from.

A step is traced. One step of the user's own, a rehearsal, shows which tensors a step changes beside parameters and
buffers. The steps after it are traced in terms of the first, and all are lowered to one program. What a stage finds
out to be part of the state, or not to be known, begins a round anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import fx
from torch.torch_version import TorchVersion

from roundlog.capture.captured import Captured, Origin, model_tensors
from roundlog.capture.constants import written
from roundlog.capture.draws import GENERATOR
from roundlog.capture.errors import CaptureError, UnknownValueError, place_of_error, reason
from roundlog.capture.lowering import lowered
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
from roundlog.capture.task import STORED, OptimizerPhase, Task
from roundlog.capture.tracing.eager import EagerTraining, plain_model, plainly
from roundlog.capture.tracing.trace import ChangedBuffersError, Tracer, refuse_autocast
from roundlog.capture.tracing.traced_optimizers import TracedOptimizers
from roundlog.capture.tracing.traced_step import JobSteps, TracedStep
from roundlog.data import is_lazy_view

_MOST_ROUNDS = 12
"""Rounds in which more and more tensors are found to be states."""

Named = dict[str, torch.Tensor]

Tell = Callable[[float], None]
"""Is called with the share that is done."""

_OLDEST = "2.11"
"""PyTorch that the rules are made for. Jobs run with 2.10 as well, the last one that AArch64 has without CUDA."""


def capture(task: Task, tell: Tell = lambda share: None) -> Captured:
    """Turn a task into a program, its initial state and its schedule. The task's model, optimizer and loss stay as they
    are. Raises CaptureError, naming the operator and the user's source line, for what cannot be turned."""
    if TorchVersion(torch.__version__) < _OLDEST:
        raise CaptureError(
            f"PyTorch {torch.__version__} runs and audits jobs, but captures none: install PyTorch {_OLDEST} or newer, "
            "or capture on another machine"
        )
    tell(0.0)
    refuse_autocast("outside of the loss", ("cpu", "cuda"))
    task.check()
    tensors = model_tensors(plain_model(task.model))
    buffers = frozenset(name for name in tensors if not name.startswith("parameter/"))
    # Programs have no states of other dtypes.
    known = frozenset(name for name in buffers if tensors[name].dtype not in STORED)
    try:
        return _captured(task, known, tell, decides=False)
    except UnknownValueError:
        pass
    # Values that are known decide nothing; what is unknown even so is followed, or named.
    return _captured(task, buffers, tell, decides=True)


def _captured(task: Task, known: frozenset[str], tell: Tell, *, decides: bool) -> Captured:
    """The task with these buffers as constants, as far as no step changes them. decides: whether the step may decide by
    values that it computes."""
    with snapshot_of(task) as snapshot:
        trace, job_steps, attributes = _traced(task, snapshot, known, tell, decides=decides)
        tell(0.95)
        try:
            job = lowered(trace, job_steps, task.fields(), task.batch(torch.arange(task.batch_size)), task.seed)
        except CaptureError as error:
            raise UnknownValueError(str(error)) from error
    own = {**model_tensors(plain_model(task.model)), **attributes}
    return Captured(
        program=job.program,
        states={name: tensor.detach().clone().contiguous() for name, tensor in job.states.items()},
        schedule=job.schedule,
        origin=Origin(
            tensors={name: tensor for name, tensor in own.items() if name in job.states},
            trained=trace.trained,
            gradients=job.gradients,
            paths=job.paths,
            known=trace.known,
            trails=job.trails,
        ),
    )


def _traced(
    task: Task, snapshot: Snapshot, known: frozenset[str], tell: Tell, *, decides: bool
) -> tuple[TracedStep, JobSteps, Named]:
    """A step of the task, traced as the task stands; all steps of the job in terms of it, and of others that are traced
    after a step of the user's own; and the tensors beside parameters and buffers that are part of the state and stand
    somewhere before the first step. known: names of the buffers that are constants if no step changes them. decides:
    whether a step may decide by values. Raises CaptureError for steps that cannot be followed."""
    model = plain_model(task.model)
    attributes: Named = {}
    places: dict[Location, Carried] = {}
    for _ in range(_MOST_ROUNDS):
        snapshot.restore()
        snapshot.move()  # whatever escapes the trace writes into copies
        tracer = Tracer(task, snapshot, attributes, known, list(places.values()), decides=decides)
        try:
            first, job_steps = _in_one_round(task, snapshot, tracer, attributes, list(places.values()), tell)
        except ChangedBuffersError as error:
            known -= error.names
            _refuse_other_dtypes(model_tensors(model), error.names)
        except MoreStateError as error:
            named = {number: name for number, (name, _) in snapshot.tensors.items()}
            named |= {id(parameter): name for name, parameter in model.named_parameters()}
            found = [one for change in error.changes if (one := carried(change, named)) is not None]
            new = {one.location: one for one in found}
            if not (error.tensors.keys() - attributes.keys() or new.keys() - places.keys()):
                raise
            attributes |= error.tensors
            places |= new
            _refuse_one_name(places.values())
        else:
            present = (one for one in places.values() if not one.is_new)
            return first, job_steps, attributes | {n: t for one in present for n, t in one.leaves(one.before).items()}
    raise CaptureError("steps keep what they compute in more and more places: keep it in buffers of the model")


def _in_one_round(
    task: Task, snapshot: Snapshot, tracer: Tracer, attributes: Named, places: Sequence[Carried], tell: Tell
) -> tuple[TracedStep, JobSteps]:
    """The first step, and all in terms of it. Raises MoreStateError for tensors that have to be states beside
    attributes and places, and ChangedBuffersError for buffers that are not known."""
    elsewhere = followed_elsewhere(tracer.optimizers.phases)
    if told := _not_theirs(snapshot.changes(), elsewhere):
        raise CaptureError(f"the schedule changes {told[0].name}: make it depend on the step alone, and change nothing")
    first, ends = _first_step(snapshot, tracer, places)
    tell(0.5)  # a later step takes as long
    written = written_tensors(first.graph, snapshot)
    snapshot.restore()
    # The rehearsal takes one of the paths.
    model = [*task.model.parameters(), *task.model.buffers()]
    changes = [change for end in ends for change in end] if len(ends) > 1 else []
    replaced = replaced_tensors(model, changes, elsewhere)
    found = {**rehearsed(task, snapshot, elsewhere), **replaced, **written}
    if more := {name: tensor for name, tensor in found.items() if name not in attributes}:
        raise MoreStateError("a step changes tensors beside parameters and buffers", tensors=more)
    snapshot.drop_gradients()
    made = snapshot.changes()
    snapshot.put_back([*attributes.values(), *plain_model(task.model).buffers()])
    after = {change.location: change.after for change in made}
    for one in places:
        current = after.get(one.location, MISSING)
        if not one.is_new:
            one.container.put(one.key, one.before)
        elif current is not MISSING:
            tracer.stand_in(one, current)
    own = {change.name for change in snapshot.changes() if change.name.startswith(elsewhere)}
    own = (own | tracer.optimizers.changing) - tracer.optimizers.rates.keys()
    with snapshot_of(task) as later:
        theirs = _not_theirs(made, elsewhere)
        shown = [_not_theirs(end, elsewhere) for end in ends]
        others = [[change for change in changes if not tracer.follows(change.before)] for changes in shown]
        grown = grown_apart(others, snapshot.seen())
        after_one = AfterOne(snapshot, theirs, unsteady(shown, theirs), grown)
        job_steps = LaterSteps(task.steps, tracer, later, own, after_one).followed(first)
    tracer.shared.refuse()
    _refuse_counting(tracer.optimizers, job_steps)
    return first, job_steps


def _first_step(snapshot: Snapshot, tracer: Tracer, places: Sequence[Carried]) -> tuple[TracedStep, list[list[Change]]]:
    """The first step, and what each path through it changes."""
    ends: list[list[Change]] = []

    def begin() -> None:
        if ends:  # another path, from the same beginning
            snapshot.restore()
            snapshot.move()
        tracer.optimizers.set_first_rates()

    def end() -> None:
        ends.append(snapshot.changes())
        _refuse_left_out(places, ends[-1])

    return tracer.trace(begin, end), ends


def _not_theirs(changes: Iterable[Change], elsewhere: tuple[str, ...]) -> list[Change]:
    """Changes of what is not followed by other means."""
    return [change for change in changes if not change.name.startswith(elsewhere)]


def _refuse_counting(optimizers: TracedOptimizers, job_steps: JobSteps) -> None:
    """Raises CaptureError for an optimizer that takes steps within the loss, by a number that is its count."""
    nodes = (node for graph in job_steps.graphs for node in graph.graph.nodes)
    if optimizers.stepped is not None and any("_local_scalar_dense" in str(node.target) for node in nodes):
        who = "optimizer" if any(is_own(phase.optimizer) for phase in optimizers.phases) else "loss"
        raise CaptureError(
            f"the {who} takes a step of an optimizer{optimizers.stepped} that makes a number of its count: give the "
            "task several optimizers with a loss each, which take their steps in turn (optimizer=[a, b], "
            "loss=[of_a, of_b])"
        )


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


def _refuse_other_dtypes(tensors: Named, names: Collection[str]) -> None:
    for name, tensor in tensors.items():
        if name in names and tensor.dtype not in STORED:
            raise CaptureError(f"a step changes {_conversion(name.partition('/')[2], tensor)}") from None


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
