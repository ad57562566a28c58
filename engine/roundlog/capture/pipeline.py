"""Capture: from a function that makes a task to a program, its initial state and its schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch.torch_version import TorchVersion

from roundlog.capture.captured import Captured, Origin, OwnStates
from roundlog.capture.errors import CaptureError, UnknownValueError, asks_for_values
from roundlog.capture.fresh_tasks import FreshTasks, MakeTask
from roundlog.capture.lowering import lowered
from roundlog.capture.portable import paused
from roundlog.capture.real_steps.eager_steps import (
    DifferentStepError,
    PastLastStepError,
    WatchedSteps,
    watched_steps,
)
from roundlog.capture.real_steps.patched_torch import plain_model
from roundlog.capture.real_steps.reachable_values import StepCalls, reachable
from roundlog.capture.tracing.task_trace import TaskTrace, WrittenConstantError, WrittenStateError
from roundlog.capture.tracing.traced_optimizers import refuse_unsupported
from roundlog.capture.tracing.warmed_task import held_now, held_states, warmed_task, widened
from roundlog.data import STORED, copied

_MOST_STATES = 64
"""Most tensors that the trace finds to be states when no watched step has changed them."""

_OLDEST = "2.11"
"""PyTorch that the rules are made for. Jobs run with 2.10 as well, the last one that AArch64 has without CUDA."""

Tell = Callable[[float], None]
"""Is called with the share that is done."""


def capture(make: MakeTask, tell: Tell = lambda share: None, *, once: bool = False) -> Captured:
    """Turn a task that a function makes into a program, its initial state and its schedule. once: the function is
    called once, for a task of one step that nothing is compared with. Raises CaptureError, naming the operator and the
    user's source line, for what cannot be turned."""
    if TorchVersion(torch.__version__) < _OLDEST:
        raise CaptureError(
            f"PyTorch {torch.__version__} runs and audits jobs, but captures none: install PyTorch {_OLDEST} or newer, "
            "or capture on another machine"
        )
    tell(0.0)
    fresh = FreshTasks(make, once=once)
    with paused(), torch.random.fork_rng(devices=[]):  # a trace draws
        return _captured_by_rounds(fresh, tell, once=once)


def _captured_by_rounds(fresh: FreshTasks, tell: Tell, *, once: bool) -> Captured:
    watched = WatchedSteps((), StepCalls()) if once else _watched(fresh, tell)
    tell(0.3)
    unknown: UnknownValueError | None = None
    changed: set[str] = set()
    for _ in range(_MOST_STATES):
        try:
            return _captured(fresh, watched, tell, None if unknown is None else changed)
        except WrittenStateError as error:
            found = [name for name in error.names if name not in watched.states]
            if not found:
                raise
            watched = replace(watched, states=(*watched.states, *found))
        except UnknownValueError as error:
            if unknown is not None:
                raise
            unknown = error  # values of buffers that no step changes may decide; what is unknown even so is named
        except WrittenConstantError as error:
            if unknown is None or error.name in changed:
                raise
            changed.add(error.name)
    raise CaptureError("a step writes into more and more tensors: keep them in buffers of the model")


def _watched(fresh: FreshTasks, tell: Tell) -> WatchedSteps:
    task, _ = fresh()
    refuse_unsupported(task.phases(), plain_model(task.model), task.steps)
    try:
        return watched_steps(task)
    except PastLastStepError:  # all steps of so short a task are compared
        return WatchedSteps((), StepCalls())
    except DifferentStepError:
        try:  # a trace knows the line that decides, and the option of the model that switches it off
            _captured(fresh, WatchedSteps((), StepCalls()), tell, set())
        except UnknownValueError as error:
            if error.__cause__ is not None and asks_for_values(error.__cause__):
                raise
        except CaptureError:
            pass
        raise


def _captured(fresh: FreshTasks, watched: WatchedSteps, tell: Tell, changed: Collection[str] | None) -> Captured:
    """The task as data. changed: names of the buffers whose values may change, so that they decide nothing; None for
    all."""
    warmed = warmed_task(fresh, watched)
    task = warmed.task
    found = reachable(task, watched.calls, elements=False)
    states = held_states(task, found, warmed.states)
    known = frozenset(
        name
        for name, state in states.items()
        if not name.startswith(("parameter/", "attribute/"))
        and (state.tensor.dtype not in STORED or (changed is not None and name not in changed))
    )
    traced = TaskTrace(warmed, found, states, known).traced()
    tell(0.9)
    try:
        job = lowered(traced, task.fields(), task.batch_size)
    except CaptureError as error:
        raise UnknownValueError(str(error)) from error

    trained, names = traced.trained, frozenset(job.states)  # what begins again holds no trace
    still = job.states.keys() - job.program.moved_states.keys()
    frozen = {name: digest for name in still if (digest := fresh.digest(name))}
    initial = {name: tensor.detach() for name, tensor in job.states.items()}
    # A step may write into what the program stores, and the user into a task that is not made for the capture.
    initial |= {name: copied(initial[name]) for name in initial.keys() - (() if fresh.once else frozen)}
    initial = {name: tensor.contiguous() for name, tensor in initial.items()}
    shared = {name: initial[name] for name in frozen}

    def begin() -> OwnStates:
        warmed = warmed_task(fresh, watched, shared)
        found = reachable(warmed.task, watched.calls, elements=False)
        own = {n: s for n, s in held_states(warmed.task, found, warmed.states).items() if n in names}
        return OwnStates(
            task=warmed.task,
            tensors={name: state.tensor for name, state in own.items()},
            trained={name: warmed.parameter(name) for name in trained},
            now=lambda: {name: held_now(state) for name, state in own.items()},
            widened=lambda: widened(found),
            digests=frozen,
        )

    return Captured(
        task=task,
        program=job.program,
        states=initial,
        schedule=job.schedule,
        origin=Origin(trained=trained, gradients=job.gradients, draws=job.drawn, known=traced.known, trail=job.trail),
        begin=begin,
    )
